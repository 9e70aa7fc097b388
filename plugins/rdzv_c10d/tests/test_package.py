"""The distribution as its users see it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import rdzv_c10d
from rdzv_c10d.options import C10D_OPTIONS

from rdzv_core import RendezvousParameters, create_handler
from rdzv_core.options import HANDLER_OPTIONS, option_table, read_options
from rdzv_core.servers import free_port

ROOT = Path(__file__).parents[1]


def test_importing_it_brings_no_torch():
    """Listing backends, or looking at one's options, takes no second."""
    program = (
        "import sys, rdzv_c10d, rdzv_c10d._torchrun, rdzv_c10d.coordination, rdzv_c10d.hosting, rdzv_c10d.server\n"
        "rdzv_c10d._torchrun.get_handler()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_all_that_it_names_is_there():
    for name in rdzv_c10d.__all__:
        assert getattr(rdzv_c10d, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rdzv_c10d.nothing


def test_it_comes_in_by_the_visitors_door():
    offers = {
        (group, point.name): point.load()
        for group in ("rdzv_core.backends", "rdzv_core.servers", "torchrun.handlers")
        for point in entry_points(group=group)
        if point.value.startswith("rdzv_c10d")
    }
    assert offers == {
        ("rdzv_core.backends", "c10d"): rdzv_c10d.create_handler,
        ("rdzv_core.backends", "static"): rdzv_c10d.create_static_handler,
        ("rdzv_core.servers", "c10d"): rdzv_c10d.C10dServer,
        ("torchrun.handlers", "rdzv-c10d"): rdzv_c10d._torchrun.get_handler,
    }


def test_torchs_options_keep_their_names_and_defaults():
    values = read_options(HANDLER_OPTIONS, C10D_OPTIONS)
    assert (values["store_type"], values["read_timeout"], values["is_host"]) == ("tcp", 60.0, None)


def test_the_readme_lists_the_options():
    assert option_table(C10D_OPTIONS) in (ROOT / "README.md").read_text()


@pytest.mark.needs_torch
def test_the_example_in_the_readme_runs():
    example = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    exec(compile(example, "README.md", "exec"), {})


@pytest.mark.needs_torch
def test_backend_and_handler_are_made_in_two_steps_as_with_torch():
    params = RendezvousParameters(
        "c10d", f"127.0.0.1:{free_port()}", "run", 1, 1, is_host="true", read_timeout=10, last_call_timeout=1
    )
    backend, store = rdzv_c10d.create_backend(params)
    handler = create_handler(store, backend, params)
    assert handler.next_rendezvous().world_size == 1
    assert handler.shutdown()
