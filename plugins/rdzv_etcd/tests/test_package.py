"""What the distribution declares: names, options, endpoints, documents, and what an import brings along."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import rdzv_etcd
from rdzv_etcd import ETCD_OPTIONS, LEGACY_OPTIONS, V2_OPTIONS
from rdzv_etcd.target import target_of

import rdzv_core
from rdzv_core import (
    DynamicRendezvousHandler,
    RendezvousConnectionError,
    RendezvousParameters,
    get_rendezvous_handler,
)
from rdzv_core.options import option_table

HERE = Path(__file__).parents[1]
README = (HERE / "README.md").read_text()
SOURCE = HERE / "src" / "rdzv_etcd"


def parameters(backend="etcd-v3", endpoint="127.0.0.1:2379", **config):
    return RendezvousParameters(backend, endpoint, "run", 1, 2, "127.0.0.1", **config)


# --- names


@pytest.mark.needs_torch
def test_every_public_name_is_there():
    for name in rdzv_etcd.__all__:
        assert getattr(rdzv_etcd, name) is not None
    assert set(rdzv_etcd.__all__) <= set(dir(rdzv_etcd))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rdzv_etcd.nonsense  # noqa: B018


def test_without_torch_the_store_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; from rdzv_etcd import EtcdStore"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'EtcdStore is a torch.distributed.Store, and torch is not installed: pip install "rdzv-core[torch]"' in (
        tried.stderr
    )


@pytest.mark.filterwarnings("ignore:The rendezvous backend 'etcd':DeprecationWarning")
@pytest.mark.parametrize("name", ["etcd", "etcd-v2", "etcd-v3"])
def test_the_registry_knows_it_and_the_handler_echoes_the_name(name):
    handler = get_rendezvous_handler(parameters(name))
    assert handler.get_backend() == name
    assert isinstance(handler, DynamicRendezvousHandler)
    assert handler.get_run_id() == "run"


def test_the_legacy_name_warns_and_names_the_successor():
    options = {"timeout": 300, "last_call_timeout": 20, "etcd_prefix": "custom", "protocol": "http"}
    with pytest.warns(DeprecationWarning, match="etcd-v3"):
        handler = rdzv_etcd.create_rdzv_handler(parameters("etcd", **options))
    assert isinstance(handler, rdzv_etcd.EtcdRendezvousHandler)
    assert handler.settings.timeout.join.total_seconds() == 300
    assert handler.settings.timeout.last_call.total_seconds() == 20
    assert handler._runner._backend._names.all == "/custom/run.run"


def test_the_legacy_certificates_are_understood(certificates):
    options = {
        "protocol": "https",
        "cacert": str(certificates.ca),
        "cert": str(certificates.client),
        "key": str(certificates.client_key),
    }
    cluster = target_of("127.0.0.1:2379", options, {}, LEGACY_OPTIONS).cluster
    assert (cluster.tls, cluster.ca_cert, cluster.cert) == (True, certificates.ca, certificates.client)


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore:HTTPResponse.getheader:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The rendezvous backend 'etcd':DeprecationWarning")
@pytest.mark.parametrize("name", ["etcd", "etcd-v2", "etcd-v3"])
def test_two_nodes_meet_by_each_name(name, etcd35):
    from rdzv_core.testing.conformance import Waiting

    run_id = f"meet-{uuid.uuid4().hex[:8]}"
    conf = {"last_call_timeout": 1, "keep_alive_interval": 3}
    asked = RendezvousParameters(name, etcd35.endpoint, run_id, 2, 2, "127.0.0.1", **conf)
    handlers = [get_rendezvous_handler(asked) for _ in range(2)]
    waiting = [Waiting(handler.next_rendezvous) for handler in handlers]
    infos = [each.result(within=60) for each in waiting]
    assert sorted((info.rank, info.world_size) for info in infos) == [(0, 2), (1, 2)]
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert all(handler.shutdown() for handler in handlers)


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore:HTTPResponse.getheader:DeprecationWarning")
def test_create_backend_answers_a_backend_and_a_store_as_torchs_does(etcd35):
    asked = RendezvousParameters("etcd-v2", etcd35.endpoint, f"pair-{uuid.uuid4().hex[:8]}", 1, 1, read_timeout=60)
    backend, store = rdzv_etcd.create_backend(asked)
    assert rdzv_core.create_handler(store, backend, asked).get_backend() == "etcd-v2"
    assert backend.name == "etcd-v2"
    assert backend.get_state() is None
    assert backend.set_state(b"state")[2]
    store.set("a key of this test", "value")
    assert store.get("a key of this test") == b"value"
    assert store.delete_key("a key of this test")
    backend.forget()
    store.close()
    backend.close()


# --- python-etcd


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_import_brings_neither_torch_nor_python_etcd_nor_a_connection():
    said = run(
        "import sys, rdzv_etcd, rdzv_etcd._torchrun\n"
        "rdzv_etcd._torchrun.get_v3_handler()\n"
        "print([m for m in ('torch', 'etcd', 'urllib3', 'dns', 'rdzv_core') if m in sys.modules])\n"
        "from rdzv_etcd import EtcdV3RendezvousBackend, EtcdServer\n"
        "print([m for m in ('torch', 'etcd', 'urllib3', 'dns') if m in sys.modules])"
    )
    assert said.split("\n")[:2] == ["[]", "[]"]


@pytest.mark.parametrize("broken", ["raise ImportError('no such library')", "raise AttributeError('too old')", "x = 1"])
def test_without_python_etcd_v3_works_and_v2_says_so_in_one_sentence(tmp_path, etcd35, broken):
    (tmp_path / "etcd.py").write_text(broken)
    said = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rdzv_core import RendezvousParameters, RendezvousConnectionError, get_rendezvous_handler\n"
        "from rdzv_etcd import EtcdV3RendezvousBackend\n"
        f"b = EtcdV3RendezvousBackend.connect({etcd35.endpoint!r}, 'no-library')\n"
        "print(b.get_state()); b.close()\n"
        f"p = RendezvousParameters('etcd-v2', {etcd35.endpoint!r}, 'no-library', 1, 1)\n"
        "try: get_rendezvous_handler(p)\n"
        "except RendezvousConnectionError as e: print(e)\n"
    )
    first, second = said.strip().split("\n")
    assert first == "None"
    assert "pip install python-etcd==0.4.5" in second
    assert "etcd-v3" in second


def test_only_the_v2_package_imports_python_etcd():
    guilty = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            outside = path.parent.name != "v2"
            if outside and any(name.split(".")[0] in ("etcd", "urllib3") for name in names):
                guilty.append(path.name)
    assert guilty == []


def test_the_client_knows_no_word_of_the_rendezvous():
    for path in (SOURCE / "gateway").glob("*.py"):
        code = path.read_text()
        assert "rdzv_core" not in code.replace("from rdzv_core.dialling import dial\n", ""), path.name
        assert not re.search(r"roster|register|tombstone|announce|barrier", code.lower()), path.name


# --- options and endpoints


@pytest.mark.parametrize(
    ("endpoint", "options", "said"),
    [
        ("redis://h", {}, "scheme"),
        ("http://h/v3", {}, "path"),
        ("h:2379", {"ca_cert": "/no/such/file"}, "ca_cert"),
        ("h:2379", {"ca_cert": __file__}, "not encrypted"),
        ("https://h", {"ssl_cert_key": __file__}, "ssl_cert"),
        ("https://h", {"protocol": "http"}, "protocol"),
        ("h", {"etcd_password": "s3cret"}, "no user"),
        ("h", {"etcd_username": "ann"}, "without a password"),
        ("h", {"key_prefix": "a b"}, "key_prefix"),
        ("h", {"read_timeout": 0}, "read_timeout"),
        ("http://h?read_timeot=3", {}, "read_timeout"),
        ("h,,i", {}, "comma"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(endpoint, options, said):
    with pytest.raises(ValueError, match=said) as caught:
        target_of(endpoint, options, {})
    assert "s3cret" not in str(caught.value)


def test_endpoints_and_where_options_come_from():
    target = target_of(
        "https://ann:p%40ss@a:1,[::1]:2,c?read_timeout=2", {"key_prefix": "x/y"}, {"RDZV_READ_TIMEOUT": "4"}
    )
    cluster = target.cluster
    assert cluster.members == (("a", 1), ("::1", 2), ("c", 2379))
    assert (cluster.tls, cluster.user, cluster.password, cluster.timeout) == (True, "ann", "p@ss", 2.0)
    assert target.key_prefix == "x/y"
    assert "p@ss" not in f"{target!r} {cluster!r} {target}"
    assert target_of("", {}, {}).cluster.members == (("localhost", 2379),)
    assert target_of("h", {"read_timeout": 60}, {}).cluster.timeout == 6.0
    assert target_of("h", {}, {}, V2_OPTIONS).key_prefix == "/torch/elastic/rendezvous"


def test_an_option_that_does_not_exist_is_refused_with_the_nearest_that_does():
    with pytest.raises(ValueError, match="ca_cert"):
        get_rendezvous_handler(parameters(ca_cer="x"))


def test_a_dead_endpoint_ends_a_join_with_the_whole_story():
    handler = get_rendezvous_handler(parameters(endpoint="127.0.0.1:1", join_timeout=1, read_timeout=0.3))
    with pytest.raises(RendezvousConnectionError, match=r"127\.0\.0\.1:1"):
        handler.next_rendezvous()
    handler.shutdown()


# --- documents


def test_the_readme_lists_the_options_as_they_are():
    assert option_table(ETCD_OPTIONS).strip() in README


def test_the_example_in_the_readme_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    run(example)
