"""The laws of level 1: one register, written by compare-and-set."""

from __future__ import annotations

import functools
import pickle
import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from rdzv_core.backend import RendezvousBackend, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.testing.suite import BackDoor, ConformanceSuite, MakeBackend, Power, close, needs, together

__all__ = ["RegisterConformance"]

RIVALS = 8
NASTY_RUN_IDS = (
    "a",
    "A",
    "a b",
    "a/b",
    "a//b",
    "../a",
    "a\\b",
    "a:b",
    "a.b",
    "a*",
    "a?b",
    "a%2Fb",
    "{a}",
    "a}{b",
    "a\nb",
    "'a'",
    '"a"',
    "ä",
    "a\u0308",
    "日本",
    "-a",
    "x" * 300,
    "x" * 300 + "y",
)
"""Run ids that users do choose, and that come near each other if a backend is careless with its keys."""


class RegisterConformance(ConformanceSuite):
    """Inherit this to try a level-1 backend."""

    largest: ClassVar[int] = 1_000_000
    """The largest register, in bytes, that the backend promises to keep."""

    # --- reading and writing

    def test_the_name_is_a_word(self, backend: RendezvousBackend) -> None:
        """A backend has the name under which users ask for it."""
        assert isinstance(backend.name, str)
        assert backend.name.split() == [backend.name]

    def test_a_fresh_register_is_empty(self, backend: RendezvousBackend, back_door: BackDoor, run_id: str) -> None:
        """A register that nobody wrote is empty; reading it does not change that."""
        assert backend.get_state() is None
        assert backend.get_state() is None
        assert back_door.read_register(run_id) is None

    def test_the_first_write_needs_no_token(self, backend: RendezvousBackend, back_door: BackDoor, run_id: str) -> None:
        """A write without a token wins if the register is empty, and is told what it wrote."""
        state, token, did_set = written(backend.set_state(b"first"))
        assert (state, did_set) == (b"first", True)
        assert back_door.read_register(run_id) == b"first"
        assert backend.get_state() == (b"first", token)

    def test_a_write_without_a_token_never_overwrites(
        self, backend: RendezvousBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """No token means "only if it is empty"."""
        _, token, _ = written(backend.set_state(b"first"))
        assert backend.set_state(b"second") == (b"first", token, False)
        assert back_door.read_register(run_id) == b"first"

    def test_what_was_written_is_what_everyone_reads(
        self, backend: RendezvousBackend, other: RendezvousBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """After each write that won, every client reads these bytes, and the store holds them."""
        token = None
        for state in (b"one", b"two", b"three"):
            _, token, did_set = written(backend.set_state(state, token))
            assert did_set
            assert backend.get_state() == (state, token)
            held = other.get_state()
            assert held is not None
            assert held[0] == state
            assert back_door.read_register(run_id) == state

    def test_a_write_behind_its_back_is_seen(
        self, backend: RendezvousBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """A backend reads the store, not its memory: a write by a stranger shows, and makes tokens stale."""
        _, token, _ = written(backend.set_state(b"mine"))
        back_door.write_register(run_id, b"theirs")
        held = backend.get_state()
        assert held is not None
        assert held[0] == b"theirs"
        assert held[1] != token
        assert backend.set_state(b"mine again", token) == (*held, False)

    def test_bytes_are_kept_exactly(self, backend: RendezvousBackend, back_door: BackDoor, run_id: str) -> None:
        """Any bytes come back as they were: none at all, NUL, line ends, no text at all, the largest allowed."""
        token: Token = None
        noise = random.Random(0).randbytes(self.largest)
        for state in (b"", b"\0", b"\0a\0", b" padded \r\n", bytes(range(256)), b"\xff\xfe", noise):
            _, token, did_set = written(backend.set_state(state, token))
            assert did_set
            held = backend.get_state()
            assert held is not None
            kept, behind = held[0], back_door.read_register(run_id)
            assert kept == state, f"{len(state)} bytes ({state[:12]!r}) came back as {len(kept)} ({kept[:12]!r})"
            assert behind == state, f"the store does not hold the {len(state)} bytes that were written"

    # --- races

    def test_one_of_many_rivals_wins(self, open_backend: MakeBackend, back_door: BackDoor, run_id: str) -> None:
        """Of rivals that hold the same token, or all none, exactly one wins, and its bytes are there."""
        rivals = [open_backend(run_id) for _ in range(RIVALS)]
        for turn in range(3):
            tokens = [token_of(rival) for rival in rivals]
            answers = together(
                [
                    functools.partial(rival.set_state, b"%d by %d" % (turn, n), token)
                    for n, (rival, token) in enumerate(zip(rivals, tokens, strict=True))
                ]
            )
            winners = [n for n, answer in enumerate(answers) if written(answer)[2]]
            assert len(winners) == 1, f"{len(winners)} of {RIVALS} rivals were told that they had won"
            assert back_door.read_register(run_id) == b"%d by %d" % (turn, winners[0])

    def test_a_loser_is_shown_what_it_lost_to(self, backend: RendezvousBackend, other: RendezvousBackend) -> None:
        """A lost write is answered with the winner's bytes and token, and that token is good for the next."""
        stale = written(backend.set_state(b"start"))[1]
        _, token, _ = written(backend.set_state(b"winner", stale))
        assert backend.set_state(b"loser", stale) == (b"winner", token, False)
        state, shown, did_set = written(other.set_state(b"loser", stale))
        assert (state, did_set) == (b"winner", False)
        assert written(other.set_state(b"revenge", shown))[2]

    def test_of_rivals_with_equal_bytes_at_most_one_is_told_yes(self, open_backend: MakeBackend, run_id: str) -> None:
        """To write the same as a rival is still to lose: the answer yes is given once, at once or in turn."""
        rivals = [open_backend(run_id) for _ in range(RIVALS)]
        for base in (None, b"start"):
            tokens = [token_of(rival) for rival in rivals]
            assert (base is None) == (tokens[0] is None)
            answers = together(
                [
                    functools.partial(rival.set_state, b"start" if base is None else b"equal", token)
                    for rival, token in zip(rivals, tokens, strict=True)
                ]
            )
            winners = sum(written(answer)[2] for answer in answers)
            assert winners == 1, f"{winners} of {RIVALS} rivals with equal bytes were told yes"
        stale = token_of(rivals[0])
        assert written(rivals[0].set_state(b"again", stale))[2]
        assert not written(rivals[1].set_state(b"again", stale))[2], "the second of two equal writes was told yes"

    def test_it_is_safe_from_many_threads(self, backend: RendezvousBackend) -> None:
        """Threads may share a client: nothing is lost or exchanged when each adds its mark to what is there."""

        def add(mark: bytes) -> None:
            left = 5
            while left:
                before, token = backend.get_state() or (b"", None)
                left -= written(backend.set_state(before + mark, token))[2]

        marks = [b"a", b"b", b"c", b"d", b"e", b"f"]
        together([functools.partial(add, mark) for mark in marks])
        held = backend.get_state()
        assert held is not None
        assert sorted(held[0]) == sorted(b"".join(marks) * 5)

    # --- tokens

    def test_a_stale_token_never_wins(self, backend: RendezvousBackend, back_door: BackDoor, run_id: str) -> None:
        """A token is good for one write: once the register was written, it loses."""
        first = written(backend.set_state(b"one"))[1]
        second = written(backend.set_state(b"two", first))[1]
        assert first != second
        assert backend.set_state(b"late", first) == (b"two", second, False)
        assert back_door.read_register(run_id) == b"two"

    def test_a_stale_token_never_wins_even_if_the_old_bytes_come_back(
        self, backend: RendezvousBackend, other: RendezvousBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """The same bytes again are another state: a token of their first time loses in their second."""
        old = written(backend.set_state(b"A"))[1]
        between = written(other.set_state(b"B", old))[1]
        present = written(other.set_state(b"A", between))[1]
        assert old != present
        assert backend.set_state(b"C", old) == (b"A", present, False)
        assert back_door.read_register(run_id) == b"A"

    @needs(Power.ROLL_BACK)
    def test_a_stale_token_never_wins_even_if_the_store_counts_again(
        self, backend: RendezvousBackend, other: RendezvousBackend, back_door: Any, run_id: str
    ) -> None:
        """A store that fell back to an older state gives no token out twice."""
        base = written(backend.set_state(b"base"))[1]
        back_door.snapshot()
        lost = written(backend.set_state(b"lost in the failover", base))[1]
        back_door.roll_back()
        survivor = written(other.set_state(b"survivor", token_of(other)))[1]
        assert survivor != lost
        assert not written(backend.set_state(b"late", lost))[2]
        assert back_door.read_register(run_id) == b"survivor"

    def test_no_token_wins_against_an_emptied_register(
        self, backend: RendezvousBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """When the register was lost, a token of what it held loses, and the answer is that it is empty."""
        token = written(backend.set_state(b"before"))[1]
        back_door.wipe(run_id)
        assert backend.set_state(b"after", token) is None
        assert backend.get_state() is None
        assert back_door.read_register(run_id) is None

    def test_a_damaged_or_foreign_token_is_a_lost_race(
        self, backend: RendezvousBackend, open_backend: MakeBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """Whatever is passed as a token: if it is not the present one the write loses, without an error."""
        elsewhere = open_backend(f"{run_id}-elsewhere")
        foreign = written(elsewhere.set_state(b"state"))[1]
        token = written(backend.set_state(b"state"))[1]
        for wrong in (*damaged(token), foreign):
            answer = backend.set_state(b"intruder", wrong)
            assert answer == (b"state", token, False), f"with the token {wrong!r}"
            assert back_door.read_register(run_id) == b"state", f"with the token {wrong!r}"

    # --- runs, life and death of a client

    def test_two_runs_never_meet(self, open_backend: MakeBackend, run_id: str) -> None:
        """Each run has a register of its own, however much their ids look alike or like syntax."""
        clients = {f"{nasty}{run_id}": open_backend(f"{nasty}{run_id}") for nasty in NASTY_RUN_IDS}
        clients |= {f"{run_id}{nasty}": open_backend(f"{run_id}{nasty}") for nasty in NASTY_RUN_IDS}
        for name, client in clients.items():
            assert client.get_state() is None, f"run {name!r} is not empty at first"
            assert written(client.set_state(name.encode()))[2], f"run {name!r} is not empty at first"
        for name, client in clients.items():
            held = client.get_state()
            assert held is not None
            assert held[0] == name.encode(), f"run {name!r} met another"

    def test_close_is_idempotent_and_leaves_the_store_alone(
        self, open_backend: MakeBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """A client that is closed, even twice, takes nothing with it."""
        leaving, staying = open_backend(run_id), open_backend(run_id)
        written(leaving.set_state(b"stays"))
        close(leaving)
        close(leaving)
        assert back_door.read_register(run_id) == b"stays"
        held = staying.get_state()
        assert held is not None
        assert written(staying.set_state(b"goes on", held[1]))[2]

    def test_it_survives_pickling_or_refuses_with_a_sentence(self, backend: RendezvousBackend) -> None:
        """A pickled client works when it is loaded; or pickling says that *this class* cannot be pickled."""
        written(backend.set_state(b"state"))
        try:
            pickled = pickle.dumps(backend)
        except (TypeError, pickle.PicklingError, RendezvousError) as refusal:
            sentence = str(refusal)
            assert type(backend).__name__ in sentence, f"the refusal does not name the class: {sentence!r}"
            assert len(sentence.split()) >= 6, f"the refusal is no sentence: {sentence!r}"
        else:
            twin = pickle.loads(pickled)  # noqa: S301  (it was pickled four lines above)
            try:
                assert twin.get_state() == backend.get_state()
            finally:
                close(twin)

    # --- trouble

    @needs(Power.CUT)
    def test_a_lost_connection_is_a_connection_error_in_time(self, backend: RendezvousBackend, back_door: Any) -> None:
        """A store out of reach is a ``RendezvousConnectionError`` with a sentence, before the deadline.

        No write is half done, and the same client works when the store is back.
        """
        token = written(backend.set_state(b"before"))[1]
        self.fails_without_a_store(backend, back_door, token)
        held = backend.get_state()
        assert held is not None
        assert held[0] in (b"before", b"during")
        assert written(backend.set_state(b"after", held[1]))[2]

    @needs(Power.CUT)
    def test_the_random_numbers_of_the_job_are_left_alone(
        self, open_backend: MakeBackend, back_door: Any, run_id: str
    ) -> None:
        """Nothing is drawn from the generator that ``random.seed`` seeds, not even for the pauses of an outage.

        Else a job that seeds it is another with each rendezvous, and nodes that seed it alike make the same choices.
        """
        before = random.getstate()
        backend = open_backend(run_id)
        token = written(backend.set_state(b"before"))[1]
        self.fails_without_a_store(backend, back_door, token)
        assert backend.get_state() is not None
        assert random.getstate() == before

    @needs(Power.LOSE_ANSWER)
    def test_an_unsure_write_says_so_or_finds_out(
        self, backend: RendezvousBackend, back_door: Any, run_id: str
    ) -> None:
        """A write without an answer is either reported as perhaps applied, or looked up and told truly."""
        token = written(backend.set_state(b"before"))[1]
        back_door.lose_next_answer()
        try:
            told = written(backend.set_state(b"unsure", token))[2]
        except RendezvousConnectionError as error:
            told = error.maybe_applied
        assert told, "a write that was applied was reported as lost, or as surely not applied"
        assert back_door.read_register(run_id) == b"unsure"

    def fails_without_a_store(self, backend: RendezvousBackend, back_door: Any, token: Token) -> None:
        """While the store is cut off, reading and writing fail in time."""
        back_door.cut()
        try:
            self.fails_in_time(backend.get_state)
            self.fails_in_time(functools.partial(backend.set_state, b"during", token))
        finally:
            back_door.mend()

    def fails_in_time(self, call: Callable[[], object]) -> None:
        """The call raises a connection error with a sentence, before the deadline."""
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError) as caught:
            call()
        took = time.monotonic() - began
        assert took <= self.deadline + self.slack, f"it took {took:.1f} s to notice a lost connection"
        assert len(str(caught.value).split()) >= 4, f"the error is no sentence: {str(caught.value)!r}"


def written(answer: tuple[bytes, Token, bool] | None) -> tuple[bytes, Token, bool]:
    """The answer of ``set_state``, which must not say that the register is empty."""
    assert answer is not None, "set_state answered that the register is empty and was not written"
    state, token, did_set = answer
    assert isinstance(state, bytes)
    assert token is not None, "None is no token: it means that the register is empty"
    assert isinstance(did_set, bool)
    return state, token, did_set


def token_of(backend: RendezvousBackend) -> Token | None:
    """The present token, or None if the register is empty."""
    held = backend.get_state()
    return None if held is None else held[1]


def damaged(token: Token) -> list[Token]:
    """Tokens that are not this one, of the same kind and of others."""
    wrong: list[Token] = [0, 1, -1, True, 10**40, 1.5, "", "0", "1", "x", "ä", b"", b"\xff\xfe", (), (1, "x"), object()]
    wrong += [[token], {"token": token}, str(token) + " ", repr(token)]
    match token:
        case str() | bytes() | tuple():
            wrong += [token[:-1], token * 2, token[::-1]]
        case int():
            wrong += [token + 1, token - 1, -token, float(token) + 0.5]
        case _:
            pass
    return [t for t in wrong if t != token]


for _name, _law in vars(RegisterConformance).items():
    if _name.startswith("test_"):
        _law.level = "rdzv_register"
