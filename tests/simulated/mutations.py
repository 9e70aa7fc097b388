"""Repairs of the protocol, each taken out, and the law that must miss it."""

from __future__ import annotations
import __future__

import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest

from rdzv_core.backend import Pulse, Token
from rdzv_core.machine import decide as deciding
from rdzv_core.machine import follow as following
from rdzv_core.runtime import following as acting
from rdzv_core.runtime import knowledge, leading
from rdzv_core.runtime.leading import Leading
from rdzv_core.runtime.session import Session
from rdzv_core.testing.memory import Change, MemoryBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A part of the code, as it would be without the repair."""

    owner: Any
    name: str
    value: Any


def without(owner: Any, name: str, *edits: tuple[str, str]) -> Edit:
    """The function ``owner.name`` with pieces of its source replaced; each must be there exactly once."""
    function: FunctionType = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edits:
        assert source.count(old) == 1, f"{name} has {source.count(old)} times: {old}"
        source = source.replace(old, new)
    code = compile(source, f"<{name}, mutated>", "exec", flags=__future__.annotations.compiler_flag)
    found: dict[str, Any] = {}
    exec(code, function.__globals__, found)
    return Edit(owner=owner, name=name, value=found[name])


def constant(owner: Any, name: str, value: Any) -> Edit:
    assert hasattr(owner, name)
    return Edit(owner=owner, name=name, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One repair, how to take it out, and how that shows."""

    rule: str
    says: str
    """What the rule asks for."""
    changes: Callable[[], tuple[Edit, ...]]
    kinds: tuple[str, ...]
    """The kinds of faults that show it."""
    laws: frozenset[str]
    """The invariants that may be the first to break."""
    within: int = 400
    """Schedules within which it must show."""
    make_backend: type[MemoryBackend] = MemoryBackend

    @contextmanager
    def applied(self) -> Iterator[None]:
        changes = self.changes()
        with pytest.MonkeyPatch.context() as patch:
            for change in changes:
                patch.setattr(change.owner, change.name, change.value)
            yield


class StaleTokenWins(MemoryBackend):
    """Writes whatever token it is shown."""

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        with self._writing() as run:
            written = self._store._write(run, state)
            self._tell(Change.REGISTER)
            return written.state, written.token, True


class RevivesTheDead(MemoryBackend):
    """Answers that it knows a node, whatever it holds."""

    def pulse(self, *args: Any, **kwargs: Any) -> Pulse:
        answer = super().pulse(*args, **kwargs)
        return Pulse(known=True, leads=answer.leads, lease_left=answer.lease_left, token=answer.token)


def _never_seated(self: Session, joining: Any) -> Iterator[Any]:
    yield from self._read()
    return False


LOSSES = ("Wipe", "Rollback", "LoseRegister", "LosePages", "loss and death")
OUTAGES = ("Stall", "Partition", "Pause", "Weather")

MUTATIONS = {
    "adrift nodes are candidates": Mutation(
        rule="2",
        says="a node that claims another round is adrift: no candidate",
        changes=lambda: (without(deciding, "stand", ("record.claim is not None or record.done", "record.done")),),
        kinds=("stubborn",),
        laws=frozenset({"I2", "I4"}),
    ),
    "everybody is fit to judge": Mutation(
        rule="3",
        says="only who has been in unbroken contact may take silence for death",
        changes=lambda: (without(Session, "_fit", ("if not pulses or", "return True\n    if not pulses or")),),
        kinds=("Stall",),
        laws=frozenset({"I4", "calm"}),
    ),
    "old rosters are decided from": Mutation(
        rule="3",
        says="a decision whose roster is older than 2 s is made anew",
        changes=lambda: (constant(leading, "FRESH_ENOUGH", math.inf), constant(leading, "STALE", math.inf)),
        kinds=("old roster",),
        laws=frozenset({"I4"}),
    ),
    "a lost member does not matter to the others": Mutation(
        rule="6",
        says="a round that has lost a member is given up by those who have not returned from it",
        changes=lambda: (without(following, "_seated", ("if register.lost:", "if False:")),),
        kinds=("CrashHost",),
        laws=frozenset({"I7"}),
    ),
    "a round without a bootstrap is never given up": Mutation(
        rule="6",
        says="without a bootstrap in time the round is given up",
        changes=lambda: (
            without(following, "_seated", ("if page.waited >= page.bootstrap_timeout:", "if False:")),
            without(
                Session, "_page_wake_at", ("return self._page_since + self._settings.bootstrap_timeout", "return None")
            ),
        ),
        kinds=("CrashHost", "Pause"),
        laws=frozenset({"I7"}),
    ),
    "a missing page is waited for": Mutation(
        rule="6",
        says="without its page for 3 s a node gives the round up",
        changes=lambda: (constant(following, "PAGE_PATIENCE", math.inf), constant(acting, "PAGE_PATIENCE", math.inf)),
        kinds=("no pages",),
        laws=frozenset({"I7"}),
    ),
    "larger than the world": Mutation(
        rule="7",
        says="waiting counts if the round would be larger than the live nodes still in it",
        changes=lambda: (
            without(
                deciding,
                "_waiting",
                ("> inside else 0", "> inside + standing.absent + len(standing.returned) else 0"),
            ),
        ),
        kinds=("Crash", "FailWorkers", "leaving"),
        laws=frozenset({"I7"}),
    ),
    "newcomers of a moment count": Mutation(
        rule="7",
        says="a newcomer counts only when it is steady",
        changes=lambda: (without(deciding, "_waiting", ("[r for r in newcomers if r.steady]", "newcomers")),),
        kinds=("flapping",),
        laws=frozenset({"calm"}),
    ),
    "time as a spare counts": Mutation(
        rule="7",
        says="the time as a spare does not count against the join timeout",
        changes=lambda: (
            without(
                knowledge.Joining,
                "due",
                ("self.deadline if self.spare_since is None else", "self.deadline if True else"),
            ),
            without(Session, "_spare_no_more", ("joining.deadline +=", "joining.deadline += 0.0 *")),
            without(Session, "_wake_at", ("if self._joining.spare_since is None and", "if")),
        ),
        kinds=("spares",),
        laws=frozenset({"I7"}),
    ),
    "nobody is told of a lost member": Mutation(
        rule="8",
        says="survivors of a lost member are told",
        changes=lambda: (constant(deciding, "_lost", lambda *_: 0),),
        kinds=("Crash",),
        laws=frozenset({"I7"}),
    ),
    "a superseded node is not told": Mutation(
        rule="8",
        says="num_nodes_waiting() answers 1 when the round is superseded",
        changes=lambda: (without(Session, "_in_round", ("self.waiting = max(1, self.waiting)", "self.waiting = 0")),),
        kinds=("Pause", "Partition"),
        laws=frozenset({"I6"}),
    ),
    "shutdown closes whatever round it is": Mutation(
        rule="9",
        says="shutdown() closes only the round that the node last returned from",
        changes=lambda: (without(Session, "_owns", ("return seat is not None and", "return True or")),),
        kinds=("late shutdown",),
        laws=frozenset({"I5"}),
    ),
    "shutdown looks once": Mutation(
        rule="9",
        says="shutdown() looks at each attempt whether the register still names its round",
        changes=lambda: (
            without(
                Session,
                "_close",
                ("if close.only_own and not self._owns(register):", "if close.only_own and not owns:"),
                ("    while True:\n", "    owns = self._owns(self._stored)\n    while True:\n"),
            ),
        ),
        kinds=("lost race of a shutdown",),
        laws=frozenset({"I5"}),
    ),
    "a leader leaves without a word": Mutation(
        rule="9",
        says="a leader that leaves decides once without itself",
        changes=lambda: (
            without(Session, "_say_goodbye", ("if self._announced and self._leading is not None and", "if False and")),
        ),
        kinds=("leaving",),
        laws=frozenset({"I7"}),
    ),
    "a join that times out does not look again": Mutation(
        rule="9",
        says="a join timeout withdraws, then looks once more",
        changes=lambda: (constant(Session, "_find_seat", _never_seated),),
        kinds=("too few",),
        laws=frozenset({"I7"}),
        within=2000,
    ),
    "a lost register is not published again": Mutation(
        rule="13",
        says="a node publishes its register again if the store has none or an older one",
        changes=lambda: (
            without(
                Session,
                "_react",
                ("follow(me, self._stored, self._known, self._page)", "follow(me, self._stored, None, self._page)"),
            ),
        ),
        kinds=LOSSES,
        laws=frozenset({"I4", "I5", "I7"}),
    ),
    "an old life is written over a new one": Mutation(
        rule="13",
        says="a node publishes its register again only in the same life; another life supersedes it",
        changes=lambda: (without(acting, "follow", ("stored.life == known.life and ", "")),),
        kinds=("another life",),
        laws=frozenset({"I3"}),
    ),
    "no rollcall": Mutation(
        rule="13",
        says="a leader that cannot read a page asks everybody for a claim",
        changes=lambda: (constant(deciding, "_rollcall", lambda *_: None),),
        kinds=("loss and death",),
        laws=frozenset({"I2", "I4", "calm"}),
    ),
    "no hold": Mutation(
        rule="13",
        says="a leader that met a loss decides nothing for two intervals",
        changes=lambda: (constant(deciding, "HOLD_INTERVALS", 0.0),),
        kinds=LOSSES,
        laws=frozenset({"I2", "I4", "calm"}),
    ),
    "the store never says that it does not know": Mutation(
        rule="13",
        says="a pulse whose record the store has lost is answered: not known",
        changes=lambda: (),
        kinds=("Wipe", "Stall"),
        laws=frozenset({"I6", "I7"}),
        make_backend=RevivesTheDead,
    ),
    "nobody is released from the exit barrier": Mutation(
        rule="15",
        says="a done node is released when others re-form",
        changes=lambda: (constant(Session, "_release", lambda *_: None),),
        kinds=("uneven end",),
        laws=frozenset({"I7"}),
    ),
    "overstayers block for ever": Mutation(
        rule="16",
        says="a member that stays too long after it was told is adrift",
        changes=lambda: (
            without(
                leading,
                "decide",
                ("None if timers.told_since is None else timers.told_since", "None if True else 0.0"),
            ),
        ),
        kinds=("stubborn",),
        laws=frozenset({"I7"}),
    ),
    "a stale token wins": Mutation(
        rule="level 1",
        says="a stale token never wins",
        changes=lambda: (),
        kinds=("LoseLease", "Rival", "Pause"),
        laws=frozenset({"I1", "I2", "I3", "I4", "I5"}),
        make_backend=StaleTokenWins,
    ),
    # Mistakes that the simulator found in the session and the leader: each would be found again.
    "a new leader does not sleep": Mutation(
        rule="found",
        says="a leader that has not read the register waits for it",
        changes=lambda: (
            without(
                Session,
                "_wake_at",
                ("if self._leading is not None and self._token_read:", "if self._leading is not None:"),
            ),
        ),
        kinds=("Crash",),
        laws=frozenset({"sound"}),
    ),
    "a page of a round that was given up is waited for": Mutation(
        rule="found",
        says="nothing is due for a round that was given up",
        changes=lambda: (
            without(
                Session,
                "_page_wake_at",
                ("if self._stored is None or self._stored.round <= self._left:", "if self._stored is None:"),
            ),
        ),
        kinds=("no pages",),
        laws=frozenset({"sound"}),
    ),
    "silence proves death after a loss of data": Mutation(
        rule="found",
        says="after a loss of data silence proves nothing for a TTL",
        changes=lambda: (
            constant(Session, "_doubt_silence", lambda _: None),
            without(Leading, "_view", ("fit = False", "pass")),
        ),
        kinds=("forgotten member",),
        laws=frozenset({"calm"}),
    ),
    "a leader with rules of its own stays": Mutation(
        rule="found",
        says="a leader whose rules are not those of most lets another lead before the first round",
        changes=lambda: (constant(deciding, "_outvoted", lambda *_: False),),
        kinds=("other rules",),
        laws=frozenset({"I7"}),
    ),
    "an overstayer is taken for a newcomer": Mutation(
        rule="found",
        says="a member that the next round was formed without is adrift until it announces again",
        changes=lambda: (without(leading, "decide", ("if timers.overstayed:", "if False:")),),
        kinds=("stubborn",),
        laws=frozenset({"calm"}),
        within=600,
    ),
    "a round that comes back is not reached again": Mutation(
        rule="found",
        says="when a rollback brings a round back its store is reached anew",
        changes=lambda: (without(Session, "_adopt", ('self._connecting = ""', "pass")),),
        kinds=("ForgetRound",),
        laws=frozenset({"sound"}),
    ),
    "members wait for a rank 0 that has given up": Mutation(
        rule="found",
        says="a round that is to re-form before it has a store is given up",
        changes=lambda: (without(following, "_seated", ("if register.waiting and", "if False and")),),
        kinds=("ForgetPages",),
        laws=frozenset({"I7"}),
    ),
    "a node without a page is no spare": Mutation(
        rule="found",
        says="who was not in the round that the register names is a spare, also if it could not read its page",
        changes=lambda: (
            without(following, "_at_barrier", ("Wait(spare=_not_needed(me, register, page)", "Wait(spare=False")),
        ),
        kinds=("no pages",),
        laws=frozenset({"I7"}),
    ),
    "newcomers begin a finished job again": Mutation(
        rule="found",
        says="a run whose members have all finished ends, also if others wait",
        changes=lambda: (
            without(leading, "decide", ("finish = _finish(view, standing, timers, fresh, by, at)", "finish = None")),
        ),
        kinds=("newcomer at the end",),
        laws=frozenset({"I5"}),
    ),
}
