"""Endpoints are understood or refused with a sentence; passwords stay out of sight."""

from __future__ import annotations

import ipaddress
import pickle
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_core.endpoint import Address, Endpoint, mask_secrets, parse_endpoint

SCHEMES = ("redis", "rediss", "unix", "redis+unix")


def parse(text: str | None, **how: object) -> Endpoint:
    return parse_endpoint(text, **{"default_port": 6379, "schemes": SCHEMES, **how})


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:0", "localhost", 0),
        ("192.0.2.16", "192.0.2.16", 6379),
        ("192.0.2.16:1234", "192.0.2.16", 1234),
        ("[2001:db8::1]:29400", "2001:db8::1", 29400),
        ("[2001:db8::1]", "2001:db8::1", 6379),
        ("2001:db8::1", "2001:db8::1", 6379),
        ("::1", "::1", 6379),
        ("my_host:29400", "my_host", 29400),
        (" h:1 ", "h", 1),
        ("h:65535", "h", 65535),
        ("node-7.cluster.example.:7", "node-7.cluster.example.", 7),
        ("redis://h", "h", 6379),
        ("REDIS://h:1", "h", 1),
        ("redis://[2001:db8::1]:2/0", "2001:db8::1", 2),
    ],
)
def test_host_and_port(text: str, host: str, port: int):
    endpoint = parse(text)
    assert (endpoint.host, endpoint.port) == (host, port)
    assert endpoint.addresses == (Address(host=host, port=port),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (":8080", "the host part is empty; is a variable unset?"),
        ("[]:80", "the host part is empty"),
        ("redis://:8080", "the host part is empty"),
        ("redis:///0", "the host part is empty"),
        ("h:", "the port is empty"),
        ("h:65536", "not a number from 0 to 65535"),
        ("h:99999999", "not a number from 0 to 65535"),
        ("h:abc", "not a number from 0 to 65535"),
        ("h:-1", "not a number from 0 to 65535"),
        ("h:\u0661", "not a number from 0 to 65535"),
        ("h 1", "a blank inside"),
        ("h1:1, h2:2", "a blank inside"),
        ("h\x001", "cannot be printed"),
        ("h1:2379,h2:2379", "this backend takes one"),
        ("2001:db8::1::2", "no IPv6 address"),
        ("h:1:2", "no IPv6 address"),
        ("[2001:db8::1", "is not closed"),
        ("[2001:db8::1]29400", "follows the bracket"),
        ("[192.0.2.1]:1", "no IPv6 address"),
        ("fe80::1%eth0", "on one machine only"),
        ("[fe80::1%25eth0]:1", "on one machine only"),
        ("8080", "looks like a port"),
        ("256.0.0.1:1", "looks like an IPv4 address but is none"),
        ("1.2.3:1", "looks like an IPv4 address but is none"),
        ("a..b:1", "neither a host name nor an IP address"),
        ("-h:1", "neither a host name nor an IP address"),
        ("x" * 64 + ":1", "63 between dots"),
        (".".join(["abcdefgh"] * 40), "at most 253"),
        ("h:1/prefix", "needs the URL form, such as redis://HOST/PATH"),
        ("http://h:1", "the scheme 'http://' is not one of redis://, rediss://, unix://"),
        ("://h:1", "no URL scheme"),
        ("redis://h:1/#x", "'#'"),
        ("redis://h:1/?=x", "a value without a name"),
        ("redis://h:1/?a=1&a=2", "names 'a' twice"),
        ("redis://h:1/%zz", "a plain '%' as %25"),
        ("redis://u:%ff@h:1", "does not decode to UTF-8"),
        ("unix://h/x", "a path but no host"),
        ("unix://", "the path of the socket is empty"),
    ],
)
def test_refusals(text: str, why: str):
    with pytest.raises(ValueError, match=r"^The rendezvous endpoint") as caught:
        parse(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "  "])
def test_empty_means_localhost_only_where_that_is_allowed(text: str | None):
    assert parse(text, allow_empty=True).addresses == (Address(host="localhost", port=6379),)
    with pytest.raises(ValueError, match=r"is empty.*HOST:6379"):
        parse(text)


def test_a_url_is_refused_where_none_is_understood():
    with pytest.raises(ValueError, match="a URL is not understood here; write HOST or HOST:PORT"):
        parse("redis://h:1", schemes=())
    with pytest.raises(ValueError, match="needs the URL form, which is not understood here"):
        parse("h:1/x", schemes=())


def test_lists():
    several = parse("h1:1,[2001:db8::1],h3", allow_list=True)
    assert [str(a) for a in several.addresses] == ["h1:1", "[2001:db8::1]:6379", "h3:6379"]
    assert str(parse("redis://u:p@h1,h2:2/0", allow_list=True)) == "redis://u:***@h1:6379,h2:2/0"
    with pytest.raises(ValueError, match="a comma too many"):
        parse("h1:1,", allow_list=True)


def test_a_url_in_full():
    endpoint = parse("rediss://ann:p%40ss%2Fw@db:6380/2?ssl_ca=%2Fetc%2Fca.pem&flag=")
    assert endpoint.scheme == "rediss"
    assert (endpoint.user, endpoint.password) == ("ann", "p@ss/w")
    assert endpoint.path == "/2"
    assert endpoint.query == {"ssl_ca": "/etc/ca.pem", "flag": ""}
    assert parse("redis://:pw@h").user is None
    assert parse("redis://ann@h").password is None


def test_unix_sockets():
    endpoint = parse("unix:///run/redis.sock?db=1")
    assert endpoint.is_unix_socket
    assert endpoint.path == "/run/redis.sock"
    assert endpoint.is_loopback
    assert (endpoint.host, endpoint.port) == ("", 0)
    assert parse("redis+unix:///run/x").is_unix_socket


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.1", False),
        ("192.0.2.1", False),
        ("::", False),
        ("localhost.example", False),
        ("localhost,192.0.2.1", False),
        ("localhost,127.0.0.1:2", True),
    ],
)
def test_loopback_by_the_text_alone(text: str, loopback: bool):
    assert parse(text, allow_list=True).is_loopback is loopback


def test_no_name_is_looked_up(monkeypatch: pytest.MonkeyPatch):
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a name server was asked")

    for name in ("getaddrinfo", "gethostbyname", "getfqdn", "gethostname"):
        monkeypatch.setattr(socket, name, fail)
    assert not parse("redis://u:p@some.host:1/0").is_loopback


SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"redis://ann:{SECRET}@h:1/0",
        f"redis://:{SECRET}@h",
        f"redis://ann:{SECRET}/x@h:1",
        f"redis://ann:{SECRET}?x@h:1",
        f"redis://ann:x?{SECRET}@h:1",
        f"redis://ann:{SECRET}#x@h:1",
        f"redis://ann:a@{SECRET}@h:1",
        f"redis://ann:a {SECRET}@h:1",
        f'redis://ann:a"{SECRET}@h:1',
        f"redis://ann:{SECRET}%@h:1",
        f"redis://ann:{SECRET}@",
        f"redis://ann:{SECRET}@h:x",
        f"http://ann:{SECRET}@h:1",
        f"ann:{SECRET}@h:1",
        f"redis://h:1/0?password={SECRET}",
        f"redis://h:1/0?sentinel_password={SECRET}&db=x#",
    ],
)
def test_a_password_is_never_shown(text: str):
    try:
        endpoint = parse(text)
    except ValueError as error:
        shown = str(error)
    else:
        assert SECRET in endpoint.reveal()
        shown = f"{endpoint} {endpoint!r}"
    assert SECRET not in shown
    if "://" in text and " " not in text:  # else it is no URL that could be found in a sentence
        assert SECRET not in mask_secrets(f"could not reach {text}: refused")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("at redis://ann:pw@h:1/0, twice", "at redis://ann:***@h:1/0, twice"),
        ("redis://ann@h:1", "redis://ann@h:1"),
        ("a redis://u:p@h and redis://v:q@g", "a redis://u:***@h and redis://v:***@g"),
        ("redis://u:p@h1,redis://v:q@h2", "redis://***@h2"),
        ("redis://h:1/?db=1&token=abc&x=1", "redis://h:1/?db=1&token=***&x=1"),
        ("ssl_password=abc,db=1", "ssl_password=***,db=1"),
        ("password = 'a b', db=1", "password = ***, db=1"),
        ("nothing secret in token=5 of this", "nothing secret in token=5 of this"),
    ],
)
def test_mask_secrets(text: str, masked: str):
    assert mask_secrets(text) == masked


LABELS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
HOSTS = st.one_of(
    LABELS,
    st.lists(LABELS, min_size=2, max_size=4).map(".".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.ip_addresses(v=6).map(lambda a: ipaddress.IPv6Address(a).exploded),
)
WORDS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
ADDRESSES = st.builds(Address, host=HOSTS, port=st.integers(0, 65535))
PATHS = WORDS.map(lambda word: f"/{word}" if word else "")
PARAMETERS = st.dictionaries(WORDS.filter(bool), WORDS, max_size=3).map(lambda d: tuple(d.items()))
URLS = st.builds(
    Endpoint,
    addresses=st.lists(ADDRESSES, min_size=1, max_size=3).map(tuple),
    scheme=st.sampled_from(["redis", "rediss"]),
    user=st.none() | WORDS.filter(bool),
    password=st.none() | WORDS,
    path=PATHS,
    parameters=PARAMETERS,
)
SOCKETS = st.builds(Endpoint, scheme=st.just("unix"), path=WORDS.filter(bool).map(lambda w: f"/{w}"))
BARE = st.builds(Endpoint, addresses=st.lists(ADDRESSES, min_size=1, max_size=3).map(tuple))


@given(URLS | SOCKETS | BARE)
def test_what_is_revealed_reads_back(endpoint: Endpoint):
    assert parse(endpoint.reveal(), allow_list=True) == endpoint
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint
    assert hash(endpoint) == hash(parse(endpoint.reveal(), allow_list=True))


@given(URLS, st.from_regex(r"[A-Za-z0-9]{12}", fullmatch=True))
def test_str_and_repr_never_hold_the_password(endpoint: Endpoint, password: str):
    secret = Endpoint(addresses=endpoint.addresses, scheme="redis", user="ann", password=password)
    assert password not in str(secret) + repr(secret)
    assert password not in mask_secrets(f"cannot reach {secret.reveal()} now")


@given(st.text(st.sampled_from("[]:/.,@%#?=&a1z -\u00e9\n"), max_size=24) | st.text(max_size=24))
def test_any_text_is_understood_or_refused(text: str):
    try:
        endpoint = parse(text, allow_list=True, allow_empty=True)
    except ValueError as error:
        told = str(error)
    else:
        told = "The rendezvous endpoint is understood."
        assert parse(endpoint.reveal(), allow_list=True) == endpoint
        assert all(0 <= a.port <= 65535 and a.host for a in endpoint.addresses)
    assert told.startswith("The rendezvous endpoint")


@given(st.ip_addresses(v=6))
def test_a_bare_ipv6_address_is_never_split(address: ipaddress.IPv6Address):
    assert parse(str(address)).addresses == (Address(host=str(address), port=6379),)
