"""Reads the stanzas under ``tables/`` and plays them on ``decide``.

A stanza is a title and indented lines. Lines set the scene, each until another of its kind:

    rules 2:4                           keep-alive every 5 s, dead after 15 s
    policy last_call=30 regroup=0.5     what is not named has its default
    round 3: a, b lost=1                the register names round 3, id r3, whose members are a (rank 0) and b
    empty                               there is no register
    unreadable / readable               the pages of the round cannot, can be read
    live: a left=3, b done              the roster, in order of arrival
    withdrawn: c                        tombstones
    unfit / fit                         the leader may not, may take silence for death
    new leader                          forget the timers

``at 7`` asks for the decision at that time of the leader's clock, and the line after ``->`` is its answer. What a
decision writes is the register of the lines below it, as in life; after ``at 7, not written`` it is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rdzv_core.machine.decide import Decision, Fresh, Timers, decide
from rdzv_core.machine.record import Claim, Record
from rdzv_core.machine.register import Bootstrap, Closed, Register
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.machine.standing import View

LEADER = "leader"
AT = "2026-11-30 12:00:00 UTC"
ALIASES = {"last_call": float, "regroup": float, "leave_timeout": float}


@dataclass(frozen=True)
class Stanza:
    title: str
    line: int
    lines: tuple[str, ...]


def stanzas(path: Path) -> Iterator[Stanza]:
    """Read a table; comments are passed over."""
    title, begun, lines = "", 0, []
    for number, line in enumerate([*path.read_text().splitlines(), "end"], start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            lines.append(line.strip())
            continue
        if title:
            yield Stanza(title, begun, tuple(lines))
        title, begun, lines = line.strip(), number, []


@dataclass
class Scene:
    """What the lines above have set."""

    rules: Rules = field(default_factory=lambda: Rules(min_nodes=2, max_nodes=4, interval=5.0, ttl=15.0))
    policy: Policy = field(default_factory=Policy)
    register: Register | None = None
    members: dict[str, int] = field(default_factory=dict)
    readable: bool = True
    live: str = ""
    withdrawn: frozenset[str] = frozenset()
    fit: bool = True
    timers: Timers = field(default_factory=Timers)
    words: int = 0

    def play(self, line: str) -> str | None:
        """Take in a line; answers what ``at`` was answered."""
        verb, _, rest = line.partition(" ")
        rest = rest.strip()
        match verb.rstrip(":"):
            case "rules":
                self.rules = rules(rest)
            case "policy":
                self.policy = replace(Policy(), **{k: _number(v) for k, v in _pairs(rest)})
            case "round":
                self._round(rest)
            case "empty":
                self.register, self.members = None, {}
            case "unreadable":
                self.readable = False
            case "readable":
                self.readable = True
            case "live":
                self.live = rest
            case "withdrawn":
                self.withdrawn = frozenset(_names(rest))
            case "fit" | "unfit":
                self.fit = verb == "fit"
            case "new":
                self.timers = Timers()
            case "at":
                now, _, how = rest.partition(",")
                return self._decide(float(now), written="not written" not in how)
            case _:
                raise ValueError(f"no such line: {line}")
        return None

    def _round(self, rest: str) -> None:
        number, _, said = rest.partition(":")
        ids, changes = _split_words(said)
        self.members = {node_id: rank for rank, node_id in enumerate(ids)}
        self.readable = True
        self.register = Register(
            life="life",
            revision=10,
            write_id="before",
            rules=self.rules,
            round=int(number),
            round_id=f"r{int(number)}",
            world=len(ids),
            bootstrap=Bootstrap(addr="h", port=1),
        )
        if changes.pop("closed", None):
            closed = Closed(by="b", outcome="success", reason="all is done", at=AT)
            self.register = replace(self.register, closed=closed)
        if other := changes.pop("rules", None):
            self.register = replace(self.register, rules=rules(other))
        rollcall = bool(changes.pop("rollcall", None))
        self.register = replace(self.register, rollcall=rollcall, **{k: int(v) for k, v in changes.items()})

    def records(self) -> tuple[Record, ...]:
        return tuple(record(text, self.rules) for text in self.live.split(",") if text.strip())

    def view(self) -> View:
        members = self.members if self.readable else None
        if self.register is None or not self.register.round_id:
            members = None
        return View(
            register=self.register,
            records=self.records(),
            withdrawn=self.withdrawn,
            members=members,
            fit=self.fit,
        )

    def _decide(self, now: float, *, written: bool) -> str:
        self.words += 1
        fresh = Fresh(life="new-life", round_id=f"new-{self.words}", write_id=f"w{self.words}")
        decision = decide(self.view(), self.rules, self.policy, self.timers, now, fresh, by=LEADER, at=AT)
        before = self.register
        self.timers = decision.timers
        if decision.register is not None and written:
            self.register = decision.register
            if decision.seats:
                self.members = {node_id: rank for rank, node_id in enumerate(decision.seats)}
                self.readable = True
        return told(decision, before)


def rules(text: str) -> Rules:
    low, _, high = text.partition(":")
    return Rules(min_nodes=int(low), max_nodes=int(high or low), interval=5.0, ttl=15.0)


def record(text: str, default: Rules) -> Record:
    """Read one node: ``a left=3 claim=4/r4 steady done wants=1:2``."""
    (node_id, *_), changes = _split_words(text)
    wants = rules(changes["wants"]) if "wants" in changes else default
    number, _, round_id = changes.get("claim", "").partition("/")
    return Record(
        node_id=node_id,
        seq=1,
        addr=f"host-{node_id}",
        pid=1,
        local_id=0,
        left=int(changes.get("left", 0)),
        claim=Claim(round=int(number), round_id=round_id) if number else None,
        steady="steady" in changes,
        done="done" in changes,
        min_nodes=wants.min_nodes,
        max_nodes=wants.max_nodes,
    )


def told(decision: Decision, before: Register | None) -> str:
    """A decision on one line."""
    after = decision.register
    again = "" if decision.wake_at is None else f", again at {decision.wake_at:g}"
    if after is None:
        return f"nothing{again}: {decision.why}"
    assert after.revision == (0 if before is None else before.revision) + 1
    if after.closed is not None:
        return f"closed, {after.closed.outcome}: {after.closed.reason}"
    if decision.seats:
        return f"round {after.round}: {', '.join(decision.seats)} | {after.reason}"
    if before is not None and after.rollcall and not before.rollcall:
        return f"rollcall{again}: {after.reason}"
    counts = f"waiting={after.waiting} lost={after.lost}"
    finished = f" finished={after.finished}" if after.finished else ""
    return f"told {counts}{finished}{again}: {after.reason}".removesuffix(": ")


def _split_words(text: str) -> tuple[list[str], dict[str, str]]:
    """Names before the first ``key=value`` or flag, and those."""
    ids, changes = [], {}
    for word in re.split(r"[,\s]+", text.strip()):
        key, equals, value = word.partition("=")
        if equals:
            changes[key] = value
        elif key in ("steady", "done", "rollcall", "closed"):
            changes[key] = "1"
        elif key:
            ids.append(key)
    return ids, changes


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        key, _, value = word.partition("=")
        yield key, value


def _number(text: str) -> float | str:
    return float(text) if re.fullmatch(r"[\d.]+", text) else text


def _names(text: str) -> list[str]:
    return [name for name in re.split(r"[,\s]+", text) if name]


def play(stanza: Stanza) -> tuple[str, ...]:
    """The stanza's lines, with each answer as it really is."""
    scene, lines = Scene(), []
    for line in stanza.lines:
        if line.startswith("->"):
            continue
        lines.append(line)
        answer = scene.play(line)
        if answer is not None:
            lines.append(f"-> {answer}")
    return tuple(lines)


def rewritten(path: Path) -> str:
    """The table with each answer as it really is; comments and blank lines stay."""
    actual = {s.line: iter([line for line in play(s) if line.startswith("->")]) for s in stanzas(path)}
    answers: Iterator[str] = iter(())
    out = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        answers = actual.get(number, answers)
        if line.strip().startswith("->"):
            continue
        out.append(line)
        if re.match(r"\s+at ", line):
            out.append(f"  {next(answers)}")
    return "\n".join(out) + "\n"
