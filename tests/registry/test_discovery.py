"""Discovery lists without importing, loads one, survives the rest, and shadows nobody."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rdzv_core.discovery import BACKENDS, HOOKS, SERVERS, Discovery, Offer, PluginError, installed_offers

GROUP = "some.group"


class Shelf:
    """Fake offers; notes what is loaded."""

    def __init__(self) -> None:
        self.offers: list[Offer] = []
        self.loads: list[str] = []
        self.reads: list[str] = []

    def put(self, name: str, make: Callable[[], Any], distribution: str = "dist 1.0") -> None:
        def load() -> Any:
            self.loads.append(name)
            return make()

        self.offers.append(Offer(group=GROUP, name=name, target=f"mod:{name}", distribution=distribution, load=load))

    def read(self, group: str) -> list[Offer]:
        self.reads.append(group)
        return [offer for offer in self.offers if offer.group == group]


def fail(error: BaseException) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    shelf.put("good", lambda: "good plugin", "rdzv-good 1.0")
    shelf.put("broken", fail(ModuleNotFoundError("No module named 'redis'")), "rdzv-broken 2.0")
    shelf.put("leaver", fail(SystemExit(3)), "rdzv-leaver 3.0")
    shelf.put("twice", lambda: "one", "rdzv-one 1.0")
    shelf.put("twice", lambda: "two", "rdzv-two 2.0")
    return shelf


def test_listing_imports_nothing_and_reads_once(shelf: Shelf):
    discovery = Discovery(shelf.read)
    assert discovery.names(GROUP) == ("broken", "good", "leaver", "twice")
    assert [str(o) for o in discovery.offers(GROUP, "twice")] == [
        "'twice' of rdzv-one 1.0 (mod:twice)",
        "'twice' of rdzv-two 2.0 (mod:twice)",
    ]
    assert len(discovery.offers(GROUP)) == 5
    assert discovery.names("other.group") == ()
    assert shelf.loads == []
    assert shelf.reads == [GROUP, "other.group"]
    assert discovery.failures() == ()


def test_making_one_reads_nothing(shelf: Shelf):
    Discovery(shelf.read)
    assert shelf.reads == []


def test_loading_one_loads_that_one_and_once(shelf: Shelf):
    discovery = Discovery(shelf.read)
    assert discovery.load(GROUP, "good") == "good plugin"
    assert discovery.load(GROUP, "good") == "good plugin"
    assert shelf.loads == ["good"]


@pytest.mark.parametrize(
    ("name", "said", "cause"),
    [
        (
            "broken",
            "'broken' of rdzv-broken 2.0 (mod:broken) cannot be imported: ModuleNotFoundError: No module named 'redis'",
            ModuleNotFoundError,
        ),
        ("leaver", "'leaver' of rdzv-leaver 3.0 (mod:leaver) cannot be imported: SystemExit: 3", SystemExit),
    ],
)
def test_a_broken_plugin_is_remembered_and_not_tried_again(
    shelf: Shelf, name: str, said: str, cause: type[BaseException]
):
    discovery = Discovery(shelf.read)
    for _ in range(2):
        with pytest.raises(PluginError) as caught:
            discovery.load(GROUP, name)
        assert str(caught.value) == said
        assert isinstance(caught.value.__cause__, cause)
    assert shelf.loads == [name]
    (failure,) = discovery.failures(GROUP)
    assert (failure.name, failure.sentence) == (name, said)
    assert discovery.failures("other.group") == ()
    assert discovery.load(GROUP, "good") == "good plugin"


def test_a_name_that_two_claim_is_refused_when_asked_for(shelf: Shelf):
    discovery = Discovery(shelf.read)
    with pytest.raises(PluginError, match=r"claimed by rdzv-one 1\.0 \(mod:twice\) and by rdzv-two 2\.0") as caught:
        discovery.load(GROUP, "twice")
    assert "uninstall all but one" in str(caught.value)
    assert shelf.loads == []
    assert discovery.failures()[0].error is None


def test_an_unknown_name_is_told_with_what_there_is(shelf: Shelf):
    discovery = Discovery(shelf.read)
    with pytest.raises(PluginError) as caught:
        discovery.load(GROUP, "godo")
    assert str(caught.value) == (
        "Nothing is installed as 'godo' in some.group. Installed: broken, good, leaver, twice. Did you mean 'good'?"
    )
    assert discovery.failures() == ()


def test_a_plugin_error_is_what_torch_raises_for_an_unknown_backend():
    assert issubclass(PluginError, ValueError)


def test_load_all_keeps_the_good_and_tells_of_the_bad(shelf: Shelf, caplog: pytest.LogCaptureFixture):
    discovery = Discovery(shelf.read, strict=False)
    assert discovery.load_all(GROUP) == {"good": "good plugin"}
    told = "\n".join(record.getMessage() for record in caplog.records)
    for distribution in ("rdzv-broken 2.0", "rdzv-leaver 3.0", "rdzv-one 1.0", "rdzv-two 2.0"):
        assert distribution in told
    assert {f.name for f in discovery.failures()} == {"broken", "leaver", "twice"}


def test_load_all_can_be_given_names(shelf: Shelf, caplog: pytest.LogCaptureFixture):
    discovery = Discovery(shelf.read, strict=False)
    assert discovery.load_all(GROUP, only=["good", "godo"]) == {"good": "good plugin"}
    assert "Did you mean 'good'?" in caplog.text
    assert shelf.loads == ["good"]


def test_strict_raises_what_would_be_remembered(shelf: Shelf):
    with pytest.raises(PluginError, match="cannot be imported"):
        Discovery(shelf.read, strict=True).load_all(GROUP)


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_the_environment_can_ask_for_strictness(monkeypatch: pytest.MonkeyPatch, value: str | None, strict: bool):
    if value is None:
        monkeypatch.delenv("RDZV_STRICT_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("RDZV_STRICT_PLUGINS", value)
    assert Discovery().is_strict is strict


def test_what_was_loaded_can_be_rejected(shelf: Shelf):
    discovery = Discovery(shelf.read)
    discovery.load(GROUP, "good")
    error = discovery.reject(GROUP, "good", "is of no use.")
    assert str(error) == "'good' of rdzv-good 1.0 (mod:good) is of no use."
    with pytest.raises(PluginError, match=r"is of no use\."):
        discovery.load(GROUP, "good")


def test_secrets_in_errors_are_masked(shelf: Shelf):
    shelf.put("chatty", fail(RuntimeError("cannot reach redis://u:hunter2@h")))
    with pytest.raises(PluginError) as caught:
        Discovery(shelf.read).load(GROUP, "chatty")
    assert "hunter2" not in str(caught.value)


def install(folder: Path, distribution: str, version: str, entry_points: str, **modules: str) -> None:
    """Put a distribution's metadata and modules where Python finds them."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_installed_metadata_is_read_and_nothing_imported(site: Path):
    install(
        site,
        "rdzv-shelf-test",
        "1.2",
        """
        [rdzv_core.backends]
        shelf-test = rdzv_shelf_test_module:create
        [rdzv_core.servers]
        shelf-test = rdzv_shelf_test_module:Server
        """,
        rdzv_shelf_test_module="create = 'the creator'",
    )
    offers = {offer.name: offer for offer in installed_offers(BACKENDS)}
    offer = offers["shelf-test"]
    assert (offer.group, offer.target) == (BACKENDS, "rdzv_shelf_test_module:create")
    assert offer.distribution == "rdzv-shelf-test 1.2"
    assert "rdzv_shelf_test_module" not in sys.modules
    discovery = Discovery()
    assert "shelf-test" in discovery.names(SERVERS)
    assert "shelf-test" not in discovery.names(HOOKS)
    assert "rdzv_shelf_test_module" not in sys.modules
    assert discovery.load(BACKENDS, "shelf-test") == "the creator"
    with pytest.raises(PluginError, match=r"rdzv-shelf-test 1\.2.*AttributeError"):
        discovery.load(SERVERS, "shelf-test")
    del sys.modules["rdzv_shelf_test_module"]


def test_two_installed_distributions_may_clash(site: Path):
    for distribution in ("rdzv-clash-one", "rdzv-clash-two"):
        install(site, distribution, "1.0", "[rdzv_core.backends]\nclash-test = nowhere:create\n")
    with pytest.raises(PluginError) as caught:
        Discovery().load(BACKENDS, "clash-test")
    assert "rdzv-clash-one 1.0" in str(caught.value)
    assert "rdzv-clash-two 1.0" in str(caught.value)


def test_listing_costs_no_client_library():
    program = (
        "import sys\n"
        "from rdzv_core.registry import rendezvous_handler_registry as registry\n"
        "registry.names()\n"
        "print(*sorted(set(sys.modules) & {'torch', 'redis', 'rdzv_redis'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
