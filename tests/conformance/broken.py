"""A shelf of backends that are broken on purpose, each by one flaw that somebody's backend has had or could have.

Each names the law that must catch it. To watch one being caught::

    pytest tests/conformance/broken.py -k TestTokenIsContent

pytest collects this file only when it is named; ``test_broken.py`` goes through the whole shelf.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeVar

import pytest

from rdzv_core.backend import Roster
from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.testing.conformance import CoordinationConformance, Power
from rdzv_core.testing.memory import MemoryBackend, MemoryStore, _Lease, _Pages

Flawed = TypeVar("Flawed", bound=type)


@dataclass(frozen=True, kw_only=True)
class Flaw:
    backend: type[MemoryBackend]
    law: str


SHELF: dict[str, Flaw] = {}

TOO_LONG = 5.0
"""Seconds; more than the shelf's laws allow for noticing anything."""


def breaks(law: str) -> Callable[[Flawed], Flawed]:
    """Put a backend on the shelf, under the law that must catch it."""

    def shelve(backend: Flawed) -> Flawed:
        SHELF[backend.__name__] = Flaw(backend=backend, law=law)
        suite = type(f"Test{backend.__name__}", (ShelfSuite,), {"flawed": backend, "__module__": __name__})
        globals()[suite.__name__] = suite
        return backend

    return shelve


class Door:
    """The back door of a memory store."""

    def __init__(self, store: MemoryStore) -> None:
        self.read_register = store.peek
        self.write_register = store.poke
        self.wipe = store.wipe
        self.cut = store.cut
        self.mend = store.mend
        self.lose_next_answer = store.lose_answers
        self._store = store
        self._saved: Any = None

    def snapshot(self) -> None:
        self._saved = self._store.snapshot()

    def roll_back(self) -> None:
        self._store.restore(self._saved)


class ShelfSuite(CoordinationConformance):
    __test__ = False
    powers = frozenset(Power)
    # Short, since nearly every law here waits for what does not come. test_memory.py has the usual times.
    ttl, notice, slack, deadline = 0.3, 0.5, 0.2, 1.0
    flawed: type[MemoryBackend]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__test__ = True

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    @pytest.fixture
    def make_backend(self, store: MemoryStore) -> Any:
        return lambda run_id: self.flawed(store, run_id)

    @pytest.fixture
    def back_door(self, store: MemoryStore) -> Any:
        return self.flawed.door(store) if hasattr(self.flawed, "door") else Door(store)


class TestSound(ShelfSuite):
    """Nothing is broken here: shows that the shelf itself breaks no law."""

    flawed = MemoryBackend


# --- the back door


@breaks("test_the_back_door_has_the_powers_that_it_declares")
class DoorThatPromisesTooMuch(MemoryBackend):
    @staticmethod
    def door(store: MemoryStore) -> Any:
        door = Door(store)
        del door.cut
        return door


# --- level 1: reading and writing


@breaks("test_the_name_is_a_word")
class NameIsASentence(MemoryBackend):
    name = "the memory of this process"


@breaks("test_a_fresh_register_is_empty")
class EmptyIsZeroBytes(MemoryBackend):
    def get_state(self):
        return super().get_state() or (b"", "0-none")


@breaks("test_the_first_write_needs_no_token")
class FirstWriteNeedsAToken(MemoryBackend):
    def set_state(self, state, token=None):
        return None if token is None else super().set_state(state, token)


@breaks("test_a_write_without_a_token_never_overwrites")
class NoTokenOverwrites(MemoryBackend):
    def set_state(self, state, token=None):
        held = self.get_state()
        return super().set_state(state, held[1] if token is None and held else token)


@breaks("test_what_was_written_is_what_everyone_reads")
class LosesAWrite(MemoryBackend):
    def set_state(self, state, token=None):
        if token is None:
            return super().set_state(state)
        held = self.get_state()
        return (state, "9-lost", True) if held and held[1] == token else (*held, False)


@breaks("test_a_write_behind_its_back_is_seen")
class ReadsItsOwnMemory(MemoryBackend):
    _cached = None

    def get_state(self):
        self._cached = self._cached or super().get_state()
        return self._cached

    def set_state(self, state, token=None):
        answer = super().set_state(state, token)
        self._cached = answer and answer[:2]
        return answer


@breaks("test_bytes_are_kept_exactly")
class TrimsNul(MemoryBackend):
    def set_state(self, state, token=None):
        return super().set_state(state.rstrip(b"\0"), token)


# --- level 1: races


class ComparesContent(MemoryBackend):
    """As torch's TCPStore does: whoever finds what it wanted to write takes it for its own."""

    def set_state(self, state, token=None):
        answer = super().set_state(state, token)
        return answer and (*answer[:2], answer[2] or answer[0] == state)


@breaks("test_one_of_many_rivals_wins")
class ChecksThenActs(MemoryBackend):
    def set_state(self, state, token=None):
        held = self.get_state()
        if (held[1] if held else None) != token:
            return held and (*held, False)
        time.sleep(0.02)
        self._store.poke(self._run_id, state)
        return (state, self.get_state()[1], True)


@breaks("test_a_loser_is_shown_what_it_lost_to")
class LoserSeesItsOwn(MemoryBackend):
    def set_state(self, state, token=None):
        answer = super().set_state(state, token)
        return answer and (state, *answer[1:])


@breaks("test_of_rivals_with_equal_bytes_at_most_one_is_told_yes")
class BothAreToldYes(ComparesContent):
    pass


@breaks("test_it_is_safe_from_many_threads")
class OneBufferForAll(MemoryBackend):
    def set_state(self, state, token=None):
        self._buffer = state
        time.sleep(0.005)
        return super().set_state(self._buffer, token)


# --- level 1: tokens


@breaks("test_a_stale_token_never_wins")
class StaleTokenWins(MemoryBackend):
    def set_state(self, state, token=None):
        held = self.get_state()
        return super().set_state(state, held[1] if token and held else token)


@breaks("test_a_stale_token_never_wins_even_if_the_old_bytes_come_back")
class TokenIsContent(MemoryBackend):
    def get_state(self):
        held = super().get_state()
        return held and (held[0], sha256(held[0]).hexdigest())

    def set_state(self, state, token=None):
        held = super().get_state()
        matches = held is not None and token == sha256(held[0]).hexdigest()
        answer = super().set_state(state, held[1] if matches else token)
        return answer and (answer[0], sha256(answer[0]).hexdigest(), answer[2])


@breaks("test_a_stale_token_never_wins_even_if_the_store_counts_again")
class TokenIsACounter(MemoryBackend):
    def get_state(self):
        held = super().get_state()
        return held and (held[0], held[1].split("-")[0])

    def set_state(self, state, token=None):
        held = super().get_state()
        matches = held is not None and token == held[1].split("-")[0]
        answer = super().set_state(state, held[1] if matches else token)
        return answer and (answer[0], answer[1].split("-")[0], answer[2])


@breaks("test_no_token_wins_against_an_emptied_register")
class AnyTokenFillsTheVoid(MemoryBackend):
    def set_state(self, state, token=None):
        return super().set_state(state, token if self.get_state() else None)


@breaks("test_a_damaged_or_foreign_token_is_a_lost_race")
class DamagedTokenCrashes(MemoryBackend):
    def set_state(self, state, token=None):
        if token is not None:
            int(token.partition("-")[0])
        return super().set_state(state, token)


# --- level 1: runs, life and death of a client


@breaks("test_two_runs_never_meet")
class RunsMeet(MemoryBackend):
    def __init__(self, store, run_id):
        super().__init__(store, run_id.replace("/", ":"))


@breaks("test_close_is_idempotent_and_leaves_the_store_alone")
class CloseTakesAllAlong(MemoryBackend):
    def close(self):
        self._store.wipe(self._run_id)
        super().close()


@breaks("test_close_is_idempotent_and_leaves_the_store_alone")
class CloseTwiceCrashes(MemoryBackend):
    def close(self):
        if self._closed:
            raise RuntimeError("closed")
        super().close()


@breaks("test_it_survives_pickling_or_refuses_with_a_sentence")
class PicklesByAccident(MemoryBackend):
    def __reduce__(self):
        return type(self), (threading.Lock(),)


# --- level 1: trouble


@breaks("test_a_lost_connection_is_a_connection_error_in_time")
class LeaksForeignErrors(MemoryBackend):
    def get_state(self):
        try:
            return super().get_state()
        except RendezvousConnectionError:
            raise ConnectionResetError(104, "Connection reset by peer") from None


@breaks("test_a_lost_connection_is_a_connection_error_in_time")
class HangsWithoutAStore(MemoryBackend):
    def set_state(self, state, token=None):
        try:
            return super().set_state(state, token)
        except RendezvousConnectionError:
            time.sleep(ShelfSuite.deadline + 2 * ShelfSuite.slack)
            raise


@breaks("test_the_random_numbers_of_the_job_are_left_alone")
class DrawsFromTheSeededGenerator(MemoryBackend):
    def get_state(self):
        try:
            return super().get_state()
        except RendezvousConnectionError:
            time.sleep(random.uniform(0.001, 0.002))
            return super().get_state()


class SureOfTheUnsure(MemoryBackend):
    def _broken(self, what, *, maybe_applied=False):
        return super()._broken(what)


@breaks("test_an_unsure_write_says_so_or_finds_out")
class SureOfAnUnsureWrite(SureOfTheUnsure):
    pass


# --- the roster


def altered(roster: Roster | None, **changes: Any) -> Roster | None:
    return None if roster is None else replace(roster, **changes)


@breaks("test_a_fresh_roster_is_empty")
class GhostHasWithdrawn(MemoryBackend):
    def roster(self, seen=None, timeout=0.0):
        return altered(super().roster(seen, timeout), withdrawn=frozenset({""}))


@breaks("test_an_announced_node_is_in_everybodys_roster")
class SeesOnlyItsOwn(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        self.mine = {*getattr(self, "mine", ()), node_id}
        return super().announce(node_id, seq, record, ttl, lead=lead)

    def roster(self, seen=None, timeout=0.0):
        roster = super().roster(seen, timeout)
        return roster and replace(
            roster, records=tuple(e for e in roster.records if e.node_id in getattr(self, "mine", ()))
        )


@breaks("test_an_announced_node_is_in_everybodys_roster")
class RecordsAreText(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        return super().announce(node_id, seq, record.decode("utf-8", "replace").encode(), ttl, lead=lead)


@breaks("test_the_roster_is_in_order_of_arrival")
class OrderedByName(MemoryBackend):
    def roster(self, seen=None, timeout=0.0):
        roster = super().roster(seen, timeout)
        return roster and replace(roster, records=tuple(sorted(roster.records, key=lambda e: e.node_id)))


@breaks("test_arrival_is_kept_over_a_new_announce")
class EachAnnounceArrives(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        with self._reading() as run:
            run.remove(node_id)
        return super().announce(node_id, seq, record, ttl, lead=lead)


@breaks("test_who_comes_back_arrives_last")
class ArrivalIsForEver(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        answer = super().announce(node_id, seq, record, ttl, lead=lead)
        self.first = getattr(self, "first", {})
        with self._reading() as run:
            stored = run.records[node_id]
            stored.arrival = self.first.setdefault(node_id, stored.arrival)
        return answer


@breaks("test_a_lower_seq_is_refused")
class LastToArriveIsRight(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        with self._reading() as run:
            if node_id in run.records:
                run.records[node_id].seq = seq
        return super().announce(node_id, seq, record, ttl, lead=lead)


@breaks("test_an_announce_that_comes_twice_does_no_harm")
class SecondDeliveryIsRefused(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        with self._reading() as run:
            if node_id in run.records and run.records[node_id].seq == seq:
                return run.pulse(node_id, self._store.now(), known=False)
        return super().announce(node_id, seq, record, ttl, lead=lead)


@breaks("test_an_announce_that_comes_after_its_withdrawal_is_refused")
class LateAnnounceRaisesTheDead(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        with self._reading() as run:
            run.tombstones.pop(node_id, None)
        return super().announce(node_id, seq, record, ttl, lead=lead)


@breaks("test_a_withdrawal_that_comes_before_its_announce_holds")
class WithdrawalOfNobodyIsNothing(MemoryBackend):
    def withdraw(self, node_id, seq, ttl, *, keep=None):
        with self._reading() as run:
            known = node_id in run.records
        if known:
            super().withdraw(node_id, seq, ttl, keep=keep)


@breaks("test_a_withdrawal_with_a_lower_seq_is_refused")
class LateWithdrawalIsApplied(MemoryBackend):
    def withdraw(self, node_id, seq, ttl, *, keep=None):
        super().withdraw(node_id, seq + 1000, ttl, keep=keep)


@breaks("test_a_withdrawn_node_shows_as_withdrawn_for_one_ttl")
class WithdrawnForEver(MemoryBackend):
    def withdraw(self, node_id, seq, ttl, *, keep=None):
        super().withdraw(node_id, seq, 1000 * ttl, keep=keep)


@breaks("test_a_withdrawn_node_shows_as_withdrawn_for_one_ttl")
class WithdrawnIsMerelyGone(MemoryBackend):
    def roster(self, seen=None, timeout=0.0):
        return altered(super().roster(seen, timeout), withdrawn=frozenset())


@breaks("test_who_comes_back_is_no_longer_withdrawn")
class OnceWithdrawnStaysSo(MemoryBackend):
    def withdraw(self, node_id, seq, ttl, *, keep=None):
        super().withdraw(node_id, seq, ttl, keep=keep)
        self.left = {*getattr(self, "left", ()), node_id}

    def roster(self, seen=None, timeout=0.0):
        return altered(super().roster(seen, timeout), withdrawn=frozenset(getattr(self, "left", ())))


# --- life and death


@breaks("test_an_expired_record_leaves_within_a_second_and_not_before")
class DeadStay(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        return super().announce(node_id, seq, record, 100 * ttl, lead=lead)


@breaks("test_an_expired_record_leaves_within_a_second_and_not_before")
class DiesEarly(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        return super().announce(node_id, seq, record, ttl / 2, lead=lead)


@breaks("test_a_pulse_renews_the_record")
class PulseRenewsNothing(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        with self._reading() as run:
            known = run.records.get(node_id)
            return run.pulse(node_id, self._store.now(), known=known is not None and known.seq == seq)


@breaks("test_no_pulse_revives_an_expired_record")
class PulseRevives(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        self.last = record
        return super().announce(node_id, seq, record, ttl, lead=lead)

    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        answer = super().pulse(node_id, seq, ttl, lead=lead, keep=keep, group=group)
        return answer if answer.known else self.announce(node_id, seq, self.last, ttl, lead=lead)


@breaks("test_a_pulse_of_another_seq_is_not_known")
class PulseIgnoresSeq(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        with self._reading() as run:
            known = run.records.get(node_id)
        return super().pulse(node_id, known.seq if known else seq, ttl, lead=lead, keep=keep, group=group)


@breaks("test_a_wiped_store_knows_nobody")
class ClientThinksItIsKnown(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        return replace(super().pulse(node_id, seq, ttl, lead=lead, keep=keep, group=group), known=True)


# --- the lease


@breaks("test_a_vacant_lease_is_taken_by_whoever_asks")
class LeaseIsForcedUponAll(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        return super().announce(node_id, seq, record, ttl, lead=True)


@breaks("test_the_lease_is_held_by_one")
class AllLead(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        return replace(super().announce(node_id, seq, record, ttl, lead=lead), leads=lead)


@breaks("test_the_lease_is_renewed_by_pulses")
class LeaseIsNotRenewed(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        with self._reading() as run:
            before = None if run.lease is None else run.lease.expires
        answer = super().pulse(node_id, seq, ttl, lead=lead, keep=keep, group=group)
        with self._reading() as run:
            if run.lease is not None and before is not None:
                run.lease.expires = before
        return answer


@breaks("test_the_lease_ends_by_expiry")
class LeaseOutlivesItsOwner(MemoryBackend):
    def announce(self, node_id, seq, record, ttl, *, lead=True):
        answer = super().announce(node_id, seq, record, ttl, lead=lead)
        with self._reading() as run:
            if run.lease is not None:
                run.lease.expires = math.inf
        return answer


@breaks("test_the_lease_ends_by_expiry")
class LeaseIsStolen(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        with self._reading() as run:
            run.lease = None
        return super().pulse(node_id, seq, ttl, lead=lead, keep=keep, group=group)


@breaks("test_a_withdrawal_gives_the_lease_up")
class LeaverTakesTheLeaseAlong(MemoryBackend):
    def withdraw(self, node_id, seq, ttl, *, keep=None):
        with self._reading() as run:
            lease = run.lease
        super().withdraw(node_id, seq, ttl, keep=keep)
        with self._reading() as run:
            run.lease = lease


@breaks("test_a_pulse_without_lead_gives_the_lease_up")
class NobodyStepsDown(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        with self._reading() as run:
            holds = run.lease is not None and run.lease.owner == node_id
        return super().pulse(node_id, seq, ttl, lead=lead or holds, keep=keep, group=group)


@breaks("test_lease_left_says_how_long")
class LeaseLeftIsMilliseconds(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        answer = super().pulse(node_id, seq, ttl, lead=lead, keep=keep, group=group)
        return replace(answer, lease_left=answer.lease_left * 1000)


@breaks("test_an_unknown_node_never_leads")
class StrangerLeads(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        with self._reading() as run:
            if run.lease is None and lead:
                run.lease = _Lease(node_id, self._store.now() + ttl)
        return super().pulse(node_id, seq, ttl, lead=lead, keep=keep, group=group)


@breaks("test_a_pulse_shows_the_present_register")
class PulseIsBlind(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        answer = super().pulse(node_id, seq, ttl, lead=lead, keep=keep, group=group)
        return answer if answer.known else replace(answer, token=None)


# --- waiting for the roster


@breaks("test_a_roster_that_differs_is_returned_at_once")
class ForeignVersionIsTheSame(MemoryBackend):
    def roster(self, seen=None, timeout=0.0):
        if isinstance(seen, str):
            time.sleep(min(timeout, TOO_LONG))
            return None
        return super().roster(seen, timeout)


@breaks("test_a_roster_that_is_the_same_blocks_until_the_timeout")
class RosterNeverWaits(MemoryBackend):
    def roster(self, seen=None, timeout=0.0):
        return super().roster(seen)


@breaks("test_an_announce_wakes_the_roster")
class SleepsThroughAnnounces(MemoryBackend):
    def roster(self, seen=None, timeout=0.0):
        answer = super().roster(seen)
        if answer is None:
            time.sleep(min(timeout, TOO_LONG))
            answer = super().roster(seen)
        return answer


class VersionIs(MemoryBackend):
    """Has another idea of when a roster differs."""

    def version_of(self, run: Any) -> Any:
        raise NotImplementedError

    def roster(self, seen=None, timeout=0.0):
        until = time.monotonic() + min(timeout, TOO_LONG)
        while True:
            whole = super().roster()
            with self._reading() as run:
                version = self.version_of(run)
            if version != seen:
                return replace(whole, version=version)
            if time.monotonic() >= until:
                return None
            time.sleep(0.01)


@breaks("test_a_new_announce_wakes_the_roster")
class VersionIsMembership(VersionIs):
    def version_of(self, run):
        return tuple(run.records)


@breaks("test_a_withdrawal_wakes_the_roster")
class VersionCountsAnnounces(VersionIs):
    def version_of(self, run):
        return run.arrivals


@breaks("test_an_expiry_wakes_the_roster")
class ExpiryIsSilent(MemoryBackend):
    def _wait(self, subject, deadline, expiry):
        return super()._wait(subject, min(deadline, self._store.now() + 2 * TOO_LONG), math.inf)


@breaks("test_changes_compose_to_the_whole")
class ChangeForgetsTheGone(MemoryBackend):
    def roster(self, seen=None, timeout=0.0):
        return altered(super().roster(seen, timeout), gone=frozenset())


@breaks("test_changes_compose_to_the_whole")
class WholeRosterAsChange(MemoryBackend):
    def roster(self, seen=None, timeout=0.0):
        changed = super().roster(seen, timeout)
        return changed and replace(super().roster(), base=changed.base)


# --- waiting for the register


@breaks("test_a_register_that_differs_is_returned_at_once")
class WaitsOnAForeignToken(MemoryBackend):
    def wait_state(self, token, timeout):
        if token is not None and not isinstance(token, str):
            time.sleep(min(timeout, TOO_LONG))
            return None
        return super().wait_state(token, timeout)


@breaks("test_a_register_that_fell_back_is_returned_at_once")
class WaitsForGreater(MemoryBackend):
    def wait_state(self, token, timeout):
        until = time.monotonic() + min(timeout, TOO_LONG)
        while time.monotonic() < until:
            held = self.get_state()
            if held and (token is None or int(held[1].split("-")[0]) > int(token.split("-")[0])):
                return held
            time.sleep(0.01)
        return None


@breaks("test_a_lost_register_ends_the_wait")
class WaitsForTheLost(MemoryBackend):
    def wait_state(self, token, timeout):
        if token is not None and self.get_state() is None:
            time.sleep(min(timeout, TOO_LONG))
        return super().wait_state(token, timeout)


@breaks("test_a_register_that_is_the_same_blocks_until_the_timeout")
class NeverWaits(MemoryBackend):
    def wait_state(self, token, timeout):
        return super().wait_state(token, 0.0)


@breaks("test_a_write_wakes_the_waiters")
class SleepsThroughWrites(MemoryBackend):
    def wait_state(self, token, timeout):
        answer = super().wait_state(token, 0.0)
        if answer is None:
            time.sleep(min(timeout, TOO_LONG))
            answer = super().wait_state(token, 0.0)
        return answer


@breaks("test_giving_up_the_lease_wakes_the_waiters")
class StepsDownInSilence(MemoryBackend):
    def _lead(self, run, node_id, expires, *, wanted):
        run.lead(node_id, expires, wanted=wanted)
        run.leases_given_up = 0


@breaks("test_a_wait_blocks_nobody_else")
class OneLockForAll(MemoryBackend):
    """As a client with one socket and one mutex: whoever waits holds it."""

    def __init__(self, store, run_id):
        super().__init__(store, run_id)
        self._mutex = threading.Lock()

    def wait_state(self, token, timeout):
        with self._mutex:
            return super().wait_state(token, min(timeout, TOO_LONG))

    @contextmanager
    def _writing(self):
        with self._mutex, super()._writing() as run:
            yield run


@breaks("test_close_wakes_the_waiters")
class CloseForgetsTheWaiters(MemoryBackend):
    def close(self):
        threading.Timer(TOO_LONG, super().close).start()


# --- pages


@breaks("test_pages_come_back_as_they_were_published")
class PagesAreSorted(MemoryBackend):
    def publish(self, group, pages, keep):
        super().publish(group, sorted(pages), keep)


@breaks("test_an_absent_page_is_none")
class AbsentPageCrashes(MemoryBackend):
    def page(self, group, index):
        with self._reading() as run:
            return run.pages[group].pages[index]


@breaks("test_pages_are_immutable")
class PagesAreMutable(MemoryBackend):
    def publish(self, group, pages, keep):
        with self._reading() as run:
            run.pages.pop(group, None)
        super().publish(group, pages, keep)


@breaks("test_groups_of_pages_are_apart")
class GroupsMix(MemoryBackend):
    def publish(self, group, pages, keep):
        with self._reading() as run:
            for n, page in enumerate(pages):
                run.pages[f"{group}{n}"] = _Pages((page,), self._store.now() + keep)

    def page(self, group, index):
        return super().page(f"{group}{index}", 0)


# --- how long things are kept


@breaks("test_register_and_pages_survive_their_keep_and_no_longer")
class KeepsForEver(MemoryBackend):
    def withdraw(self, node_id, seq, ttl, *, keep=None):
        super().withdraw(node_id, seq, ttl)


@breaks("test_register_and_pages_survive_their_keep_and_no_longer")
class KeepsTooShort(MemoryBackend):
    def withdraw(self, node_id, seq, ttl, *, keep=None):
        super().withdraw(node_id, seq, ttl, keep=None if keep is None else keep / 2)


@breaks("test_a_leaders_pulse_keeps_register_and_pages")
class LeaderKeepsNothing(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        return super().pulse(node_id, seq, ttl, lead=lead)


@breaks("test_a_leaders_pulse_keeps_register_and_pages")
class LeaderForgetsThePages(MemoryBackend):
    def pulse(self, node_id, seq, ttl, *, lead=True, keep=0.0, group=""):
        return super().pulse(node_id, seq, ttl, lead=lead, keep=keep, group="another")


@breaks("test_a_withdrawal_without_keep_takes_nothing_along")
class LastOneTurnsOffTheLight(MemoryBackend):
    def withdraw(self, node_id, seq, ttl, *, keep=None):
        super().withdraw(node_id, seq, ttl, keep=ttl if keep is None else keep)


# --- forgetting a run


@breaks("test_forget_is_refused_while_nodes_live")
class ForgetsTheLiving(MemoryBackend):
    def forget(self):
        self._store.wipe(self._run_id)


@breaks("test_forget_is_refused_while_nodes_live")
class RefusesWithoutNames(MemoryBackend):
    def forget(self):
        try:
            super().forget()
        except RendezvousError as error:
            raise type(error)("Nodes of the run are still alive.") from None


@breaks("test_forget_drops_everything_of_the_run")
class ForgetsTheRegisterOnly(MemoryBackend):
    def forget(self):
        with self._writing() as run:
            run.register = None


@breaks("test_to_forget_a_run_that_never_was_is_no_error")
class CannotForgetNothing(MemoryBackend):
    def forget(self):
        if self.get_state() is None:
            raise KeyError(self._run_id)
        super().forget()


# --- trouble


@breaks("test_runs_share_nothing_but_the_store")
class OneRosterForAllRuns(MemoryBackend):
    def __init__(self, store, run_id):
        super().__init__(store, run_id)
        self._own_run = run_id

    @contextmanager
    def _reading(self):
        self._run_id = self._own_run
        with super()._reading() as run:
            yield run

    def roster(self, seen=None, timeout=0.0):
        self._run_id = "all"
        return super().roster(seen, timeout)

    def announce(self, node_id, seq, record, ttl, *, lead=True):
        self._run_id = "all"
        return super().announce(node_id, seq, record, ttl, lead=lead)


@breaks("test_each_call_without_a_store_is_a_connection_error_in_time")
class AbsentStoreIsAnAbsentPage(MemoryBackend):
    def page(self, group, index):
        try:
            return super().page(group, index)
        except RendezvousConnectionError:
            return None


@breaks("test_an_unsure_announce_may_be_made_again")
class SureOfAnUnsureAnnounce(SureOfTheUnsure):
    pass
