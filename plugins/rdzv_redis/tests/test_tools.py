import pytest
from rdzv_redis import runs

from rdzv_core.errors import RendezvousConnectionError


def test_runs_are_listed_by_their_ids(own_server, connect):
    assert runs(own_server.endpoint) == ()
    names = {f"job {n}" for n in range(30)} | {"ä:{x}"}
    for n, name in enumerate(sorted(names)):
        backend = connect(own_server.endpoint, run=name)
        if n % 2:
            backend.set_state(b"state")
        else:
            backend.announce("n1", 1, b"record", 60.0)
    connect(own_server.endpoint, run="pages only").publish("g", [b"page"], 60.0)
    connect(own_server.endpoint, run="elsewhere", key_prefix="other").set_state(b"state")
    assert runs(own_server.endpoint) == tuple(sorted(names))
    assert runs(own_server.endpoint, {"key_prefix": "other"}) == ("elsewhere",)
    connect(f"redis://{own_server.endpoint}/3", run="in another database").set_state(b"state")
    assert runs(f"redis://{own_server.endpoint}/3") == ("in another database",)


def test_who_may_not_scan_is_told(guarded_redis, certificates, trainer):
    endpoint = f"rediss://{trainer}@{guarded_redis.host}:{guarded_redis.port}"
    with pytest.raises(RendezvousConnectionError, match="may not run the command"):
        runs(endpoint, certificates.options)
