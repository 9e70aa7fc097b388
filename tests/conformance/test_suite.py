"""What the suite does with an author's declarations, seen in a project of its own, as a stranger's would be."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from rdzv_core.testing.conformance import RegisterConformance, Waiting, eventually, together

PROJECT = """
import pytest
from rdzv_core.testing.conformance import Power, RegisterConformance
from rdzv_core.testing.memory import MemoryRegister, MemoryStore


class Door:
    def __init__(self, store):
        self.read_register, self.write_register, self.wipe = store.peek, store.poke, store.wipe


class TestMine(RegisterConformance):
    {declared}

    @pytest.fixture
    def store(self):
        return MemoryStore()

    @pytest.fixture
    def make_backend(self, store):
        return lambda run_id: MemoryRegister(store, run_id)

    @pytest.fixture
    def back_door(self, store):
        return Door(store)
"""


class Reports:
    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.keywords: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.when == "call" or not report.passed:
            self.outcomes[name] = report.outcome
            self.texts[name] = report.longreprtext if report.failed else str(report.longrepr)
        self.keywords[name] = set(report.keywords)


def run_project(tmp_path: Path, declared: str, *options: str) -> Reports:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    module = f"test_mine_{uuid.uuid4().hex}"  # pytest remembers a module by its name
    (tmp_path / f"{module}.py").write_text(PROJECT.format(declared=declared))
    reports = Reports()
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "randomly", "xdist", "timeout")]
    pytest.main(
        [str(tmp_path), "-c", str(tmp_path / "pytest.ini"), "--import-mode=importlib", *without, *options],
        plugins=[reports],
    )
    return reports


def test_an_undeclared_power_is_not_used_and_that_is_told(tmp_path: Path):
    reports = run_project(tmp_path, "pass")
    skipped = {name for name, outcome in reports.outcomes.items() if outcome == "skipped"}
    assert skipped == {
        "test_a_stale_token_never_wins_even_if_the_store_counts_again",
        "test_a_lost_connection_is_a_connection_error_in_time",
        "test_an_unsure_write_says_so_or_finds_out",
        "test_the_random_numbers_of_the_job_are_left_alone",
    }
    assert "declares no back door with ROLL_BACK" in reports.texts[sorted(skipped)[1]]
    assert set(reports.outcomes.values()) == {"passed", "skipped"}


def test_a_declared_power_that_is_missing_is_a_failure(tmp_path: Path):
    law = "test_the_back_door_has_the_powers_that_it_declares"
    reports = run_project(tmp_path, "powers = frozenset({Power.CUT})", "-k", law)
    assert reports.outcomes == {law: "failed"}


def test_a_declared_weakness_that_passes_is_a_failure(tmp_path: Path):
    law = "test_a_fresh_register_is_empty"
    reports = run_project(tmp_path, f'weaknesses = {{"{law}": "so I believe"}}', "-k", law)
    assert reports.outcomes == {law: "failed"}
    assert "XPASS(strict)" in reports.texts[law]


def test_a_declared_weakness_that_shows_is_expected(tmp_path: Path):
    law = "test_the_name_is_a_word"
    weak = f'weaknesses = {{"{law}": "it is a sentence"}}'
    broken = "\n    @pytest.fixture\n    def backend(self, store, run_id):\n"
    broken += "        return type('Weak', (MemoryRegister,), {'name': 'two words'})(store, run_id)\n"
    reports = run_project(tmp_path, weak + broken, "-k", law)
    assert reports.outcomes == {law: "skipped"}


def test_a_weakness_in_no_law_is_refused():
    with pytest.raises(TypeError, match="declares a weakness in 'test_nothing', but there is no such law"):
        type("TestMine", (RegisterConformance,), {"weaknesses": {"test_nothing": "a typing error"}})


def test_laws_are_marked_with_their_level(tmp_path: Path):
    reports = run_project(tmp_path, "pass", "-m", "rdzv_register", "-k", "fresh")
    assert "rdzv_register" in reports.keywords["test_a_fresh_register_is_empty"]


def test_a_failing_law_shows_what_it_compared(tmp_path: Path):
    """The plugin has the laws' assertions rewritten, also where they are installed from afar."""
    law = "test_the_name_is_a_word"
    broken = "@pytest.fixture\n    def backend(self, store, run_id):\n"
    broken += "        return type('Weak', (MemoryRegister,), {'name': 'two words'})(store, run_id)\n"
    reports = run_project(tmp_path, broken, "-k", law)
    assert reports.outcomes == {law: "failed"}
    assert "['two', 'words'] == ['two words']" in reports.texts[law]


# --- its tools


def test_eventually_answers_what_was_seen():
    seen = iter([None, 0, 3, 7])
    assert eventually("seven", lambda: next(seen), within=5.0, every=0.0, until=lambda n: n == 7) == 7


def test_eventually_fails_with_what_it_waited_for():
    with pytest.raises(pytest.fail.Exception, match=r"not within 0.01 s: seven; last seen: 3"):
        eventually("seven", lambda: 3, within=0.01, every=0.001, until=lambda n: n == 7)


def test_a_waiting_thread_passes_its_error_on():
    with pytest.raises(ZeroDivisionError):
        Waiting(lambda: 1 // 0).result(within=5.0)


def test_together_answers_in_the_order_of_the_calls():
    assert together([lambda n=n: n for n in range(5)]) == list(range(5))
