"""The plugins of the hooks: found, guarded, called.

``RDZV_HOOKS`` names the plugins to load, with commas between them; set but empty it means none.
``RDZV_TRACE_HOOKS=1`` logs every call. No plugin can harm the rendezvous: one that breaks on its way in is left
out, one that raises is logged, and placement is given one second.
"""

from __future__ import annotations

import inspect
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pluggy

from rdzv_core.api import Observers, Placed
from rdzv_core.discovery import HOOKS, Discovery
from rdzv_core.events import Event
from rdzv_core.hooks import specs
from rdzv_core.hooks.background import Background
from rdzv_core.machine.record import Record

__all__ = ["Hooks"]

log = logging.getLogger(__name__)

PLACEMENT_DEADLINE = 1.0
"""Seconds that a placement hook may take; all nodes of the round wait for it."""
ATTRIBUTES_LIMIT = 1024
"""Bytes of names and values that a node may tell of itself; every leader reads those of all nodes."""


class Hooks:
    """The hooks of this process. Plugins are loaded when the first hook is called. Any thread may call.

    Args:
        discovery: Where plugins are found; None for what is installed.
        environ: Where the switches are read; None for ``os.environ``.
    """

    def __init__(self, discovery: Discovery | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        self._discovery = Discovery() if discovery is None else discovery
        self._environ = os.environ if environ is None else environ
        self._manager: pluggy.PluginManager | None = None
        self._lock = threading.Lock()
        self._told: set[tuple[str, str]] = set()
        self._events = Background(self._tell_watchers)
        self._placing = threading.Lock()

    @property
    def manager(self) -> pluggy.PluginManager:
        """The pluggy manager, with all plugins registered."""
        with self._lock:
            if self._manager is None:
                self._manager = self._load()
            return self._manager

    def observers(self, run_id: str) -> Observers:
        """The hooks, as a handler of ``run_id`` tells and asks them."""
        return Observers(
            events=self.event,
            attributes=self.node_attributes(),
            before_join=self.veto,
            place=lambda members, previous: self.place(run_id, members, previous),
        )

    def event(self, event: Event) -> None:
        """Let all watchers have ``event``, soon; an event sink."""
        if self.manager.hook.rdzv_event.get_hookimpls():
            self._events(event)

    def drain(self, timeout: float) -> bool:
        """Wait until watchers have had all events, for ``timeout`` seconds at most; tells whether they have."""
        return self._events.drain(timeout)

    def node_attributes(self) -> dict[str, str]:
        """What the plugins say of this node, merged; what is no short text is left out, and the log says so."""
        merged: dict[str, str] = {}
        for plugin, call in self._each("rdzv_node_attributes"):
            answer = self._guarded(plugin, "rdzv_node_attributes", call)
            if isinstance(answer, Mapping):
                for key, value in answer.items():
                    _keep(merged, key, value, plugin)
            elif answer is not None:
                log.warning("Hook plugin '%s' answered %r to rdzv_node_attributes; no dictionary.", plugin, answer)
        return merged

    def veto(self, run_id: str, node_id: str) -> str | None:
        """Why this node must not join, in one sentence, or None if it may. The first objection is final."""
        checks = self._each("rdzv_before_join")
        objections = (_objection(plugin, call, run_id, node_id) for plugin, call in checks)
        return next((objection for objection in objections if objection is not None), None)

    def place(
        self,
        run_id: str,
        members: Sequence[Record],
        previous: Mapping[str, int],
        deadline: float = PLACEMENT_DEADLINE,
    ) -> Placed:
        """Ask for an order of ``members``, for ``deadline`` seconds at most. Raises nothing.

        Args:
            run_id: The run.
            members: The members of the new round, in the order that the option ``placement`` gives.
            previous: The ranks of the last round, by node id.
            deadline: In seconds. A plugin that takes longer is left to itself, and not asked again before it
                has come back.
        """
        hook = self.manager.hook.rdzv_place
        if not hook.get_hookimpls():
            return Placed()
        if not self._placing.acquire(blocking=False):
            return Placed(failure="The hook has not come back from an earlier round.")
        shown = tuple(_member(record, previous) for record in members)
        answers: queue.SimpleQueue[Placed] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(_checked(hook(run_id=run_id, members=shown), [m.node_id for m in shown]))
            except BaseException as error:  # a SystemExit would end this thread without an answer
                answers.put(Placed(failure=f"It raised {type(error).__name__}: {error}"))
            finally:
                self._placing.release()

        threading.Thread(target=ask, name="rdzv-placement-hook", daemon=True).start()
        try:
            return answers.get(timeout=deadline)
        except queue.Empty:
            return Placed(failure=f"It took longer than {deadline:g} s.")

    def _load(self) -> pluggy.PluginManager:
        manager = pluggy.PluginManager(specs.PROJECT)
        manager.add_hookspecs(specs)
        if self._environ.get("RDZV_TRACE_HOOKS", "") not in ("", "0"):
            manager.add_hookcall_monitoring(_before_call, _after_call)
        for name, plugin in self._discovery.load_all(HOOKS, self._wanted()).items():
            self._admit(manager, name, plugin)
        return manager

    def _admit(self, manager: pluggy.PluginManager, name: str, plugin: Any) -> None:
        try:
            instance = plugin() if inspect.isclass(plugin) else plugin
            hash(instance)  # pluggy will want to, when one plugin is called alone
            manager.register(instance, name=name)
            manager.check_pending()
        except Exception as error:
            if manager.has_plugin(name):
                manager.unregister(name=name)
            why = f"cannot be used as a hook plugin: {error}"
            self._discovery.tell(self._discovery.reject(HOOKS, name, why, error))

    def _wanted(self) -> list[str] | None:
        chosen = self._environ.get("RDZV_HOOKS")
        return None if chosen is None else [name.strip() for name in chosen.split(",") if name.strip()]

    def _each(self, hook: str) -> Iterator[tuple[str, Callable[..., list[Any]]]]:
        """Each plugin that implements ``hook``, in pluggy's order, and the hook as a call of that one alone."""
        manager = self.manager
        seen: list[str] = []
        for implementation in reversed(getattr(manager.hook, hook).get_hookimpls()):
            if implementation.plugin_name not in seen:
                seen.append(implementation.plugin_name)
                others = [p for p in manager.get_plugins() if p is not implementation.plugin]
                yield implementation.plugin_name, manager.subset_hook_caller(hook, others)

    def _tell_watchers(self, event: Event) -> None:
        for plugin, call in self._each("rdzv_event"):
            self._guarded(plugin, "rdzv_event", call, event=event)

    def _guarded(self, plugin: str, hook: str, call: Callable[..., list[Any]], **arguments: Any) -> Any:
        try:
            answers = call(**arguments)
        except Exception:
            if (plugin, hook) not in self._told:
                self._told.add((plugin, hook))
                log.exception("Hook plugin '%s' raised in %s; later failures of it are not told.", plugin, hook)
            return None
        return answers[0] if answers else None


def _keep(merged: dict[str, str], key: Any, value: Any, plugin: str) -> None:
    if not isinstance(key, str) or not isinstance(value, str):
        log.warning("Hook plugin '%s': the attribute %r=%r is no text; left out.", plugin, key, value)
    elif key not in merged:
        if _size(merged) + _size({key: value}) <= ATTRIBUTES_LIMIT:
            merged[key] = value
        else:
            said = "Hook plugin '%s': the attribute '%s' does not fit into %d bytes with the others; left out."
            log.warning(said, plugin, key, ATTRIBUTES_LIMIT)


def _objection(plugin: str, check: Callable[..., list[Any]], run_id: str, node_id: str) -> str | None:
    try:
        answers = check(run_id=run_id, node_id=node_id)
    except Exception as error:
        return f"The check of hook plugin '{plugin}' broke: {type(error).__name__}: {error}"
    if not answers:
        return None
    return str(answers[0]) or f"Hook plugin '{plugin}' objects without saying why."


def _member(record: Record, previous: Mapping[str, int]) -> specs.Member:
    return specs.Member(
        node_id=record.node_id,
        addr=record.addr,
        attributes=dict(record.attrs),
        domain=record.domain,
        rank_hint=record.rank_hint,
        previous_rank=previous.get(record.node_id),
    )


def _checked(answer: Any, node_ids: list[str]) -> Placed:
    if answer is None:
        return Placed()
    order = [str(node_id) for node_id in answer]
    if sorted(order) == sorted(node_ids):
        return Placed(order=tuple(order))
    strange = [node_id for node_id in order if node_id not in node_ids]
    missing = [node_id for node_id in node_ids if node_id not in order]
    return Placed(
        failure=f"It did not return each member once: {len(order)} ids for {len(node_ids)} members, "
        f"missing {missing[:3]}, unknown {strange[:3]}."
    )


def _size(attributes: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in attributes.items())


# Traces are warnings, because whoever asked for them wants to see them where nobody has set up logging.
def _before_call(hook: str, implementations: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    plugins = ", ".join(i.plugin_name for i in reversed(implementations)) or "nobody"
    log.warning("Hook %s(%s) -> %s", hook, ", ".join(f"{k}={v!r}" for k, v in arguments.items()), plugins)


def _after_call(
    outcome: pluggy.Result[Any], hook: str, _implementations: Sequence[Any], _arguments: Mapping[str, Any]
) -> None:
    error = outcome.exception
    log.warning("Hook %s = %s", hook, f"{type(error).__name__}: {error}" if error else repr(outcome.get_result()))
