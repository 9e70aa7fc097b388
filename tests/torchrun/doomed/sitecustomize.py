"""Put on the path of one launcher, this stops its node at one step of its first round: it is to be killed meanwhile.

``RDZV_TEST_DOOM`` names the step: ``host``, where rank 0 opens its store, or ``connect``, where a member reaches it.
"""

import os
import threading
from typing import Any

from rdzv_core.runtime.bootstrap import TCPBootstrap

STEPS = {"host": "open", "connect": "reach"}


def never(self: TCPBootstrap, seat: Any, *_: Any) -> Any:
    print(f"rank {seat.rank} would {STEPS[DOOM]} its store now", flush=True)
    threading.Event().wait()


DOOM = os.environ["RDZV_TEST_DOOM"]
setattr(TCPBootstrap, DOOM, never)
