"""Put on the path of one launcher, this makes it a rank 0 that never opens its store: it is to be killed meanwhile."""

import threading
from typing import Any

from rdzv_core.runtime.bootstrap import TCPBootstrap


def host_never(self: TCPBootstrap, seat: Any) -> Any:
    print(f"rank {seat.rank} would open its store now", flush=True)
    threading.Event().wait()


TCPBootstrap.host = host_never  # type: ignore[method-assign]
