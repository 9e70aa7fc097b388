"""An option declared once: read, checked, explained, listed.

A backend declares its options as :class:`Option` values. The handler's own are :data:`HANDLER_OPTIONS`. One
call of :func:`read_options` reads both from one configuration, since torchrun's ``--rdzv-conf`` knows no
sections.

Where a value may come from, the first that is there wins:

1. the configuration, under the option's own name;
2. the environment, as ``RDZV_`` and the name in capitals;
3. the configuration, under an alias (so that torchrun's ever-present ``timeout`` overrules nobody);
4. the environment, under an alias;
5. a foreign variable that means the same, such as ``PET_NODE_RANK``;
6. the default.

Text from the configuration is percent-decoded, since ``--rdzv-conf`` has no other way to hold a comma: ``%2C``
is a comma, ``%25`` a percent sign. Text from the environment is taken as it is; empty text there is as good as
none.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from rdzv_core.endpoint import mask_secrets
from rdzv_core.machine.rules import PLACEMENTS, RESTARTS

__all__ = [
    "HANDLER_OPTIONS",
    "Derived",
    "Kind",
    "Option",
    "OptionError",
    "OptionValues",
    "describe",
    "doubts",
    "environment_name",
    "option_table",
    "read_options",
    "ttl_of",
]

Kind: TypeAlias = Literal["duration", "integer", "flag", "choice", "text", "ports"]
"""What a value is: seconds (a float), an int, a bool, one of a few words, any text (a str), or ports (a range)."""

RESERVED = frozenset({"backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"})
"""Names that ``RendezvousParameters`` takes for itself; in ``--rdzv-conf`` they end in a TypeError."""

LONGEST = 1e9
"""Seconds, some 31 years: the longest duration that every clock and store we speak to can express."""

_MINIMUM_INTERVALS = 3  # fewer missed beats than this are no death, but a hiccup
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([smh]?)")
_PORTS = re.compile(r"([0-9]{1,5})(?:\s*-\s*([0-9]{1,5}))?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TRUE = ("1", "true", "t", "yes", "y", "on")
_FALSE = ("0", "false", "f", "no", "n", "off")


class OptionError(ValueError):
    """One option or several were given wrongly.

    Attributes:
        problems: One sentence per fault; each names its option, what was seen and what was expected.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            text = "\n".join([f"{len(self.problems)} options are wrong:", *self.problems])
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


@dataclass(frozen=True, slots=True)
class Derived:
    """A default that follows from other options."""

    words: str
    """For people: 'half of join_timeout'."""
    of: Callable[[Mapping[str, Any]], Any]
    """From the values read so far; options declared earlier only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: everything that reader, error text and documentation need to know of it.

    Raises:
        ValueError: The declaration contradicts itself, or takes a name that torch takes.
    """

    name: str
    kind: Kind
    default: Any = None
    """A value of the kind, None for 'not set', or :class:`Derived`."""
    unit: str = ""
    sentence: str
    """What it does, in one sentence for a user."""
    minimum: float | None = None
    """The smallest value allowed."""
    above: float | None = None
    """A value that is just too small: 0 refuses zero."""
    maximum: float | None = None
    """The largest value allowed."""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Other names for it; its own name beats them."""
    also_from: tuple[str, ...] = ()
    """Foreign environment variables that fill it in if nobody else does; a bad value there is passed over."""
    secret: bool = False
    """Whether the value is never to be shown."""

    def __post_init__(self) -> None:
        for name in (self.name, *self.aliases):
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise ValueError(f"An option cannot be named '{name}'; use small letters, digits and '_'.")
            if name in RESERVED:
                raise ValueError(f"An option cannot be named '{name}': torch takes that name for itself.")
        if bool(self.choices) != (self.kind == "choice"):
            raise ValueError(f"Option '{self.name}': choices and kind 'choice' come together.")

    @property
    def environment_name(self) -> str:
        """Its twin in the environment."""
        return environment_name(self.name)

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "flag":
            return "true or false"
        if self.kind == "text":
            return "a text that is not empty"
        if self.kind == "ports":
            return "a port, or a first and a last one as in 29500-29599, from 1 to 65535"
        what = "a duration in seconds" if self.kind == "duration" else "a whole number"
        bounds = []
        if self.above is not None:
            bounds.append(f"above {self.above:g}")
        if self.minimum is not None:
            bounds.append(f"at least {self.minimum:g}")
        if self.maximum is not None:
            bounds.append(f"at most {self.maximum:g}")
        return " ".join([what, " and ".join(bounds)]).strip()

    def read(self, value: Any) -> Any:
        """Make a value of this option's kind out of what was given.

        Raises:
            ValueError: It is none. The sentence names the option, what was seen (unless that is a secret),
                and what was expected.
        """
        try:
            result = _READERS[self.kind](value)
        except (ValueError, TypeError, OverflowError):
            result = None
        if result is None or not self._allows(result):
            seen = "the value given" if self.secret else mask_secrets(repr(value))
            too_long = self.kind == "duration" and result is not None and result > LONGEST
            limit = f" and at most {LONGEST:g}" if too_long and self.maximum is None else ""
            raise ValueError(f"Option '{self.name}': {seen} is not {self.expected}{limit}.")
        return result

    def _allows(self, value: Any) -> bool:
        if self.kind == "choice":
            return value in self.choices
        if self.kind not in ("duration", "integer"):
            return True
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.kind != "duration" or abs(value) <= LONGEST)
        )

    def show(self, value: Any) -> str:
        """The value as people should read it."""
        if value is None:
            return "not set"
        if self.secret:
            return "***"
        if self.kind == "flag":
            return "true" if value else "false"
        if self.kind == "ports":
            return f"{value[0]}-{value[-1]}"
        text = f"{value:.15g}" if isinstance(value, float) else mask_secrets(str(value))
        return f"{text} {self.unit}" if self.unit else text


def _read_duration(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if not found:
            raise ValueError
        seconds = float(found[1]) * _UNITS[found[2]]
    elif isinstance(value, (int, float)):
        seconds = float(value)
    else:
        raise TypeError
    if not math.isfinite(seconds):
        raise ValueError
    return seconds


def _read_integer(value: Any) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError


def _read_flag(value: Any) -> bool:
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _read_choice(value: Any) -> str:
    return _read_text(value).strip().lower()


def _read_ports(value: Any) -> range:
    if isinstance(value, range):
        if value.step != 1 or not value:
            raise ValueError
        first, last = value[0], value[-1]
    else:
        found = _PORTS.fullmatch(str(value).strip())
        if found is None or isinstance(value, bool):
            raise ValueError
        first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last <= 65535:
        raise ValueError
    return range(first, last + 1)


_READERS: dict[Kind, Callable[[Any], Any]] = {
    "duration": _read_duration,
    "integer": _read_integer,
    "flag": _read_flag,
    "text": _read_text,
    "choice": _read_choice,
    "ports": _read_ports,
}


def environment_name(name: str) -> str:
    """The environment variable that is the twin of the option ``name``."""
    return f"RDZV_{name.upper()}"


class OptionValues(Mapping[str, Any]):
    """The values of some options, checked and complete: every declared name is there. Does not change.

    Attributes:
        options: The declarations, in order.
        sources: Where each value came from: ``config``, the name of a variable, or ``default``.
        warnings: What a user should be told although it is no error.
    """

    def __init__(
        self,
        options: Sequence[Option],
        values: Mapping[str, Any],
        sources: Mapping[str, str],
        warnings: Sequence[str] = (),
    ) -> None:
        self.options = tuple(options)
        self.sources = dict(sources)
        self.warnings = tuple(warnings)
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"OptionValues({describe(self)})"


def read_options(
    *groups: Sequence[Option],
    config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> OptionValues:
    """Read the options of all ``groups`` from one configuration and the environment.

    Args:
        groups: Declarations: the handler's, the backend's. A name may be declared once.
        config: What the user gave, as in ``RendezvousParameters.config``; a value of None is not given.
        environ: The environment, usually ``os.environ``; None for none.

    Raises:
        OptionError: Names every fault: unknown keys with the nearest that exists, values of a wrong kind or
            out of range.
        ValueError: Two groups declare the same name.
    """
    options = [option for group in groups for option in group]
    names = _names(options)
    given = {key: value for key, value in (config or {}).items() if value is not None}
    surroundings = environ or {}
    problems = [_unknown(key, names) for key in given if key not in names]
    warnings = _misspelt(surroundings, names)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in options:
        try:
            value, source = _find(option, given, surroundings, values, warnings)
        except ValueError as error:
            problems.append(str(error))
        else:
            values[option.name], sources[option.name] = value, source
        _note_overruled(option, given, sources, warnings)
        if option.name not in values:  # so that a default which follows from it can be worked out
            values[option.name] = _default(option, values)
    if problems:
        raise OptionError(problems)
    return OptionValues(options, values, sources, warnings)


def _names(options: Sequence[Option]) -> dict[str, Option]:
    names: dict[str, Option] = {}
    for option in options:
        for name in (option.name, *option.aliases):
            if names.setdefault(name, option) is not option:
                raise ValueError(f"The option '{name}' is declared twice.")
    return names


def _unknown(key: str, names: Mapping[str, Option]) -> str:
    near = difflib.get_close_matches(key, names, n=1)
    guess = f" Did you mean '{near[0]}'?" if near else ""
    return f"There is no option '{key}'.{guess} The options are: {', '.join(sorted(names))}."


def _misspelt(environ: Mapping[str, str], names: Mapping[str, Option]) -> list[str]:
    twins = {environment_name(name) for name in names}
    warnings = []
    for name in environ:
        near = difflib.get_close_matches(name, twins, n=1, cutoff=0.9) if name.startswith("RDZV_") else []
        if near and name not in twins:
            warnings.append(f"The environment variable {name} is not read; did you mean {near[0]}?")
    return warnings


def _find(
    option: Option,
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    earlier: Mapping[str, Any],
    warnings: list[str],
) -> tuple[Any, str]:
    for name in (option.name, *option.aliases):
        twin = environment_name(name)
        if name in config:
            source = "config" if name == option.name else f"config {name}"
            return option.read(_decoded(option, config[name])), source
        if environ.get(twin):
            try:
                return option.read(environ[twin]), twin
            except ValueError as error:
                raise ValueError(f"{str(error)[:-1]} (from the environment variable {twin}).") from None
    for variable in option.also_from:
        if environ.get(variable):
            try:
                return option.read(environ[variable]), variable
            except ValueError as error:
                warnings.append(f"The environment variable {variable} is passed over. {error}")
    return _default(option, earlier), "default"


def _default(option: Option, earlier: Mapping[str, Any]) -> Any:
    return option.default.of(earlier) if isinstance(option.default, Derived) else option.default


def _decoded(option: Option, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if _BROKEN_ESCAPE.search(value):
        raise ValueError(f"Option '{option.name}': it holds a '%' that begins no escape; write '%' as %25.")
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"Option '{option.name}': its percent escapes do not decode to UTF-8.") from None


def _note_overruled(option: Option, config: Mapping[str, Any], sources: Mapping[str, str], warnings: list[str]) -> None:
    source = sources.get(option.name, "default")
    for alias in option.aliases:
        # torchrun adds timeout=900 as an int where the user gave none; what a person typed is a str
        if isinstance(config.get(alias), str) and source in ("config", option.environment_name):
            winner = option.name if source == "config" else source
            warnings.append(f"Option '{alias}' has no effect, because {winner} is given too.")


def describe(values: OptionValues) -> str:
    """The effective configuration in one line, secrets masked; what is not a default says whence it came."""
    parts = []
    for option in values.options:
        source = values.sources[option.name]
        whence = "" if source == "default" else f" ({source})"
        parts.append(f"{option.name}={option.show(values[option.name])}{whence}")
    return ", ".join(parts)


def option_table(options: Sequence[Option]) -> str:
    """The options as a Markdown table; the documentation is made of it."""
    lines = ["| option | default | expected | meaning |", "|---|---|---|---|"]
    for option in options:
        if isinstance(option.default, Derived):
            default = option.default.words
        else:
            default = option.show(option.default) if option.default is not None else "not set"
        notes = [option.sentence]
        if option.aliases:
            notes.append("Also: " + ", ".join(f"`{alias}`" for alias in option.aliases) + ".")
        if option.also_from:
            notes.append("Filled in from " + ", ".join(f"`{name}`" for name in option.also_from) + ".")
        if option.secret:
            notes.append("Secret: never shown.")
        cells = [f"`{option.name}`<br>`{option.environment_name}`", default, option.expected, " ".join(notes)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def ttl_of(values: Mapping[str, Any]) -> float:
    """Seconds without a sign of life after which a node counts as dead: interval x attempts, 3 at least."""
    interval: float = values["keep_alive_interval"]
    attempts: int = values["keep_alive_max_attempt"]
    return interval * max(_MINIMUM_INTERVALS, attempts)


HANDLER_OPTIONS: tuple[Option, ...] = (
    Option(
        name="join_timeout",
        kind="duration",
        default=600.0,
        unit="s",
        above=0,
        aliases=("timeout",),
        sentence="How long a node waits for a round to complete; being a spare does not count. torchrun "
        "always passes `timeout=900`.",
    ),
    Option(
        name="last_call_timeout",
        kind="duration",
        default=30.0,
        unit="s",
        above=0,
        sentence="How long the minimum of nodes waits for more of them; latecomers do not push it back.",
    ),
    Option(
        name="close_timeout",
        kind="duration",
        default=30.0,
        unit="s",
        above=0,
        sentence="How long closing and shutting down may take.",
    ),
    Option(
        name="heartbeat_timeout",
        kind="duration",
        default=5.0,
        unit="s",
        above=0,
        sentence="How long the question whether a run is closed may take. A sign of life, as each call on the "
        "store, is bounded by the backend's `read_timeout`.",
    ),
    Option(
        name="keep_alive_interval",
        kind="duration",
        default=5.0,
        unit="s",
        above=0,
        sentence="How often a node gives a sign of life.",
    ),
    Option(
        name="keep_alive_max_attempt",
        kind="integer",
        default=3,
        minimum=1,
        sentence="How many signs of life must be missed in a row before a node counts as dead (its TTL); "
        "fewer than 3 are taken as 3.",
    ),
    Option(
        name="regroup_timeout",
        kind="duration",
        default=Derived("0.5 s, or `last_call_timeout` if less", lambda v: min(0.5, v["last_call_timeout"])),
        unit="s",
        minimum=0,
        sentence="Takes the place of the last call when every live member of the last round is back already.",
    ),
    Option(
        name="scale_up_delay",
        kind="duration",
        default=Derived("one TTL", ttl_of),
        unit="s",
        minimum=0,
        sentence="How long a newcomer must have waited before a healthy round is disturbed for it.",
    ),
    Option(
        name="bootstrap_timeout",
        kind="duration",
        default=60.0,
        unit="s",
        above=0,
        sentence="How long members of a round wait for rank 0 to tell its address before they give it up.",
    ),
    Option(
        name="bootstrap_ports",
        kind="ports",
        sentence="The ports that rank 0's stores may listen at, for networks where not all are open. Without it "
        "any free one. Each round opens a new store while that of the last one may still be in use: allow "
        "at least two for each agent of a machine.",
    ),
    Option(
        name="leave_timeout",
        kind="duration",
        default=Derived("half of `join_timeout`", lambda v: v["join_timeout"] / 2),
        unit="s",
        above=0,
        sentence="How long a member may stay in a round after it was told to re-form, before the others go "
        "on without it.",
    ),
    Option(
        name="store_outage_timeout",
        kind="duration",
        default=300.0,
        unit="s",
        above=0,
        sentence="How long a store that does not answer is borne, by a running job or in a join.",
    ),
    Option(
        name="closed_ttl",
        kind="duration",
        default=60.0,
        unit="s",
        above=0,
        sentence="How long the news that a run is closed outlives its last node.",
    ),
    Option(
        name="restart_on_node_loss",
        kind="choice",
        default="always",
        choices=RESTARTS,
        sentence="Whether survivors of a lost member are told to re-form: always, only while the minimum can "
        "be met, or never.",
    ),
    Option(
        name="placement",
        kind="choice",
        default="sorted",
        choices=PLACEMENTS,
        sentence="How members become ranks: `sorted` by address as text, `natural` with the numbers in it "
        "compared as numbers, `stable` so that survivors keep theirs, `hint` by `rank_hint`.",
    ),
    Option(
        name="rank_hint",
        kind="integer",
        minimum=0,
        also_from=("PET_NODE_RANK",),
        sentence="The rank that this node would like to have; heard if `placement` is `hint`. Of several that "
        "wish for the same, the address decides, with a warning.",
    ),
    Option(
        name="domain",
        kind="text",
        sentence="The part of the network that this node is in, such as its rack or switch, for placement hooks.",
    ),
    Option(
        name="allow_default_run_id",
        kind="flag",
        default=False,
        sentence="Whether the run id `none`, torchrun's own when `--rdzv-id` is left out, may be used on a "
        "store that other jobs can reach.",
    ),
)
"""The options of the handler, whatever the backend."""


def doubts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """What is allowed by :data:`HANDLER_OPTIONS` but unlikely to be meant; one sentence each."""
    found = []
    if values["last_call_timeout"] >= values["join_timeout"]:
        found.append(
            f"last_call_timeout ({values['last_call_timeout']:g} s) is not below join_timeout "
            f"({values['join_timeout']:g} s): with fewer nodes than the maximum no round completes in time."
        )
    return tuple(found)
