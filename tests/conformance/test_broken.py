"""The laws are seen to bite: each backend on the shelf is caught by the law that it breaks, and no law is idle."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rdzv_core.testing.conformance import CoordinationConformance

PATH = Path(__file__).with_name("broken.py")


def load_shelf():
    spec = importlib.util.spec_from_file_location("rdzv_conformance_shelf", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SHELF


SHELF = load_shelf()


class Verdicts:
    """Remembers how each phase of each test ended, in a session inside this one."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


def try_law(law: str, suite: str, tmp_path: Path) -> list[pytest.TestReport]:
    """Run one law of one suite on the shelf; the reports of the phase that tries it."""
    config = tmp_path / "pytest.ini"
    config.write_text("[pytest]\n")
    verdicts = Verdicts()
    options = ["-c", str(config), "--import-mode=importlib"]
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "randomly", "xdist", "timeout", "terminal")]
    pytest.main([f"{PATH}::{suite}::{law}", *options, *without], plugins=[verdicts])
    broken_setup = [r for r in verdicts.reports if r.when == "setup" and not r.passed]
    assert not broken_setup, f"the law was not even tried: {broken_setup[0].longreprtext}"
    return [r for r in verdicts.reports if r.when == "call"]


@pytest.mark.parametrize("name", SHELF)
def test_each_flaw_is_caught_by_its_law(name: str, tmp_path: Path):
    for _ in range(3):  # a flaw that shows for a moment passes unseen if this machine stands still at that moment
        reports = try_law(SHELF[name].law, f"Test{name}", tmp_path)
        assert reports, "the law was not found"
        if any(r.failed for r in reports):
            return
    pytest.fail(f"{SHELF[name].law} is green on {name}")


@pytest.mark.parametrize(
    "law",
    [
        "test_the_back_door_has_the_powers_that_it_declares",
        "test_a_stale_token_never_wins_even_if_the_store_counts_again",
        "test_an_unsure_write_says_so_or_finds_out",
        "test_pages_are_immutable",
    ],
)
def test_the_shelf_breaks_nothing_by_itself(law: str, tmp_path: Path):
    reports = try_law(law, "TestSound", tmp_path)
    assert [r.outcome for r in reports] == ["passed"]


def test_each_law_catches_something():
    laws = {name for name in dir(CoordinationConformance) if name.startswith("test_")}
    assert laws == {flaw.law for flaw in SHELF.values()}
