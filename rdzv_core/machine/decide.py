"""What a leader writes.

``decide`` owns rules 3, 4, 5, 7, 8, 13, 15 and 16 of the protocol: may a round complete, when, with whom, and what
must be told to the members of the present one. It is called whenever the roster changes, a pulse is answered, or
the time comes that it asked for; it answers with the next register or with the reason why not, and in either case
with the timers to hand back next time. It reads no clock: ``now`` is the leader's own monotonic time.

What wins when two rules meet: closed is final; a hold (rule 13) lets nothing be written; a run whose last live
members have all finished ends, also if others wait; a round that can complete completes; only then are members told
anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdzv_core.machine.attendance import some
from rdzv_core.machine.placement import place
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Closed, Register
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.machine.standing import Standing, View, stand

__all__ = ["Decision", "Fresh", "Hold", "Timers", "decide"]

HOLD_INTERVALS = 2.0
"""Keep-alive intervals for which a leader that met lost data waits for nodes to say what they know (rule 13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Random words for what this decision may create."""

    life: str
    round_id: str
    write_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Nothing is decided before ``until``, for one cause."""

    cause: str
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """What a leader remembers between two decisions. A new leader starts with none of it."""

    min_since: float | None = None
    """When this leader first saw ``min_nodes`` candidates after the present round, without a break since."""
    min_round: str = ""
    told_since: float | None = None
    """When this leader first saw the members of the present round told to re-form."""
    told_round: str = ""
    short_since: float | None = None
    """When this leader first saw that the nodes left cannot make a round, since others have finished."""
    hold: Hold | None = None
    overstayed: frozenset[tuple[str, int]] = frozenset()
    """Ids and ``seq`` of members that the last round was formed without: adrift until they announce again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer of :func:`decide`."""

    register: Register | None
    """What to write; None for nothing."""
    seats: tuple[str, ...] = ()
    """With a new round: its members in order of rank, to be published before the register is written."""
    wake_at: float | None = None
    """When to ask again even if nothing has changed."""
    outvoted: bool = False
    """Most nodes play by other rules than this leader, and no register binds them yet: it should not lead."""
    timers: Timers
    why: str


def decide(
    view: View, rules: Rules, policy: Policy, timers: Timers, now: float, fresh: Fresh, *, by: str, at: str
) -> Decision:
    """Say what the leader is to write.

    Args:
        view: The register and the roster, both as just read.
        rules: The leader's rules; the register's own win once it exists.
        policy: The leader's policy.
        timers: What the previous decision of this leader handed back.
        now: Seconds on the leader's monotonic clock.
        fresh: Random words to name a new life, round and write with.
        by: The leader's id, for people.
        at: Wall time as text, for people.
    """
    register = view.register
    if register is not None:
        if register.closed is not None:
            return Decision(register=None, timers=timers, why="the run is closed")
        if register.rules != rules:
            return Decision(register=None, timers=timers, why="the run is played by other rules")
    elif _outvoted(view.records, rules):
        return Decision(register=None, outvoted=True, timers=timers, why="most nodes play by other rules")
    if timers.overstayed:
        view = replace(view, records=tuple(r for r in view.records if (r.node_id, r.seq) not in timers.overstayed))
    timers = _told(register, timers, now)
    loss = _loss(view)
    if loss is None:
        timers = replace(timers, hold=None)
    else:
        held = _hold(loss, view, rules, timers, now, fresh)
        if held is not None:
            return held

    overstay_at = None if timers.told_since is None else timers.told_since + policy.leave_timeout
    standing = stand(view, overstayed=overstay_at is not None and now >= overstay_at)
    finish = _finish(view, standing, timers, fresh, by, at)
    if finish is not None:
        return finish
    completion = _complete(view, standing, rules, policy, timers, now, fresh)
    if completion.register is not None:
        return completion
    short = _fall_short(view, standing, rules, policy, completion.timers, now, fresh, by, at)
    if short is not None:
        return short
    completion = replace(completion, timers=replace(completion.timers, short_since=None))
    told = _tell(view, standing, rules, policy, fresh)
    if told is not None:
        return replace(completion, register=told, why=told.reason or "the round stands again")
    wake_at = _earliest(completion.wake_at, overstay_at if standing.inside else None)
    return replace(completion, wake_at=wake_at)


def _told(register: Register | None, timers: Timers, now: float) -> Timers:
    if register is None or not register.disturbed:
        return replace(timers, told_since=None, told_round="")
    if timers.told_since is None or timers.told_round != register.round_id:
        return replace(timers, told_since=now, told_round=register.round_id)
    return timers


# --- rule 13: data that the store has lost ------------------------------------------------------------------


def _hold(cause: str, view: View, rules: Rules, timers: Timers, now: float, fresh: Fresh) -> Decision | None:
    """Hold still for two intervals after meeting a loss, once per loss, so that nodes can say what they know."""
    rollcall = _rollcall(view, fresh)
    if timers.hold is None or timers.hold.cause != cause or rollcall is not None:
        # The time counts from when nodes can hear the rollcall: it may have been lost together with the register.
        hold = Hold(cause=cause, until=now + HOLD_INTERVALS * rules.interval)
        timers = replace(timers, hold=hold)
        return Decision(register=rollcall, wake_at=hold.until, timers=timers, why=f"holding: {cause}")
    if now < timers.hold.until:
        return Decision(register=None, wake_at=timers.hold.until, timers=timers, why=f"holding: {cause}")
    return None


def _loss(view: View) -> str | None:
    register = view.register
    if register is None:
        if any(r.left > 0 or r.claim is not None for r in view.records):
            return "the register is empty, yet nodes have been in rounds"
        return None
    if register.round_id and view.members is None:
        return f"the members of round {register.round} ({register.round_id}) cannot be read"
    for record in view.records:
        claim = record.claim
        if claim is not None and claim.round >= register.round and claim.round_id != register.round_id:
            return f"a node claims round {claim.round} ({claim.round_id}), which the register does not know"
    return None


def _rollcall(view: View, fresh: Fresh) -> Register | None:
    register = view.register
    if register is None or view.members is not None or not register.round_id or register.rollcall:
        return None
    return _next(register, fresh, rollcall=True, reason="the list of members is lost: everybody answer")


# --- rules 3, 4, 5: a new round ------------------------------------------------------------------------------


def _complete(
    view: View, standing: Standing, rules: Rules, policy: Policy, timers: Timers, now: float, fresh: Fresh
) -> Decision:
    """Form a round if one may be formed now; else say what is missing."""
    candidates = [r for r in (*standing.returned, *standing.newcomers) if r.plays_by(rules)]
    count = len(candidates)
    if count < rules.min_nodes:
        why = f"{count} of at least {rules.min_nodes} nodes are at the barrier"
        return Decision(register=None, timers=replace(timers, min_since=None), why=why)
    round_id = view.register.round_id if view.register is not None else ""
    if timers.min_since is None or timers.min_round != round_id:
        timers = replace(timers, min_since=now, min_round=round_id)
    if standing.inside:
        why = f"still in the round: {_names(standing.inside)}"
        return Decision(register=None, timers=timers, why=why)
    if not standing.settled:
        why = f"silent members that are not yet known to be dead: {standing.absent - standing.lost}"
        return Decision(register=None, timers=timers, why=why)
    full = count >= rules.max_nodes
    patience = min(policy.regroup, policy.last_call) if standing.returned else policy.last_call
    assert timers.min_since is not None
    due = timers.min_since + patience
    if not full and now < due:
        why = f"{count} of at most {rules.max_nodes} nodes are at the barrier; last call ends in {due - now:.1f} s"
        return Decision(register=None, wake_at=due, timers=timers, why=why)
    return _form(view, standing, candidates[: rules.max_nodes], rules, policy, timers, fresh)


def _form(
    view: View,
    standing: Standing,
    chosen: Sequence[Record],
    rules: Rules,
    policy: Policy,
    timers: Timers,
    fresh: Fresh,
) -> Decision:
    seats = place(policy.placement, chosen, view.members or {})
    last = max((r.left for r in view.records), default=0)
    register = view.register
    if register is None:
        register = Register(life=fresh.life, revision=0, write_id="", rules=rules)
    number = 1 + max(last, register.round)
    reason = f"round {number} with {len(seats)} {'member' if len(seats) == 1 else 'members'}"
    if standing.overstayers:
        reason += f"; overstayed in the last one: {_names(standing.overstayers)}"
    formed = Register(
        life=register.life,
        revision=register.revision + 1,
        write_id=fresh.write_id,
        rules=rules,
        round=number,
        round_id=fresh.round_id,
        world=len(seats),
        reason=reason,
    )
    overstayed = timers.overstayed | {(r.node_id, r.seq) for r in standing.overstayers}
    return Decision(register=formed, seats=seats, timers=replace(timers, overstayed=overstayed), why=reason)


def _outvoted(records: Sequence[Record], rules: Rules) -> bool:
    """Say whether more nodes want other rules; of equally many, the first to arrive has the say."""
    votes = Counter((r.min_nodes, r.max_nodes) for r in records)  # in order of arrival, which breaks a tie
    return bool(votes) and max(votes, key=votes.__getitem__) != (rules.min_nodes, rules.max_nodes)


# --- rule 15: the end of a job -------------------------------------------------------------------------------


def _finish(view: View, standing: Standing, timers: Timers, fresh: Fresh, by: str, at: str) -> Decision | None:
    """End the run if its exit barrier cannot, and all who are left of the round have finished.

    It cannot if members are lost, nor if the members were told to re-form before the last of them had finished. Whoever
    waits then comes too late: a round of newcomers would begin the finished job again.
    """
    register = view.register
    if register is None or not (standing.lost or register.disturbed):
        return None
    if not standing.settled or standing.returned:
        return None
    present = (*standing.inside, *standing.finished)
    if not present or not all(r.done for r in present):
        return None
    reason = f"all who are left of round {register.round} have finished ({len(present)}); lost: {standing.lost}"
    closed = Closed(by=by, outcome="success", reason=reason, at=at)
    return Decision(register=_next(register, fresh, closed=closed, reason=reason), timers=timers, why=reason)


def _fall_short(
    view: View,
    standing: Standing,
    rules: Rules,
    policy: Policy,
    timers: Timers,
    now: float,
    fresh: Fresh,
    by: str,
    at: str,
) -> Decision | None:
    """End the run if the nodes that must go on are too few, since others have finished and will not return."""
    register = view.register
    candidates = len(standing.returned) + len(standing.newcomers)
    if (
        register is None
        or not register.finished
        or standing.inside
        or not standing.settled
        or not 0 < candidates < rules.min_nodes
    ):
        return None
    if timers.short_since is None:
        timers = replace(timers, short_since=now)
    due = (timers.short_since or 0.0) + policy.last_call
    why = (
        f"{candidates} of at least {rules.min_nodes} nodes are left to go on after round {register.round}, "
        f"in which {register.finished} had already finished"
    )
    if now < due:
        return Decision(register=None, wake_at=due, timers=timers, why=why)
    closed = Closed(by=by, outcome="failed", reason=why, at=at)
    return Decision(register=_next(register, fresh, closed=closed, reason=why), timers=timers, why=why)


# --- rules 7, 8: what the members of the present round are told -----------------------------------------------


def _tell(view: View, standing: Standing, rules: Rules, policy: Policy, fresh: Fresh) -> Register | None:
    """Write ``waiting`` and ``lost`` when they change between zero and not zero, and who has finished by then."""
    register = view.register
    if register is None or not register.round_id:
        return None
    waiting, lost = _waiting(standing, rules), _lost(standing, rules, policy)
    finished = sum(1 for r in (*standing.inside, *standing.finished) if r.done) if waiting or lost else 0
    same = bool(waiting) == bool(register.waiting) and bool(lost) == bool(register.lost)
    if same and finished <= register.finished:
        return None
    return _next(
        register,
        fresh,
        waiting=waiting,
        lost=lost,
        finished=max(finished, register.finished) if waiting or lost else 0,
        reason=_told_why(view, standing, waiting, lost),
    )


def _waiting(standing: Standing, rules: Rules) -> int:
    finishing = any(r.done for r in (*standing.inside, *standing.finished))
    newcomers = [r for r in standing.newcomers if r.plays_by(rules)]
    if not standing.broken:
        # The end of the job is near once a member has finished: no restart for the sake of a newcomer.
        newcomers = [] if finishing else [r for r in newcomers if r.steady]
    waiting = len(standing.returned) + len(newcomers)
    inside = len(standing.inside)
    # A member that has left always counts: those inside are then fewer than the most that may be.
    return waiting if min(rules.max_nodes, inside + waiting) > inside else 0


def _lost(standing: Standing, rules: Rules, policy: Policy) -> int:
    if policy.restart_on_node_loss == "never":
        return 0
    if policy.restart_on_node_loss == "if_possible":
        left = len(standing.inside) + len(standing.returned) + len(standing.newcomers)
        return standing.lost if left >= rules.min_nodes else 0
    return standing.lost


def _told_why(view: View, standing: Standing, waiting: int, lost: int) -> str:
    parts = []
    if lost and view.members is not None:
        parts.append("lost: " + some([f"{n} (rank {view.members[n]})" for n in view.gone], 4))
    elif lost:
        parts.append(f"members lost: {lost}")
    if waiting:
        parts.append("at the barrier: " + some([r.addr for r in (*standing.returned, *standing.newcomers)], 4))
    return "; ".join(parts)


# --- small pieces --------------------------------------------------------------------------------------------


def _next(register: Register, fresh: Fresh, **changes: object) -> Register:
    return replace(register, revision=register.revision + 1, write_id=fresh.write_id, **changes)  # type: ignore[arg-type]


def _names(records: Sequence[Record]) -> str:
    return some([r.who for r in records], 4)


def _earliest(*times: float | None) -> float | None:
    return min((t for t in times if t is not None), default=None)
