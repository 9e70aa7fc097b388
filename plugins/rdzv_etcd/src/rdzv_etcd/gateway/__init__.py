"""A small client of etcd's v3 API over the JSON gateway that every etcd serves beside gRPC.

It needs nothing but Python, survives ``fork()``, and knows nothing of rendezvous: keys, leases, transactions,
watches, members, logins. Why not one of the clients that there are: decision 0006.
"""

from .client import LONGEST_LEASE, Gateway, Usage, new_lease_id, seconds_of
from .cluster import Cluster
from .errors import EtcdClosed, EtcdError, Refusal
from .messages import (
    Change,
    Compare,
    Delete,
    KeyValue,
    Op,
    Put,
    Range,
    RangeReply,
    Txn,
    TxnReply,
    prefix_end,
)
from .watch import Watch, WatchEnded

__all__ = [
    "LONGEST_LEASE",
    "Change",
    "Cluster",
    "Compare",
    "Delete",
    "EtcdClosed",
    "EtcdError",
    "Gateway",
    "KeyValue",
    "Op",
    "Put",
    "Range",
    "RangeReply",
    "Refusal",
    "Txn",
    "TxnReply",
    "Usage",
    "Watch",
    "WatchEnded",
    "new_lease_id",
    "prefix_end",
    "seconds_of",
]
