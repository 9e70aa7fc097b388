"""What a store takes, and the text with which it refuses the rest."""

import pytest

from rdzv_core.store_values import addend, key_list, value_bytes


@pytest.mark.parametrize("value", ["ä", b"\xc3\xa4", bytearray(b"\xc3\xa4"), memoryview(b"\xc3\xa4")])
def test_text_and_bytes_are_values(value):
    assert value_bytes(value) == b"\xc3\xa4"


@pytest.mark.parametrize("value", [5, None, [65, 66], 1.5])
def test_nothing_else_is_a_value(value):
    with pytest.raises(TypeError, match="bytes-like object is required"):
        value_bytes(value)


@pytest.mark.parametrize("amount", [0, -(2**63), 2**63 - 1, True])
def test_whole_numbers_of_64_bits_can_be_added(amount):
    assert addend(amount) == amount
    assert type(addend(amount)) is int


@pytest.mark.parametrize("amount", [2**63, -(2**63) - 1])
def test_longer_numbers_cannot(amount):
    with pytest.raises(TypeError, match=f"Cannot add {amount}: it needs more than 64 bits"):
        addend(amount)


@pytest.mark.parametrize("amount", [1.0, "1", None])
def test_nothing_else_can_be_added(amount):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        addend(amount)


def test_keys_are_a_list():
    assert key_list(iter(["a", "b"])) == ["a", "b"]
    with pytest.raises(TypeError, match=r"Expected a list of keys, not 'abc'; for one key write \['abc'\]\."):
        key_list("abc")
