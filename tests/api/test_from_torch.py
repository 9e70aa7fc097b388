"""The page on what became of torch's names, held against the torch that is installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from rdzv_core.options import HANDLER_OPTIONS

pytestmark = pytest.mark.needs_torch

PAGE = (Path(__file__).parents[2] / "docs" / "from-torch.md").read_text()
PACKAGE = "torch.distributed.elastic.rendezvous"
MODULES = (
    "c10d_rendezvous_backend",
    "dynamic_rendezvous",
    "etcd_rendezvous",
    "etcd_rendezvous_backend",
    "etcd_server",
    "etcd_store",
    "registry",
    "static_tcp_rendezvous",
    "utils",
)
ROW = re.compile(r"\| `([\w.]+)` \| (?:`([\w.]+)`|(\(none\))) \| (.*?) ?\|")


def rows(heading: str) -> dict[str, tuple[str, str]]:
    """Of one table: torch's names, ours (empty if there is none), and the remark."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {found[1]: (found[2] or "", found[4]) for found in ROW.finditer(section)}


NAMES, OPTIONS = rows("Names"), rows("Options")


def public_names() -> set[str]:
    """What torch offers: what its package exports, and what the modules behind it define."""
    package = importlib.import_module(PACKAGE)
    found = {name: getattr(package, name) for name in package.__all__}
    for module in MODULES:
        if module.startswith("etcd") and importlib.util.find_spec("etcd") is None:
            continue  # torch itself cannot import them then
        theirs = importlib.import_module(f"{PACKAGE}.{module}")
        for name, thing in vars(theirs).items():
            if not name.startswith("_") and getattr(thing, "__module__", None) == theirs.__name__:
                found[f"{module}.{name}"] = thing
    members = {
        f"{name}.{member}"
        for name, thing in found.items()
        if inspect.isclass(thing) and not issubclass(thing, BaseException) and name != "etcd_rendezvous.EtcdRendezvous"
        for member in vars(thing)
        if not member.startswith("_")
    }
    return found.keys() | members


def options_read_by_torch() -> set[str]:
    """The keys that torch's own code takes from the parameters."""
    found = set()
    folder = Path(importlib.import_module(PACKAGE).__file__ or "").parent
    for path in folder.glob("*.py"):
        source = path.read_text()
        found |= set(re.findall(r"(?:params\.get\w*|config\.get)\(\s*\"(\w+)\"", source))
        found |= {f"{stem}_timeout" for stem in re.findall(r"_get_timeout\(params, \"(\w+)\"\)", source)}
    return found


def test_every_name_of_torchs_has_its_row():
    missing = sorted(public_names() - NAMES.keys())
    assert not missing, f"docs/from-torch.md does not say what became of {missing}"


def test_every_option_of_torchs_has_its_row():
    read = options_read_by_torch()
    assert {"join_timeout", "store_type", "is_host", "rank"} <= read, "the options were not found in torch's source"
    missing = sorted(read - OPTIONS.keys())
    assert not missing, f"docs/from-torch.md does not say what became of the options {missing}"


@pytest.mark.parametrize("name", sorted({ours for ours, _ in NAMES.values() if ours}))
def test_every_name_of_ours_is_there(name):
    module, thing = name, None
    rest: list[str] = []
    while thing is None:
        try:
            thing = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            assert module, f"nothing of {name} can be imported"
            rest.insert(0, last)
    for part in rest:
        thing = getattr(thing, part)


def test_every_option_of_ours_is_there():
    from rdzv_c10d.options import C10D_OPTIONS, STATIC_OPTIONS

    declared = [*HANDLER_OPTIONS, *C10D_OPTIONS, *STATIC_OPTIONS]
    for name in ("ETCD_OPTIONS", "V2_OPTIONS", "LEGACY_OPTIONS"):
        declared += getattr(importlib.import_module("rdzv_etcd"), name)
    names = {name for option in declared for name in (option.name, *option.aliases)}
    assert {ours for ours, _ in OPTIONS.values()} <= names


def test_what_is_left_out_has_a_reason():
    for theirs, (ours, remark) in NAMES.items():
        assert ours or remark, f"{theirs} is left out without a reason"
