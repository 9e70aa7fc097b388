"""The registry: explicit before installed, and an unknown name answered with what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

from rdzv_core.api import Observers, RendezvousHandler, RendezvousParameters
from rdzv_core.discovery import BACKENDS, Discovery, Offer, PluginError
from rdzv_core.hooks import Hooks, hookimpl
from rdzv_core.registry import (
    EXTRAS,
    RendezvousHandlerRegistry,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)

ROOT = Path(__file__).parents[2]


class Handler:
    """As much of a handler as a registry looks at."""

    def __init__(self, name: str, maker: str) -> None:
        self.name = name
        self.maker = maker

    def get_backend(self) -> str:
        return self.name


def creator(maker: str, calls_itself: str | None = None) -> Any:
    return lambda params: Handler(calls_itself or params.backend, maker)


def params(backend: str) -> RendezvousParameters:
    return RendezvousParameters(backend, "h:1", "job-7", 1, 2)


def installed(**plugins: Any) -> Discovery:
    """A discovery in which each plugin is installed under its name; an exception is one that breaks."""

    def load(plugin: Any) -> Any:
        if isinstance(plugin, BaseException):
            raise plugin
        return plugin

    def read(group: str) -> list[Offer]:
        assert group == BACKENDS
        return [
            Offer(
                group=group,
                name=name.replace("_", "-"),
                target=f"mod:{name}",
                distribution=f"rdzv-{name} 1.0",
                load=lambda plugin=plugin: load(plugin),
            )
            for name, plugin in plugins.items()
        ]

    return Discovery(read)


def test_an_installed_backend_makes_the_handler():
    registry = RendezvousHandlerRegistry(installed(file=creator("installed")))
    handler = registry.create_handler(params("file"))
    assert (handler.maker, handler.name) == ("installed", "file")


def test_what_is_registered_wins_over_what_is_installed():
    registry = RendezvousHandlerRegistry(installed(file=RuntimeError("must not be loaded")))
    registry.register("file", creator("registered"))
    assert registry.create_handler(params("file")).maker == "registered"


def test_the_same_creator_may_be_registered_again_and_another_may_not():
    registry, one = RendezvousHandlerRegistry(), creator("one")
    registry.register("file", one)
    registry.register("file", one)
    with pytest.raises(ValueError, match=r"'file' cannot be registered .* is registered with .* already"):
        registry.register("file", creator("two"))
    assert registry.create_handler(params("file")).maker == "one"


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match="is empty"):
        RendezvousHandlerRegistry().register("", creator("x"))


def test_names_are_those_of_both_and_import_nothing():
    registry = RendezvousHandlerRegistry(installed(b=RuntimeError("must not be loaded"), d=creator("x")))
    registry.register("c", creator("x"))
    registry.register("b", creator("x"))
    assert registry.names() == ("b", "c", "d")
    assert RendezvousHandlerRegistry(installed()).names() == ()


def test_a_new_registry_finds_what_is_installed():
    assert "redis" in RendezvousHandlerRegistry().names()


def unknown(registry: RendezvousHandlerRegistry, name: str) -> str:
    with pytest.raises(PluginError) as caught:
        registry.create_handler(params(name))
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_a_known_name_that_is_not_installed_says_what_to_install(name: str):
    text = unknown(RendezvousHandlerRegistry(installed(file=creator("x"))), name)
    assert text == (
        f"There is no backend named '{name}'. Installed: file. To get it: pip install \"rdzv-core[{EXTRAS[name]}]\"."
    )


def test_a_misspelt_name_is_answered_with_the_nearest():
    registry = RendezvousHandlerRegistry(installed(file=creator("x")))
    assert unknown(registry, "flie").endswith("Did you mean 'file'?")
    assert unknown(registry, "rdeis").endswith("Did you mean 'redis'? To get it: pip install \"rdzv-core[redis]\".")
    empty = RendezvousHandlerRegistry(installed())
    assert unknown(empty, "quux") == "There is no backend named 'quux'. Installed: none."


def test_an_unknown_name_tells_what_is_broken_and_why():
    discovery = installed(
        redis=ModuleNotFoundError("No module named 'redis'"),
        leaver=SystemExit(1),
        text="not callable",
        good=creator("x"),
    )
    text = unknown(RendezvousHandlerRegistry(discovery), "goood")
    assert "Installed: good, leaver, redis, text. Did you mean 'good'?" in text
    assert "'redis' of rdzv-redis 1.0 (mod:redis) cannot be imported: ModuleNotFoundError" in text
    assert "'leaver' of rdzv-leaver 1.0 (mod:leaver) cannot be imported: SystemExit: 1" in text
    assert "'text' of rdzv-text 1.0 (mod:text) is no creator of handlers, but 'not callable'." in text


def test_a_broken_backend_tells_why_and_keeps_the_cause():
    registry = RendezvousHandlerRegistry(installed(file=ImportError("no client"), good=creator("x")))
    with pytest.raises(ValueError, match=r"rdzv-file 1\.0 .*ImportError: no client") as caught:
        registry.create_handler(params("file"))
    assert isinstance(caught.value.__cause__, ImportError)
    assert registry.create_handler(params("good")).maker == "x"


def test_a_backend_that_is_no_creator_is_refused():
    registry = RendezvousHandlerRegistry(installed(file="text"))
    for _ in range(2):
        with pytest.raises(ValueError, match="is no creator of handlers, but 'text'"):
            registry.create_handler(params("file"))


def test_a_handler_must_go_by_the_name_that_was_asked_for():
    registry = RendezvousHandlerRegistry()
    registry.register("file", creator("x", calls_itself="other"))
    with pytest.raises(RuntimeError, match="'file' made a handler that calls itself 'other'"):
        registry.create_handler(params("file"))


def test_errors_of_a_creator_pass():
    def refuse(params: RendezvousParameters) -> Any:
        raise KeyError("mine")

    registry = RendezvousHandlerRegistry()
    registry.register("file", refuse)
    with pytest.raises(KeyError, match="mine"):
        registry.create_handler(params("file"))


class Observed(RendezvousHandler):
    """A handler that listens."""

    def __init__(self, params: RendezvousParameters) -> None:
        self.params = params
        self.observers: list[Observers] = []

    def observe(self, observers: Observers) -> None:
        self.observers.append(observers)

    def get_backend(self) -> str:
        return self.params.backend

    def next_rendezvous(self) -> Any: ...
    def is_closed(self) -> Any: ...
    def set_closed(self) -> Any: ...
    def num_nodes_waiting(self) -> Any: ...
    def get_run_id(self) -> Any: ...
    def shutdown(self) -> Any: ...


def test_hooks_observe_the_handlers_that_are_made():
    hooks = Hooks(Discovery(lambda group: []))
    hooks.manager.register(Health())
    registry = RendezvousHandlerRegistry(hooks=hooks)
    registry.register("file", Observed)
    registry.register("foreign", creator("x"))
    (observers,) = registry.create_handler(params("file")).observers
    assert observers.before_join("job-7", "n1") == "job-7 may not be joined by n1"
    assert observers.attributes == {"rack": "r7"}
    assert registry.create_handler(params("foreign")).maker == "x", "a handler that is not ours is left alone"


class Health:
    @hookimpl
    def rdzv_before_join(self, run_id: str, node_id: str) -> str:
        return f"{run_id} may not be joined by {node_id}"

    @hookimpl
    def rdzv_node_attributes(self) -> dict[str, str]:
        return {"rack": "r7"}


def test_without_hooks_nobody_observes():
    registry = RendezvousHandlerRegistry()
    registry.register("file", Observed)
    assert registry.create_handler(params("file")).observers == []


def test_the_registry_of_the_process_is_what_launchers_ask(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous_handler_registry, "_creators", {"file": creator("mine")})
    assert get_rendezvous_handler(params("file")).maker == "mine"


def extras_of_the_core() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"]


@pytest.mark.parametrize("plugin", sorted(p.parent.name for p in ROOT.glob("plugins/*/pyproject.toml")))
def test_every_backend_of_ours_is_known_with_its_extra(plugin: str):
    project = tomllib.loads((ROOT / "plugins" / plugin / "pyproject.toml").read_text())["project"]
    backends = project["entry-points"][BACKENDS]
    assert backends
    for name in backends:
        wanted = extras_of_the_core()[EXTRAS[name]]
        assert any(re.match(rf"{project['name']}\b", line) for line in wanted)
