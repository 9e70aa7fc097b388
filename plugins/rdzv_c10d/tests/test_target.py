"""Which endpoints are taken, from how many nodes."""

from __future__ import annotations

import logging

import pytest
from rdzv_c10d.options import C10D_OPTIONS
from rdzv_c10d.target import Target, target_of

from rdzv_core.options import read_options


def target(text: str, max_nodes: int = 2, **options: object) -> Target:
    return target_of(text, max_nodes, read_options(C10D_OPTIONS, config=options))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("192.0.2.16", ["192.0.2.16:29400"]),
        ("192.0.2.16:1234", ["192.0.2.16:1234"]),
        ("[2001:db8::1]:29400", ["[2001:db8::1]:29400"]),
        ("[2001:db8::1]", ["[2001:db8::1]:29400"]),
        ("2001:db8::1", ["[2001:db8::1]:29400"]),
        ("my_host:29400", ["my_host:29400"]),
        (" h:1 ", ["h:1"]),
        ("h1:29400,h2:29401", ["h1:29400", "h2:29401"]),
        ("h1,h2", ["h1:29400", "h2:29400"]),
    ],
)
def test_endpoints_of_several_nodes(text, addresses):
    assert [str(address) for address in target(text).addresses] == addresses


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (":8080", "host part is empty"),
        ("h:65536", "65535"),
        ("h:abc", "65535"),
        ("h1,h2/prefix", "cannot be used"),
        ("localhost:0", "port 0"),
        ("h:0", "port 0"),
        ("h:1,h:1", "twice"),
    ],
)
def test_endpoints_that_several_nodes_cannot_mean(text, said):
    with pytest.raises(ValueError, match=said):
        target(text)


@pytest.mark.parametrize("text", ["", "localhost", "localhost:0", "127.0.0.1", "[::1]"])
def test_one_node_gets_a_port_of_its_own(text):
    assert [address.port for address in target(text, max_nodes=1).addresses] == [0]


def test_one_node_may_have_a_port_and_an_address():
    assert str(target("localhost:1234", max_nodes=1)) == "localhost:1234"
    assert str(target("h", max_nodes=1)) == "h:29400"


@pytest.mark.parametrize(("text", "warns"), [("127.0.0.1:29400", True), ("localhost", True), ("192.0.2.1", False)])
def test_loopback_for_several_nodes_is_a_warning(text, warns, caplog):
    with caplog.at_level(logging.WARNING, "rdzv_core.c10d"):
        target(text)
    assert ("loopback" in caplog.text) is warns
