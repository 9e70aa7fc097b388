"""The story of a schedule, one line for each thing that happened: when, to whom, what."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rdzv_core.backend import Pulse, Roster
from rdzv_core.events import Event
from rdzv_core.machine.register import Register
from rdzv_core.runtime.orders import Call
from rdzv_core.testing.simulation.agenda import Agenda
from rdzv_core.testing.simulation.plan import Fault
from rdzv_core.wire import decode_record, decode_register

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.node import Node

__all__ = ["Transcript"]


class Transcript:
    """Collects the lines. Pulses that are answered as expected are left out."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.agenda = Agenda()
        self._asked: dict[str, Call] = {}
        self._stories: dict[str, str] = {}
        self._conclusions: dict[str, str] = {}

    def _say(self, who: object, what: str) -> None:
        self.lines.append(f"{self.agenda.now:9.3f}  {who!s:<6}  {what}")

    def fault(self, fault: Fault) -> None:
        """A fault strikes."""
        given = ", ".join(
            f"{f.name}={getattr(fault, f.name)}"
            for f in fields(fault)
            if f.name != "at" and getattr(fault, f.name) != f.default
        )
        self._say("FAULT", f"{type(fault).__name__}({given})")

    def says(self, what: str) -> None:
        """A fault that waited for its moment strikes."""
        self._say("FAULT", what)

    def agent(self, node: Node, state: str) -> None:
        """A launcher enters a state."""
        self._say(node, f"launcher: {state}")

    def event(self, node: Node, event: Event) -> None:
        """A session tells something."""
        self._say(node, f"event: {event.sentence}")

    def pushed(self, node: Node, state: bytes) -> None:
        """The watcher of the register brings news."""
        self._say(node, f"sees {tell(decode_register(state))}")

    def called(self, node: Node, call: Call) -> None:
        """A session asks something of the store."""
        self._note(node)
        self._asked[node.node_id] = call
        if call.name == "pulse":
            return
        self._say(node, f"asks {call.name}{_given(call)}")

    def answered(self, node: Node, answer: Any, error: Exception | None) -> None:
        """The store's answer, or the lack of it, reaches the session."""
        call = self._asked.get(node.node_id)
        name = call.name if call is not None else "?"
        if error is not None:
            self._say(node, f"got {name}: {type(error).__name__}: {error}")
            return
        if name == "pulse" and isinstance(answer, Pulse) and answer.known:
            return
        self._say(node, f"got {name}: {_told(answer)}")

    def decided(self, node: Node) -> None:
        """A leader may have come to another conclusion."""
        why = node.leading.why if node.leading is not None else ""
        shape = re.sub(r"[0-9]+\.[0-9]+", "", why)
        if self._conclusions.get(node.node_id, "") != shape:
            self._conclusions[node.node_id] = shape
            self._say(node, f"decides: {why}")

    def _note(self, node: Node) -> None:
        lines = node.session.journal.story()
        if lines and self._stories.get(node.node_id) != lines[-1]:
            self._stories[node.node_id] = lines[-1]
            self._say(node, f"thinks: {lines[-1].strip().partition('  ')[2]}")


def tell(register: Register | None) -> str:
    """A register in one line."""
    if register is None:
        return "an empty register"
    parts = [f"revision {register.revision}", f"round {register.round}"]
    if register.round_id:
        parts.append(f"({register.round_id[:6]}, {register.world} members)")
    parts.append("bootstrap" if register.bootstrap is not None else "no bootstrap")
    counts = {name: getattr(register, name) for name in ("waiting", "lost", "finished")}
    parts.extend(f"{name} {count}" for name, count in counts.items() if count)
    if register.rollcall:
        parts.append("rollcall")
    if register.closed is not None:
        parts.append(f"CLOSED by {register.closed.by} ({register.closed.outcome})")
    return f"life {register.life[:4]} " + " ".join(parts)


def _given(call: Call) -> str:
    if call.name == "set_state":
        return f": {tell(decode_register(call.args[0]))}"
    if call.name == "announce":
        record = decode_record(call.args[2])
        claim = f", claim {record.claim.round} ({record.claim.round_id[:6]})" if record.claim is not None else ""
        flags = "".join(f", {name}" for name in ("steady", "done") if getattr(record, name))
        return f": seq {record.seq}, left {record.left}{claim}{flags}"
    if call.name == "publish":
        return f" of {call.args[0][:6]}"
    if call.name == "withdraw":
        return f": seq {call.args[1]}"
    return ""


def _told(answer: Any) -> str:
    match answer:
        case Pulse():
            leads = ", leads" if answer.leads else ""
            return ("known" if answer.known else "NOT KNOWN") + leads
        case Roster():
            names = ", ".join(e.node_id for e in answer.records)
            change = (
                f"; change only, gone: {', '.join(sorted(answer.gone)) or 'none'}" if answer.base is not None else ""
            )
            return f"[{names}]{change}"
        case (bytes(), _):
            return tell(decode_register(answer[0]))
        case (bytes(), _, did):
            return f"{'written' if did else 'LOST THE RACE to'} {tell(decode_register(answer[0]))}"
        case bytes():
            return "a page"
        case None:
            return "nothing"
    return str(answer)
