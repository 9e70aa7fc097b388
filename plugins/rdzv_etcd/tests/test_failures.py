"""What goes wrong is said: what, where, what was seen, what to do; and nothing hangs past its deadline."""

from __future__ import annotations

import datetime
import http.client
import http.server
import multiprocessing
import os
import threading
import time
import warnings
from contextlib import suppress

import pytest
import trustme
from rdzv_etcd import EtcdRendezvousBackend, EtcdV3RendezvousBackend
from rdzv_etcd.gateway.errors import broken_by
from rdzv_etcd.server import EtcdServer
from rdzv_etcd.target import target_of
from rdzv_etcd.v2.access import clients_of

from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError
from rdzv_core.testing.conformance import Waiting, eventually
from rdzv_core.testing.proxy import FaultProxy

pytestmark = [
    pytest.mark.filterwarnings("ignore:HTTPResponse.getheader:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]

USER, PASSWORD = "trainer", "p@ss:w/rd%"
LONG = 60.0
PATIENT = {"read_timeout": 5.0}
QUICK = {"read_timeout": 0.6}
"""Where it is tried that a call ends when its time is over."""

MADE = []


def by_v3(endpoint, **options):
    MADE.append(EtcdV3RendezvousBackend.connect(endpoint, "run", PATIENT | options))
    return MADE[-1]


def by_v2(endpoint, **options):
    MADE.append(EtcdRendezvousBackend(clients_of(target_of(endpoint, PATIENT | options, {}).cluster), "run", "x"))
    return MADE[-1]


@pytest.fixture(autouse=True)
def _close_all():
    yield
    while MADE:
        MADE.pop().close()


@pytest.fixture(params=[by_v3, by_v2], ids=["v3", "v2"])
def opened(request):
    return request.param


def refusal(call, within=15.0):
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError) as caught:
        call()
    assert time.monotonic() - began < within
    assert PASSWORD not in str(caught.value)
    return caught.value


def came_through(call):
    """What the call answered, if it did in time; else None."""
    with suppress(RendezvousConnectionError):
        return call()


# --- nobody there


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
def test_nobody_listens(opened, endpoint):
    error = refusal(opened(endpoint, **QUICK).get_state, within=5)
    assert "connection refused" in str(error)
    assert "127.0.0.1:1" in str(error)
    assert not error.permanent
    assert not error.maybe_applied


def test_half_of_the_endpoints_are_dead(opened, etcd35):
    backend = opened(f"127.0.0.1:1,{etcd35.endpoint},127.0.0.1:2")
    assert backend.set_state(b"state", "no token") is None or backend.get_state()


def test_a_server_that_is_not_etcd(opened):
    class NotEtcd(http.server.BaseHTTPRequestHandler):
        def answer(self):
            self.send_response(404)
            self.end_headers()

        do_GET = do_POST = do_PUT = answer

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NotEtcd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            error = refusal(opened(f"127.0.0.1:{server.server_port}").get_state)
        finally:
            server.shutdown()
            thread.join()
    assert error.permanent
    assert "v3 API as JSON" in str(error) or "another kind of server" in str(error)


def test_a_server_that_says_nothing(opened, own_server):
    backend = opened(own_server.endpoint, **QUICK)
    eventually("it is connected", lambda: came_through(lambda: backend.get_state() is None), within=20)
    own_server.pause()
    try:
        error = refusal(lambda: backend.set_state(b"state"), within=5)
        assert "no answer in time" in str(error) or "timed out" in str(error)
        assert error.maybe_applied or "grant" in str(error)
    finally:
        own_server.resume()
    eventually("it goes on", lambda: came_through(lambda: backend.set_state(b"state")), within=20)


def test_a_closed_backend_does_not_look_for_its_server(own_server):
    ours = set(threading.enumerate())
    backend = by_v2(own_server.endpoint, read_timeout=LONG)
    _, token, _ = backend.set_state(b"state")
    waiting = Waiting(lambda: backend.wait_state(token, LONG))
    eventually("it listens", lambda: "rdzv-etcd-v2" in {t.name for t in set(threading.enumerate()) - ours}, within=20)
    assert waiting.blocks()
    backend.close()
    assert waiting.result(within=15) is None
    own_server.kill()
    eventually("the listener ends", lambda: not set(threading.enumerate()) - ours, within=15)


# --- TLS


def issue(authority, folder, name, *identities, **how):
    issued = authority.issue_cert(*identities, **how)
    issued.private_key_pem.write_to_path(folder / f"{name}.key")
    (folder / f"{name}.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return {"ssl_cert": str(folder / f"{name}.pem"), "ssl_cert_key": str(folder / f"{name}.key")}


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """Certificates that will not do: of another authority, expired, for another host."""
    folder = tmp_path_factory.mktemp("bad")
    stranger = trustme.CA()
    stranger.cert_pem.write_to_path(folder / "stranger-ca.pem")
    issue(stranger, folder, "stranger", "trainer@example.org")
    ours = trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    issue(ours, folder, "client", "trainer@example.org")
    issue(ours, folder, "elsewhere", "elsewhere.example.org")
    issue(ours, folder, "expired", "127.0.0.1", not_after=datetime.datetime(2020, 1, 1))
    return folder


def test_an_authority_that_did_not_sign_it(opened, tls_etcd, certificates, bad):
    options = certificates.options | {"ca_cert": str(bad / "stranger-ca.pem")}
    error = refusal(opened(tls_etcd.endpoint, **options).get_state)
    assert error.permanent
    assert "certificate is not accepted" in str(error)
    assert "ca_cert" in str(error)


@pytest.mark.parametrize("name", ["expired", "elsewhere"])
def test_a_server_whose_certificate_will_not_do(opened, binaries, bad, name):
    options = {
        "ca_cert": str(bad / "ca.pem"),
        "ssl_cert": str(bad / "client.pem"),
        "ssl_cert_key": str(bad / "client.key"),
    }
    tls = {"tls_cert": bad / f"{name}.pem", "tls_key": bad / f"{name}.key", "tls_ca": bad / "ca.pem"}
    with EtcdServer(binary=binaries["3.5"](), **tls) as server:
        error = refusal(opened(server.endpoint, **options).get_state)
        assert error.permanent
        assert {"expired": "has expired", "elsewhere": "not valid for '127.0.0.1'"}[name] in str(error)
        if name == "elsewhere":
            assert opened(server.endpoint, ssl_check_hostname=False, **options).get_state() is None


def test_no_certificate_of_ours_or_a_strangers(opened, tls_etcd, certificates, bad):
    stranger = {"ssl_cert": str(bad / "stranger.pem"), "ssl_cert_key": str(bad / "stranger.key")}
    for own in ({}, stranger):
        error = refusal(opened(tls_etcd.endpoint, ca_cert=str(certificates.ca), **own).get_state)
        assert error.permanent
        assert "ssl_cert must be given" in str(error)


def test_a_key_that_is_another_certificates(opened, tls_etcd, certificates, bad):
    options = certificates.options | {"ssl_cert_key": str(bad / "stranger.key")}
    error = refusal(lambda: opened(tls_etcd.endpoint, **options).get_state())
    assert error.permanent
    assert "the key must be the one that belongs to them" in str(error)


def test_tls_at_one_end_only(opened, tls_etcd, etcd35, certificates):
    error = refusal(opened(tls_etcd.endpoint.removeprefix("https://")).get_state)
    assert "write https://" in str(error)
    error = refusal(opened(f"https://{etcd35.endpoint}", **certificates.options).get_state)
    assert "write http://" in str(error)


@pytest.mark.parametrize(
    ("tls", "advice"),
    [
        (True, "if it does not speak TLS, write http:// in place of https://"),
        (False, "if it speaks TLS, write https:// in place of http://"),
    ],
)
@pytest.mark.parametrize("how", [ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected])
def test_who_hangs_up_may_have_been_spoken_to_in_the_wrong_way(how, tls, advice):
    """Whether the answer of a plain server is read before it hangs up on a TLS client, is a matter of luck."""
    assert advice in broken_by(how(104, "Connection reset by peer"), sent=not tls, tls=tls).reason


# --- users


def test_no_user_where_one_is_asked_for(guarded_etcd):
    error = refusal(by_v3(guarded_etcd.endpoint).get_state)
    assert error.permanent
    assert "RDZV_ETCD_USERNAME" in str(error)


def test_a_wrong_password(opened, guarded_etcd, v2_guarded_etcd, request):
    server = v2_guarded_etcd if "v2" in request.node.name else guarded_etcd
    error = refusal(opened(f"http://{USER}:wrong-one@{server.endpoint}", read_timeout=10).get_state)
    assert error.permanent
    assert "password is wrong" in str(error)
    assert "wrong-one" not in str(error)


def test_a_right_that_was_not_granted(guarded_etcd, trainer):
    error = refusal(by_v3(f"http://{trainer}@{guarded_etcd.endpoint}", key_prefix="elsewhere").get_state)
    assert error.permanent
    assert "key_prefix" in str(error)


def test_a_user_where_there_are_none(etcd35):
    error = refusal(by_v3(f"http://ann:secret@{etcd35.endpoint}").get_state)
    assert error.permanent
    assert "authentication is not enabled" in str(error)


def test_a_password_from_a_file_or_the_environment(guarded_etcd, tmp_path):
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    options = {"etcd_username": USER, "password_file": str(file)}
    with_file = EtcdV3RendezvousBackend.connect(guarded_etcd.endpoint, "run-f", PATIENT | options)
    assert with_file.get_state() is None
    environ = {"RDZV_ETCD_USERNAME": USER, "RDZV_ETCD_PASSWORD": PASSWORD}
    with_environment = EtcdV3RendezvousBackend.connect(guarded_etcd.endpoint, "run-f", PATIENT, environ=environ)
    assert with_environment.get_state() is None
    file.unlink()
    gone = EtcdV3RendezvousBackend.connect
    with pytest.raises(ValueError, match="there is no file"):
        gone(guarded_etcd.endpoint, "run-f", options)
    for backend in (with_file, with_environment):
        backend.close()


def test_a_login_that_has_ended_is_made_again(guarded_etcd, trainer):
    """Tokens live for 2 s there, and are not renewed by a watch."""
    backend = EtcdV3RendezvousBackend.connect(f"http://{trainer}@{guarded_etcd.endpoint}", "run-login", PATIENT)
    token = backend.set_state(b"0")[1]
    waiting = Waiting(lambda: backend.wait_state(token, LONG))
    assert waiting.blocks()
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        time.sleep(0.1)
    written = backend.set_state(b"1", token)
    assert written[2]
    assert waiting.result(within=20) == (b"1", written[1])
    backend.forget()
    backend.close()


# --- v2 that is off


@pytest.mark.parametrize("version", [pytest.param("3.4", marks=pytest.mark.needs_etcd_server), "3.5"])
def test_v2_that_is_off_names_v3(binaries, version):
    with EtcdServer(binary=binaries[version](), arguments=["--enable-v2=false"]) as server:
        error = refusal(by_v2(server.endpoint).get_state)
        assert error.permanent
        assert "etcd-v3" in str(error)
        assert "--enable-v2" in str(error)


# --- garbage


def test_a_register_that_is_not_ours_is_named(raw, connect, etcd35, run_id):
    raw.put(f"rdzv/{run_id}/run/register", b"by hand")
    backend = connect(etcd35.endpoint)
    for call in (backend.get_state, lambda: backend.set_state(b"x"), lambda: backend.wait_state(None, 1.0)):
        with pytest.raises(RendezvousStateError, match=f"{run_id}/run/register") as caught:
            call()
        assert "another run id" in str(caught.value)


@pytest.mark.parametrize("key", ["node/n1", "left0", "middle/x"])
def test_a_record_that_is_not_ours_is_named(raw, connect, etcd35, run_id, key):
    raw.put(f"rdzv/{run_id}/{key}", b"by hand")
    with pytest.raises(RendezvousStateError, match=f"rdzv/{run_id}/{key}"):
        connect(etcd35.endpoint).roster()


def test_garbage_that_comes_while_one_waits_ends_the_wait(raw, connect, etcd35, run_id):
    backend = connect(etcd35.endpoint)
    seen = backend.roster().version
    waiting = Waiting(lambda: backend.roster(seen, LONG))
    assert waiting.blocks()
    raw.put(f"rdzv/{run_id}/node/n1", b"by hand")
    with pytest.raises(RendezvousStateError, match="node/n1"):
        waiting.result(within=20)


def test_garbage_by_the_v2_api_is_named(etcd35, run_id):
    client = etcd35.get_client()
    backend = EtcdRendezvousBackend(client, run_id, "x")
    client.write(f"/x/run.{run_id}/run/register", "by hand!")
    client.write(f"/x/run.{run_id}/nodes/.n1", "by hand!")
    with pytest.raises(RendezvousStateError, match="run/register"):
        backend.get_state()
    with pytest.raises(RendezvousStateError, match=r"nodes/\.n1"):
        backend.roster()
    client.delete(f"/x/run.{run_id}", recursive=True)


# --- watches


def test_a_compacted_past_is_read_again(raw, connect, etcd35, run_id):
    """While the watch is cut off everything that it was to tell is compacted away."""
    with FaultProxy(etcd35.host, etcd35.port) as proxy:
        backend, other = connect(proxy.endpoint), connect(etcd35.endpoint)
        token = backend.set_state(b"0")[1]
        waiting = Waiting(lambda: backend.wait_state(token, LONG))
        assert waiting.blocks()
        proxy.refuse = True
        proxy.cut()
        written = other.set_state(b"1", token)
        for n in range(20):
            raw.put(f"rdzv/{run_id}/store/x", b"%d" % n)
        revision = raw.call("kv/range", {"key": "AA=="})["header"]["revision"]
        raw.call("kv/compaction", {"revision": revision, "physical": True})
        proxy.mend()
        with suppress(RendezvousConnectionError):
            assert waiting.result(within=20) == (b"1", written[1])
        assert backend.wait_state(token, LONG) == (b"1", written[1])


def test_a_watch_that_is_too_far_back_is_begun_anew(raw, etcd35):
    """etcd cancels it and says up to where the past is gone."""
    from rdzv_etcd.gateway import Gateway, WatchEnded

    raw.put("compaction", b"1")
    raw.put("compaction", b"2")
    revision = int(raw.call("kv/range", {"key": "AA=="})["header"]["revision"])
    raw.call("kv/compaction", {"revision": str(revision), "physical": True})
    gateway = Gateway(target_of(etcd35.endpoint, {}, {}).cluster)
    watch = gateway.watch("listen", b"compaction", b"", max(1, revision - 1))
    with pytest.raises(WatchEnded, match="compacted"):
        watch.next(20)
    gateway.unwatch(watch)
    gateway.close()


def test_a_watch_whose_client_was_closed_between_two_reads_has_ended(etcd35):
    from rdzv_etcd.gateway import Gateway, WatchEnded

    gateway = Gateway(target_of(etcd35.endpoint, {}, {}).cluster)
    watch = gateway.watch("listen", b"closing", b"", 0)
    assert watch.next(0) == ()
    gateway.close()
    for _ in range(2):
        with pytest.raises(WatchEnded, match="the connection is lost"):
            watch.next(5)


def test_waits_go_on_over_a_restart_of_the_server(connect, own_server):
    backend, other = connect(own_server.endpoint), connect(own_server.endpoint)
    token = backend.set_state(b"0")[1]
    seen = backend.roster().version
    waits = [Waiting(lambda: backend.wait_state(token, LONG)), Waiting(lambda: backend.roster(seen, LONG))]
    assert all(wait.blocks() for wait in waits)
    own_server.kill()
    own_server.start()
    written = other.set_state(b"1", token)
    other.announce("n1", 1, b"", LONG)
    state, roster = (wait.result(within=20) for wait in waits)
    assert state == (b"1", written[1])
    assert [entry.node_id for entry in roster.records] == ["n1"]


# --- forks


def _in_child(backend, answers):
    try:
        backend.announce("child", 1, b"", LONG)
        answers.send(backend.wait_state(None, LONG)[0])
    except BaseException as error:
        answers.send(repr(error))
    os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_goes_its_own_way(connect, etcd35):
    backend = connect(etcd35.endpoint)
    token = backend.set_state(b"state")[1]
    waiting = Waiting(lambda: backend.wait_state(token, LONG))
    assert waiting.blocks()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # to fork beside threads is what is tried here
        child = context.Process(target=_in_child, args=(backend, theirs))
        child.start()
    assert ours.poll(30)
    assert ours.recv() == b"state"
    child.join(30)
    assert backend.set_state(b"new", token)[2]
    assert waiting.result(within=20)[0] == b"new"
    assert [entry.node_id for entry in backend.roster().records] == ["child"]
