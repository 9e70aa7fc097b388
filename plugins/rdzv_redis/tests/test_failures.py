"""A network and a server that fail: what is told, how soon, and that all goes on afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time

import pytest
import redis
from rdzv_redis import RedisRendezvousBackend, RedisServer, create_handler
from rdzv_redis.connection import Target
from rdzv_redis.link import Link

from rdzv_core.api import RendezvousParameters
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError
from rdzv_core.testing.conformance import Waiting, eventually, together
from rdzv_core.testing.proxy import FaultProxy

LONG = 60.0
HASTY = 0.3
"""Seconds that a call may take which is to fail for want of an answer."""
SECRET = "s3cret-w0rd"


@pytest.fixture
def proxy(valkey):
    with FaultProxy(valkey.host, valkey.port) as proxy:
        yield proxy


def fails(call, *, within):
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError) as caught:
        call()
    assert time.monotonic() - began < within
    return caught.value


@contextlib.contextmanager
def hasty(backend):
    """Let calls have :data:`HASTY` seconds; before and after they have as long as a busy machine needs."""
    link, usual = backend._link, backend._link.target
    link.target = dataclasses.replace(usual, read_timeout=HASTY)
    try:
        yield
    finally:
        link.target = usual


def said(call):
    """What the call's error says; nothing if there is none."""
    try:
        call()
    except RendezvousConnectionError as error:
        return str(error)
    return ""


# --- lost answers


def test_a_write_whose_answer_was_lost_finds_out(connect, proxy):
    backend = connect(proxy.endpoint)
    token = backend.set_state(b"before")[1]
    proxy.lose_replies(1)
    state, new, did = backend.set_state(b"after", token)
    assert (state, did) == (b"after", True)
    assert new.startswith("2."), "it was written more than once"


def test_a_write_whose_answer_was_lost_and_that_was_overtaken_says_that_it_is_unsure(
    connect, proxy, valkey, monkeypatch
):
    backend, other = connect(proxy.endpoint), connect(valkey.endpoint)
    token = backend.set_state(b"before")[1]
    proxy.lose_replies(1)
    plain = Link._try

    def overtaken(link, attempt, *rest):
        try:
            return plain(link, attempt, *rest)
        except Exception:
            if link is backend._link:
                state, mine, _ = other.set_state(b"", None)
                assert state == b"mine", "the lost write was not applied"
                other.set_state(b"theirs", mine)
            raise

    monkeypatch.setattr(Link, "_try", overtaken)
    error = fails(lambda: backend.set_state(b"mine", token), within=10)
    assert error.maybe_applied
    assert "read again" in str(error)


@pytest.mark.parametrize(
    ("call", "unsure"),
    [
        (lambda b: b.set_state(b"state"), True),
        (lambda b: b.announce("n1", 1, b"", LONG), True),
        (lambda b: b.pulse("n1", 1, LONG), True),
        (lambda b: b.withdraw("n1", 1, LONG), True),
        (lambda b: b.publish("g", [b"p"], LONG), True),
        (lambda b: b.forget(), True),
        (lambda b: b.get_state(), False),
        (lambda b: b.page("g", 0), False),
        (lambda b: b.roster(), False),
    ],
    ids=["set_state", "announce", "pulse", "withdraw", "publish", "forget", "get_state", "page", "roster"],
)
def test_a_server_that_falls_silent_is_noticed_in_time(connect, proxy, call, unsure):
    backend = connect(proxy.endpoint)
    backend.get_state()
    proxy.drop_replies = True
    with hasty(backend):
        error = fails(lambda: call(backend), within=10)
    assert error.maybe_applied == unsure
    proxy.mend()
    proxy.cut()
    call(backend)


def test_a_write_that_was_never_sent_is_sure(connect, own_server):
    backend = connect(own_server.endpoint)
    backend.get_state()
    own_server.kill()
    with hasty(backend):
        error = fails(lambda: backend.set_state(b"state"), within=10)
    assert not error.maybe_applied
    assert "was not reached" in str(error)


def test_a_short_outage_is_bridged(connect, proxy):
    backend = connect(proxy.endpoint)
    backend.get_state()
    proxy.refuse = True
    proxy.cut()
    call = Waiting(lambda: backend.announce("n1", 1, b"", LONG))
    eventually("it has tried again", lambda: proxy.connections > 3, within=10)
    proxy.mend()
    assert call.result(within=10).known


def test_a_connection_that_went_stale_is_not_used(connect, proxy):
    backend = connect(proxy.endpoint)
    backend.get_state()
    proxy.cut()
    eventually("the cut has arrived", lambda: proxy.open_connections == 0, within=10)
    _, attempt = backend._link.run("try", "forget", backend._keys.every, (), writes=True)
    assert not attempt.unsure


# --- waits


def test_a_wait_whose_connection_broke_says_so_and_the_next_one_reads_again(connect, proxy, valkey):
    backend, other = connect(proxy.endpoint), connect(valkey.endpoint)
    token = other.set_state(b"before")[1]
    waiting = Waiting(lambda: backend.wait_state(token, LONG))
    eventually("it listens", lambda: backend._register_news.listens, within=10)
    proxy.cut()
    written = other.set_state(b"while nobody listened", token)
    with pytest.raises(RendezvousConnectionError, match="listen"):
        waiting.result(within=10)
    assert backend.wait_state(token, LONG) == written[:2]


def test_a_roster_wait_whose_connection_broke_says_so_and_the_next_one_reads_again(connect, proxy, valkey):
    backend, other = connect(proxy.endpoint), connect(valkey.endpoint)
    other.announce("n1", 1, b"", LONG)
    seen = backend.roster()
    waiting = Waiting(lambda: backend.roster(seen.version, LONG))
    eventually("it listens", lambda: backend._roster_news.listens, within=10)
    proxy.cut()
    other.announce("n2", 1, b"", LONG)
    with pytest.raises(RendezvousConnectionError, match="listen"):
        waiting.result(within=10)
    assert len(backend.roster(seen.version, LONG).onto(seen).records) == 2


def test_a_wait_on_a_connection_that_died_in_silence_is_made_good_by_the_pulse(connect, proxy, valkey):
    backend, other = connect(proxy.endpoint), connect(valkey.endpoint)
    backend.announce("n1", 1, b"", LONG)
    token = other.set_state(b"before")[1]
    assert backend.wait_state(token, 0.0) is None  # it listens from now on
    proxy.half_open()
    waiting = Waiting(lambda: backend.wait_state(token, 1.0))
    new = other.set_state(b"after", token)[1]
    with hasty(backend):
        fails(lambda: backend.pulse("n1", 1, LONG), within=10)
    assert waiting.result(within=10) is None
    proxy.mend()
    proxy.cut()
    assert backend.pulse("n1", 1, LONG).token == new
    assert backend.get_state()[1] == new


# --- the server


def test_a_server_that_is_paused_and_goes_on(connect, own_server):
    backend = connect(own_server.endpoint)
    assert backend.announce("n1", 1, b"", LONG).known
    token = backend.set_state(b"before")[1]
    assert backend.wait_state(token, 0.0) is None  # it listens from now on
    waiting = Waiting(lambda: backend.wait_state(token, LONG))
    own_server.pause()
    with hasty(backend):
        fails(lambda: backend.pulse("n1", 1, LONG), within=10)
    assert waiting.blocks(), "a pause is no lost connection"
    own_server.resume()
    assert backend.pulse("n1", 1, LONG).known
    written = backend.set_state(b"after", token)
    assert waiting.result(within=10) == written[:2]


def test_a_server_that_comes_back_empty(connect, own_server):
    backend = connect(own_server.endpoint)
    backend.announce("n1", 1, b"", LONG)
    token = backend.set_state(b"before")[1]
    seen = backend.roster()
    waiting = Waiting(lambda: backend.wait_state(token, LONG))
    eventually("it listens", lambda: backend._register_news.listens, within=10)
    own_server.kill()
    with pytest.raises(RendezvousConnectionError):
        waiting.result(within=10)
    own_server.start()
    answer = backend.pulse("n1", 1, LONG)
    assert (answer.known, answer.leads, answer.token) == (False, False, None)
    assert backend.wait_state(token, LONG) is None
    assert backend.set_state(b"stale", token) is None
    assert backend.announce("n1", 2, b"", LONG).leads
    again = backend.roster(seen.version)
    assert (again.base, [e.node_id for e in again.records]) == (None, ["n1"])


def test_a_server_that_is_not_there(run_id, own_server):
    own_server.kill()
    backend = RedisRendezvousBackend.connect(own_server.endpoint, run_id, {"read_timeout": 0.3})
    error = fails(backend.get_state, within=10)
    assert f"Redis at {own_server.endpoint} was not reached" in str(error)
    assert isinstance(error.__cause__, redis.ConnectionError)
    backend.close()


# --- a server that refuses


def admin(server, *command, **login):
    with redis.Redis(host=server.host, port=server.port, **login) as client:
        return client.execute_command(*command)


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (f"redis://:{SECRET}@{{}}", "user name or password is wrong"),
        (f"redis://ann:{SECRET}@{{}}", "user name or password is wrong"),
        ("redis://{}", "asks for a password and none was given"),
        ("redis://:right@{}/99", "no database of that number"),
    ],
)
def test_a_wrong_key_is_told_at_once_and_not_shown(connect, own_server, endpoint, words):
    admin(own_server, "CONFIG", "SET", "requirepass", "right")
    backend = connect(endpoint.format(own_server.endpoint))
    error = fails(backend.get_state, within=10)
    assert words in str(error)
    assert error.permanent
    assert SECRET not in str(error)
    assert "right@" not in str(error)
    with pytest.raises(RendezvousConnectionError, match=words):
        backend.wait_state(None, 1.0)


def test_a_wrong_key_ends_the_join_at_once(own_server, run_id):
    """And not when its join timeout is over, which under torchrun is a quarter of an hour."""
    admin(own_server, "CONFIG", "SET", "requirepass", "right")
    endpoint = f"redis://:{SECRET}@{own_server.endpoint}"
    handler = create_handler(RendezvousParameters("redis", endpoint, run_id, 1, 1, "127.0.0.1", join_timeout=600))
    error = fails(handler.next_rendezvous, within=10)
    assert "user name or password is wrong" in error.message
    assert SECRET not in str(error)
    handler.shutdown()


def test_a_password_where_none_is_set(connect, own_server):
    admin(own_server, "CONFIG", "SET", "requirepass", "")
    backend = connect(f"redis://:{SECRET}@{own_server.endpoint}")
    assert "has none set" in str(fails(backend.get_state, within=10))


def test_a_user_without_rights(connect, own_server):
    admin(own_server, "ACL", "SETUSER", "ann", "on", f">{SECRET}", "~other:*", "+@all")
    backend = connect(f"redis://ann:{SECRET}@{own_server.endpoint}")
    for call in (backend.get_state, lambda: backend.set_state(b"x"), lambda: backend.announce("n", 1, b"", 1.0)):
        error = fails(call, within=10)
        assert error.permanent
        assert "'~rdzv:*', '&rdzv:*'" in str(error)
    admin(own_server, "ACL", "SETUSER", "ann", "resetchannels", "~rdzv:*")
    assert "'~rdzv:*', '&rdzv:*'" in str(fails(lambda: backend.wait_state(None, 1.0), within=10))


def test_a_server_that_is_full(connect, own_server):
    backend = connect(own_server.endpoint)
    admin(own_server, "CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction")
    error = fails(lambda: backend.set_state(b"x"), within=10)
    assert "out of memory" in str(error)
    assert not error.permanent, "somebody may make room"


def test_a_replica_is_refused_with_advice(connect, own_server):
    admin(own_server, "REPLICAOF", "127.0.0.1", "1")
    backend = connect(own_server.endpoint, read_timeout=HASTY)
    assert "Point the endpoint at the primary" in str(fails(lambda: backend.set_state(b"x"), within=10))


def test_a_primary_that_was_demoted_is_let_go(connect, own_server, valkey):
    """It keeps its connections; the name of the endpoint leads to another server by now."""
    with FaultProxy(own_server.host, own_server.port) as proxy:
        backend = connect(proxy.endpoint)
        taken = [backend._link.take(time.monotonic() + 5) for _ in range(3)]
        for connection in taken:
            backend._link.give_back(connection)
        assert backend.announce("n1", 1, b"", LONG).known
        admin(own_server, "REPLICAOF", "127.0.0.1", "1")
        proxy.lead_to(valkey.host, valkey.port)
        assert backend.announce("n1", 2, b"", LONG).known
        assert connect(valkey.endpoint).roster().records
        assert len(backend._link._idle) == 1, "none that leads to the old one is kept"


def test_a_server_without_connections_left(connect, own_server):
    admin(own_server, "CONFIG", "SET", "maxclients", "1")
    with redis.Redis(host=own_server.host, port=own_server.port) as client:
        client.ping()
        backend = connect(own_server.endpoint, read_timeout=HASTY)
        assert "Raise maxclients" in str(fails(backend.get_state, within=10))


def test_a_server_held_up_by_a_script_is_waited_for(connect, own_server):
    admin(own_server, "CONFIG", "SET", "busy-reply-threshold", "10")
    impatient, backend = (connect(own_server.endpoint, read_timeout=seconds) for seconds in (0.5, LONG))
    assert impatient.get_state() is backend.get_state() is None
    with redis.Redis(host=own_server.host, port=own_server.port, socket_timeout=30) as client:
        hold = Waiting(lambda: client.eval("while true do end", 0))
        eventually("it is told", lambda: "somebody's long script" in said(impatient.get_state), within=30)
        call = Waiting(backend.get_state)
        assert call.blocks()
        admin(own_server, "SCRIPT", "KILL")
        assert call.result(within=10) is None
        with pytest.raises(redis.ResponseError):
            hold.result(within=10)


def test_a_key_of_another_kind_is_a_state_error(connect, valkey, raw, run_id):
    backend = connect(valkey.endpoint)
    raw.set(f"rdzv:{{{run_id}}}:nodes", "mine", ex=60)
    with pytest.raises(RendezvousStateError, match="another kind of value"):
        backend.announce("n1", 1, b"", LONG)


def test_what_nobody_expects_the_server_to_say_is_no_fault_of_ours(backend):
    """A proxy's own words, say: a running job bears it as an outage."""
    error = fails(lambda: backend._link.command("misuse", "HGET", "one argument only"), within=10)
    assert "refused to misuse: nothing that is known to go wrong explains it" in str(error)
    assert "wrong number of arguments" in str(error)
    assert not error.permanent


def test_a_server_that_does_not_know_a_command_is_refused_with_advice(backend):
    error = fails(lambda: backend._link.command("ask", "NOSUCHCOMMAND"), within=10)
    assert "the server does not know the command" in str(error)
    assert error.permanent


def test_what_is_no_redis_is_told_at_once(connect):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_as_a_web_server() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1024)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = Waiting(answer_as_a_web_server)
        backend = connect(f"127.0.0.1:{listener.getsockname()[1]}")
        error = fails(backend.get_state, within=10)
        answering.result(within=10)
    assert "does not speak Redis's protocol, or only in TLS" in str(error)
    assert "It said: Protocol" in str(error), "with or without hiredis"
    assert error.permanent


@pytest.mark.parametrize(
    "call",
    [lambda b: b.get_state(), lambda b: b.announce("n1", 1, b"record", LONG), lambda b: b.set_state(b"x" * 100_000)],
    ids=["of few words", "of many words", "of a long word"],
)
def test_a_password_that_is_wanted_and_was_not_given_is_told_at_once(connect, valkey, call):
    """A server hears out a command of many words, or of a long one, only from those whom it knows."""
    with RedisServer(binary=valkey.binary, password=SECRET) as server:
        backend = connect(f"{server.host}:{server.port}")
        error = fails(lambda: call(backend), within=10)
    assert "asks for a password and none was given. Set RDZV_REDIS_PASSWORD" in str(error)
    assert error.permanent


def test_programming_errors_pass(backend):
    with pytest.raises(TypeError):
        backend.announce("n1", 1, "text is no record", LONG)


def test_too_many_connections_are_refused_with_advice(connect, valkey):
    backend = connect(valkey.endpoint, max_connections=3, read_timeout=HASTY)
    deadline = time.monotonic() + 5
    taken = [backend._link.take(deadline) for _ in range(3)]
    assert "max_connections" in str(fails(backend.get_state, within=10))
    call = Waiting(backend.get_state)
    backend._link.give_back(taken.pop())
    assert call.result(within=10) is None


def test_a_connection_that_is_given_back_wakes_who_waits_for_one(connect, valkey):
    """And not only somebody who pauses between two tries."""
    backend = connect(valkey.endpoint, max_connections=3, read_timeout=30)
    link = backend._link
    taken = [link.take(time.monotonic() + 5) for _ in range(3)]

    def pause() -> None:
        with link._changed:
            link._changed.wait_for(lambda: link.closed, LONG)

    pausing = Waiting(pause)
    assert pausing.blocks()
    call = Waiting(backend.get_state)
    assert call.blocks()
    link.give_back(taken.pop())
    assert call.result(within=10) is None
    link.close()
    pausing.result(within=10)


def test_no_more_connections_are_opened_than_allowed_by_any_number_of_threads_at_once(connect, valkey, monkeypatch):
    backend = connect(valkey.endpoint, max_connections=3, read_timeout=30)
    link, make, counts = backend._link, Target.connection, []

    def make_slowly(target: Target, connect_timeout: float) -> object:
        time.sleep(0.02)  # for the others to find that there is room
        counts.append(len(link._all))
        return make(target, connect_timeout)

    monkeypatch.setattr(Target, "connection", make_slowly)
    together([backend.get_state] * 20)
    assert max(counts) < 3


def test_who_listens_takes_no_connection_from_those_who_call(connect, valkey):
    backend = connect(valkey.endpoint, max_connections=1)
    token = backend.set_state(b"before")[1]
    seen = backend.roster().version
    waits = [Waiting(lambda: backend.wait_state(token, LONG)), Waiting(lambda: backend.roster(seen, LONG))]
    assert all(wait.blocks() for wait in waits)
    backend.set_state(b"after", token)
    backend.announce("n1", 1, b"", LONG)
    assert [wait.result(within=10) is not None for wait in waits] == [True, True]


# --- refusals that the client library takes for a broken connection


@pytest.mark.parametrize(
    "answer",
    [
        redis.BusyLoadingError("Redis is loading the dataset in memory"),
        redis.ConnectionError("max number of clients reached"),
        redis.AuthenticationError("NOAUTH Authentication required."),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_a_call_that_was_refused_has_surely_done_nothing(connect, valkey, monkeypatch, answer):
    backend = connect(valkey.endpoint, read_timeout=HASTY)

    def refuse(*_):
        raise answer

    monkeypatch.setattr(Link, "_exchange", refuse)
    error = fails(lambda: backend.announce("n1", 1, b"", LONG), within=10)
    assert not error.maybe_applied
    assert "refused to announce a node" in str(error)


# --- TLS


def test_without_a_certificate_the_door_stays_shut(connect, guarded_redis, certificates, trainer):
    options = {"ssl_ca_certs": str(certificates.ca), "read_timeout": 0.5}
    backend = connect(f"rediss://{trainer}@{guarded_redis.host}:{guarded_redis.port}", **options)
    assert "trainer:***@" in str(fails(backend.get_state, within=10))


def test_a_server_that_we_do_not_trust(connect, guarded_redis, trainer):
    backend = connect(f"rediss://{trainer}@{guarded_redis.host}:{guarded_redis.port}", read_timeout=0.5)
    error = fails(backend.get_state, within=10)
    assert "certificate verify failed" in str(error)
    assert "see the options ssl_ca_certs" in str(error)
    assert error.permanent
