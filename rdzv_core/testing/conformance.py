"""The laws of a backend, for its author: inherit a suite, give it a backend and a back door.

``docs/write-a-backend.md`` shows how. :class:`RegisterConformance` is for a level-1 backend,
:class:`CoordinationConformance` for level 2; the second contains the first.
"""

from rdzv_core.testing.coordination_laws import CoordinationConformance
from rdzv_core.testing.register_laws import RegisterConformance
from rdzv_core.testing.suite import BackDoor, ConformanceSuite, Power, Waiting, eventually, needs, together

__all__ = [
    "BackDoor",
    "ConformanceSuite",
    "CoordinationConformance",
    "Power",
    "RegisterConformance",
    "Waiting",
    "eventually",
    "needs",
    "together",
]
