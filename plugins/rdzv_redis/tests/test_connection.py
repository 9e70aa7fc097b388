"""Endpoints and options: what is understood, what is refused and how, and that no secret shows."""

from __future__ import annotations

import pytest
import redis.connection
from rdzv_redis.connection import target_of

from rdzv_core.errors import RendezvousConnectionError

SECRET = "s3cret-w0rd"


@pytest.mark.parametrize(
    ("text", "host", "port", "database"),
    [
        ("", "localhost", 6379, 0),
        ("  ", "localhost", 6379, 0),
        ("db", "db", 6379, 0),
        (" db:7000\n", "db", 7000, 0),
        ("[2001:db8::1]:7000", "2001:db8::1", 7000, 0),
        ("redis://db", "db", 6379, 0),
        ("redis://db:7000/3", "db", 7000, 3),
        ("redis://db?db=4", "db", 6379, 4),
        ("rediss://[2001:db8::1]/5", "2001:db8::1", 6379, 5),
    ],
)
def test_an_endpoint_that_is_understood(text, host, port, database):
    target = target_of(text, {}, {})
    assert (target.endpoint.host, target.endpoint.port, target.database) == (host, port, database)
    connection = target.connection(1.0)
    assert (connection.host, connection.port, connection.db) == (host, port, database)
    assert isinstance(connection, redis.connection.SSLConnection) == text.startswith("rediss")


def test_a_unix_socket():
    target = target_of("unix:///run/redis%20x.sock?db=2", {}, {})
    connection = target.connection(1.0)
    assert (connection.path, connection.db) == ("/run/redis x.sock", 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("redis://db/one", "names the database 'one'"),
        ("redis://db/1?db=2", "names two databases"),
        ("redis://db/1/2", "names the database '1/2'"),
        ("http://db", "not one of redis://, rediss://, unix://"),
        ("a:1,b:2", "several addresses"),
        ("redis://db?read_timeot=3", "Did you mean 'read_timeout'"),
        ("redis://db?socket_timeout=3", "There is no option 'socket_timeout'"),
        ("redis://db?read_timeout=soon", "'soon' is not a duration in seconds above 0"),
        ("redis://db?read_timeout=soon", "query of the endpoint 'redis://db:6379"),
        ("unix://", "path of the socket is empty"),
        ("redis://db?ssl_check_hostname=perhaps", "true or false"),
    ],
)
def test_an_endpoint_that_is_refused_with_a_sentence(text, words):
    with pytest.raises(ValueError, match=r".") as refusal:
        target_of(text, {}, {})
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        f"redis://ann:{SECRET}@db:70000",
        f"redis://ann:{SECRET}@db/one",
        f"redis://ann:{SECRET}@db?bogus=1",
        f"redis://ann:{SECRET}@db?redis_password={SECRET}&read_timeout=soon",
        f"http://ann:{SECRET}@db",
        f"redis://ann:{SECRET}@",
        f"redis://ann:{SECRET}@db,other",
        f"ann:{SECRET}@db",
    ],
)
def test_no_refusal_shows_a_password(text):
    with pytest.raises(ValueError, match=r".") as refusal:
        target_of(text, {}, {})
    assert SECRET not in str(refusal.value)


def test_no_text_form_of_a_target_shows_a_password():
    given = target_of(f"redis://ann:{SECRET}@db/1", {}, {})
    environment = target_of("db", {}, {"RDZV_REDIS_PASSWORD": SECRET})
    assert (given.password, environment.password) == (SECRET, SECRET)
    for target in (given, environment):
        assert SECRET not in f"{target} {target!r}"


@pytest.mark.parametrize(
    ("endpoint", "options", "environ", "user", "password"),
    [
        ("redis://ann:a%40b@db", {}, {"RDZV_REDIS_USERNAME": "bob", "RDZV_REDIS_PASSWORD": "x"}, "ann", "a@b"),
        ("db", {}, {"RDZV_REDIS_USERNAME": "bob", "RDZV_REDIS_PASSWORD": "a%40b"}, "bob", "a%40b"),
        ("redis://db?redis_username=eve", {}, {"RDZV_REDIS_USERNAME": "bob"}, "eve", None),
        ("db", {"redis_username": "eve"}, {"RDZV_REDIS_USERNAME": "bob"}, "eve", None),
    ],
)
def test_who_enters(endpoint, options, environ, user, password):
    target = target_of(endpoint, options, environ)
    assert (target.username, target.password) == (user, password)


def test_an_empty_endpoint_is_looked_up_in_the_environment():
    target = target_of(" ", {}, {"RDZV_REDIS_URL": f"redis://:{SECRET}@db:7000/2"})
    assert str(target) == "redis://:***@db:7000/2"
    assert (target.password, target.database) == (SECRET, 2)


def test_an_option_beats_the_query_which_beats_the_environment():
    environ = {"RDZV_READ_TIMEOUT": "1"}
    assert target_of("redis://db?read_timeout=2", {"read_timeout": 3}, environ).read_timeout == 3
    assert target_of("redis://db?read_timeout=2", {}, environ).read_timeout == 2
    assert target_of("redis://db", {}, environ).read_timeout == 1


def test_a_query_is_decoded_once(tmp_path):
    path = tmp_path / "100%2C sure"
    path.write_text("first line\nsecond")
    quoted = str(path).replace("%", "%25").replace(" ", "%20")
    assert target_of(f"redis://db?password_file={quoted}", {}, {}).password_file == path


def test_a_password_file_is_read_at_each_connect(tmp_path):
    path = tmp_path / "password"
    path.write_text("old\n")
    target = target_of("db", {"password_file": str(path)}, {})
    assert target.connection(1.0).password == "old"
    path.write_text("new\nnot this\n")
    assert target.connection(1.0).password == "new"


def test_a_password_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "password"
    path.write_bytes(b"\xff\xfe\xfd")
    target = target_of("db", {"password_file": str(path)}, {})
    with pytest.raises(RendezvousConnectionError, match=f"'{path}' cannot be read \\(it is no text in UTF-8\\)"):
        target.connection(1.0)


@pytest.mark.parametrize("name", ["password_file", "ssl_ca_certs"])
def test_a_file_that_is_not_there_is_named(name):
    with pytest.raises(ValueError, match=f"Option '{name}': there is no file '/no/such/file'"):
        target_of("rediss://db", {name: "/no/such/file"}, {})


def test_tls_options_without_tls_are_refused(certificates):
    with pytest.raises(ValueError, match=r"not encrypted; write rediss://"):
        target_of("db", {"ssl_ca_certs": str(certificates.ca)}, {})


def test_a_certificate_needs_its_key(certificates):
    with pytest.raises(ValueError, match="need each other"):
        target_of("rediss://db", {"ssl_certfile": str(certificates.client)}, {})


def test_a_connection_repeats_nothing_by_itself():
    connection = target_of("db", {"read_timeout": 1.5}, {}).connection(0.7)
    assert connection.retry._retries == 0
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (1.5, 0.7)
