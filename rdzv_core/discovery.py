"""What is installed, found without importing it.

The only reader of installed metadata, for all groups of plugins. Listing imports nothing. Loading one imports that
one. A plugin that breaks is remembered with its error and disturbs nobody else, unless ``RDZV_STRICT_PLUGINS=1``
asks for failures to be raised, which developers of plugins want. Nobody is shadowed in silence: a name that two
distributions claim is refused, with both their names, when it is asked for.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rdzv_core.endpoint import mask_secrets

__all__ = [
    "BACKENDS",
    "HOOKS",
    "SERVERS",
    "Discovery",
    "Failure",
    "Offer",
    "PluginError",
    "installed_offers",
]

log = logging.getLogger(__name__)

BACKENDS = "rdzv_core.backends"
"""Entry points whose names are backends and whose objects create a handler from its parameters."""
SERVERS = "rdzv_core.servers"
"""Entry points whose names are servers for a laptop or a test, and whose objects start one."""
HOOKS = "rdzv_core.hooks"
"""Entry points whose objects are plugins in the sense of pluggy."""


class PluginError(ValueError):
    """A plugin that was asked for cannot be had: it is unknown, broken, or two claim its name.

    A ``ValueError``, since that is what torch raises for a backend that it does not know.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a distribution offers under a name. Nothing of it has been imported yet."""

    group: str
    name: str
    target: str
    """Where it is, as ``module:attribute``; for people."""
    distribution: str
    """Who offers it, with the version: ``rdzv-redis 0.1.0``."""
    load: Callable[[], Any]
    """Imports it; raises whatever the import raises."""

    def __str__(self) -> str:
        return f"'{self.name}' of {self.distribution} ({self.target})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A plugin that was tried and is of no use."""

    group: str
    name: str
    sentence: str
    """Who offers it, and what went wrong."""
    error: BaseException | None
    """What its import raised, if that was the trouble."""


ReadOffers: TypeAlias = Callable[[str], Iterable[Offer]]
"""From a group to what is installed in it."""


def installed_offers(group: str) -> tuple[Offer, ...]:
    """Read the entry points of ``group`` from the metadata of all that is installed."""
    import importlib_metadata

    return tuple(
        Offer(
            group=group,
            name=point.name,
            target=point.value,
            distribution=f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution",
            load=point.load,
        )
        for point in importlib_metadata.entry_points(group=group)
    )


class Discovery:
    """Plugins by group and name, each loaded once at most. Any thread may ask.

    Args:
        read: Where offers come from; asked once per group, when the group is first needed.
        strict: Whether :meth:`load_all` raises what it would remember; None for what the environment says in
            ``RDZV_STRICT_PLUGINS``.
    """

    def __init__(self, read: ReadOffers = installed_offers, *, strict: bool | None = None) -> None:
        self._read = read
        self._strict = strict
        self._offers: dict[str, Mapping[str, tuple[Offer, ...]]] = {}
        self._loaded: dict[tuple[str, str], Any] = {}
        self._failures: dict[tuple[str, str], Failure] = {}

    def names(self, group: str) -> tuple[str, ...]:
        """The names that are offered in ``group``, in alphabetical order. Imports nothing."""
        return tuple(sorted(self._by_name(group)))

    def offers(self, group: str, name: str | None = None) -> tuple[Offer, ...]:
        """All that is offered in ``group``, or there under ``name``; more than one if they clash."""
        by_name = self._by_name(group)
        return tuple(offer for key in sorted(by_name) if name in (None, key) for offer in by_name[key])

    def failures(self, group: str | None = None) -> tuple[Failure, ...]:
        """What has been tried in vain so far, in ``group`` or anywhere."""
        return tuple(f for f in tuple(self._failures.values()) if group in (None, f.group))

    def load(self, group: str, name: str) -> Any:
        """Import what is offered under ``name``, and nothing else.

        Raises:
            PluginError: Nobody offers it, several do, or it is broken; the error of its import is the cause. A
                broken plugin is not tried again.
        """
        key = group, name
        if key in self._loaded:
            return self._loaded[key]
        if key not in self._failures:
            offers = self.offers(group, name)
            if not offers:
                raise PluginError(self._unknown(group, name))
            if len(offers) > 1:
                self._remember(group, name, _clash(offers), None)
            else:
                return self._import(offers[0])
        failure = self._failures[key]
        raise PluginError(failure.sentence) from failure.error

    def reject(self, group: str, name: str, why: str, error: BaseException | None = None) -> PluginError:
        """Remember that what was loaded under ``name`` is of no use after all.

        Args:
            group: Its group.
            name: Its name.
            why: The rest of a sentence that begins with the plugin: ``is not callable``.
            error: What it raised, if anything.

        Returns:
            The error to raise.
        """
        offer = self.offers(group, name)[0]
        self._loaded.pop((group, name), None)
        self._remember(group, name, mask_secrets(f"{offer} {why}"), error)
        return PluginError(self._failures[group, name].sentence)

    def load_all(self, group: str, only: Iterable[str] | None = None) -> dict[str, Any]:
        """Import all that is offered in ``group``, or those of the names in ``only``, by name.

        One that fails is left out, remembered, and named in the log; under ``strict`` it is raised instead.

        Raises:
            PluginError: Under ``strict``, the first failure.
        """
        loaded = {}
        for name in self.names(group) if only is None else only:
            plugin = self.try_load(group, name)
            if plugin is not None:
                loaded[name] = plugin
        return loaded

    def try_load(self, group: str, name: str) -> Any | None:
        """The plugin ``name``, or None if it cannot be had, which the log then says.

        Raises:
            PluginError: Under ``strict``, if it cannot be had.
        """
        try:
            return self.load(group, name)
        except PluginError as error:
            self.tell(error)
            return None

    def tell(self, error: PluginError) -> None:
        """Log a failure that the caller survives; raise it under ``strict``.

        Raises:
            PluginError: ``error``, under ``strict``.
        """
        if self.is_strict:
            raise error
        log.warning("%s", error)

    @property
    def is_strict(self) -> bool:
        """Whether failures are raised rather than remembered."""
        if self._strict is not None:
            return self._strict
        return os.environ.get("RDZV_STRICT_PLUGINS", "") not in ("", "0")

    def _by_name(self, group: str) -> Mapping[str, tuple[Offer, ...]]:
        if group not in self._offers:
            by_name: dict[str, tuple[Offer, ...]] = {}
            for offer in self._read(group):
                by_name[offer.name] = (*by_name.get(offer.name, ()), offer)
            self._offers[group] = by_name
        return self._offers[group]

    def _import(self, offer: Offer) -> Any:
        try:
            plugin = offer.load()
        except (Exception, SystemExit) as error:
            sentence = f"{offer} cannot be imported: {type(error).__name__}: {error}"
            self._remember(offer.group, offer.name, mask_secrets(sentence), error)
            raise PluginError(self._failures[offer.group, offer.name].sentence) from error
        return self._loaded.setdefault((offer.group, offer.name), plugin)

    def _remember(self, group: str, name: str, sentence: str, error: BaseException | None) -> None:
        failure = Failure(group=group, name=name, sentence=sentence, error=error)
        self._failures.setdefault((group, name), failure)

    def _unknown(self, group: str, name: str) -> str:
        names = self.names(group)
        near = difflib.get_close_matches(name, names, n=1)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        return f"Nothing is installed as '{name}' in {group}. Installed: {', '.join(names) or 'nothing'}.{guess}"


def _clash(offers: tuple[Offer, ...]) -> str:
    claims = " and by ".join(f"{offer.distribution} ({offer.target})" for offer in offers)
    return f"The name '{offers[0].name}' in {offers[0].group} is claimed by {claims}; uninstall all but one."
