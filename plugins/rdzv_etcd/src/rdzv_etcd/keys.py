"""The keys of a run, all under ``<prefix>/<run id, percent-encoded>/``.

================== =============================================== =================================
key                value                                           ends with the lease of
================== =============================================== =================================
``run/beat``       nothing; written anew by each pulse of the      the leader
                   leader, and watched by nobody
``run/fence``      the random word of the register's last write    the run
``run/leader``     the leader's id                                 the leader
``run/register``   the register's bytes                            the run
``node/<id>``      ``<seq> <record>``, seq in 16 digits            the node
``left/<id>``      ``<seq>+``: a tombstone                         the node, or one of its own
``page/<group>/n`` a page                                          the group
``store/<key>``    a value of the run's store                      the store
================== =============================================== =================================

The sequence number has a fixed width so that etcd, which compares values byte by byte, can compare numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from .gateway import Compare, prefix_end

__all__ = [
    "RunKeys",
    "buried_after",
    "buried_at_or_after",
    "is_seq",
    "node_value",
    "overtakes",
    "split_node_value",
    "tombstone",
]

_DIGITS = 16
_AFTER_LIVE = b"!"  # the first byte after the blank that follows a live record's seq
_TOMB = b"+"  # after both


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """The names of all keys that a run may own.

    Raises:
        ValueError: The run id is empty.
    """

    run_id: str
    prefix: str = "rdzv"

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("A run id must not be empty: keys of a run need a name of their own.")

    @property
    def all(self) -> bytes:
        """What every key of the run begins with."""
        return f"{self.prefix}/{quote(self.run_id, safe='')}/".encode()

    @property
    def beat(self) -> bytes:
        """Written by each pulse of the leader."""
        return self.all + b"run/beat"

    @property
    def fence(self) -> bytes:
        """The random word of the register's last write."""
        return self.all + b"run/fence"

    @property
    def leader(self) -> bytes:
        """Who leads."""
        return self.all + b"run/leader"

    @property
    def register(self) -> bytes:
        """The compare-and-set register."""
        return self.all + b"run/register"

    @property
    def news(self) -> tuple[bytes, bytes]:
        """The range that every node listens to: fence, leader, register."""
        return self.fence, prefix_end(self.all + b"run/")

    @property
    def signs(self) -> tuple[bytes, bytes]:
        """The range that a pulse reads: beat, fence, leader, and not the register."""
        return self.beat, self.register

    @property
    def people(self) -> tuple[bytes, bytes]:
        """The range of records and tombstones; only ``l`` and ``n`` of our names lie in it."""
        return self.all + b"left/", prefix_end(self.all + b"node/")

    @property
    def nodes(self) -> bytes:
        """What keys of records begin with."""
        return self.all + b"node/"

    @property
    def tombs(self) -> bytes:
        """What keys of tombstones begin with."""
        return self.all + b"left/"

    @property
    def pages(self) -> bytes:
        """What keys of pages begin with."""
        return self.all + b"page/"

    @property
    def store(self) -> bytes:
        """What keys of the run's store begin with."""
        return self.all + b"store/"

    def node(self, node_id: str) -> bytes:
        """The record of a node."""
        return self.nodes + quote(node_id, safe="").encode()

    def tomb(self, node_id: str) -> bytes:
        """The tombstone of a node."""
        return self.tombs + quote(node_id, safe="").encode()

    def group(self, group: str) -> bytes:
        """What keys of the group's pages begin with."""
        return self.pages + quote(group, safe="").encode() + b"/"

    def page(self, group: str, index: int) -> bytes:
        """One page."""
        return self.group(group) + b"%d" % index

    def node_id_of(self, key: bytes) -> str:
        """The node that a record or a tombstone is about."""
        return unquote(key.rpartition(b"/")[2].decode("ascii", "replace"))


def _digits(seq: int) -> bytes:
    return b"%0*d" % (_DIGITS, seq)


def node_value(seq: int, record: bytes) -> bytes:
    """What the key of a live node holds."""
    return _digits(seq) + b" " + record


def tombstone(seq: int) -> bytes:
    """What the key of a withdrawn node holds."""
    return _digits(seq) + _TOMB


def split_node_value(value: bytes) -> tuple[int, bytes] | None:
    """Seq and record; None if it is not of our form."""
    digits, blank, record = value[:_DIGITS], value[_DIGITS : _DIGITS + 1], value[_DIGITS + 1 :]
    if len(digits) != _DIGITS or not digits.isdigit() or blank != b" ":
        return None
    return int(digits), record


def is_seq(key: bytes, seq: int) -> tuple[Compare, Compare]:
    """The record at ``key`` is there, with exactly this seq."""
    return (
        Compare(key, "VALUE", "GREATER", _digits(seq)),
        Compare(key, "VALUE", "LESS", _digits(seq) + _AFTER_LIVE),
    )


def overtakes(key: bytes, seq: int) -> Compare:
    """The record at ``key`` is there, with a higher seq: whoever says ``seq`` was overtaken."""
    return Compare(key, "VALUE", "GREATER", _digits(seq) + _AFTER_LIVE)


def buried_at_or_after(key: bytes, seq: int) -> Compare:
    """The tombstone at ``key`` is there, with this seq or a higher one."""
    return Compare(key, "VALUE", "GREATER", _digits(seq))


def buried_after(key: bytes, seq: int) -> Compare:
    """The tombstone at ``key`` is there, with a higher seq."""
    return Compare(key, "VALUE", "GREATER", _digits(seq) + _TOMB)
