"""Three members of one etcd cluster on this machine, to be killed and brought back."""

from __future__ import annotations

import http.client
import json
import time
from types import TracebackType

from rdzv_etcd import EtcdServer

from rdzv_core.servers import free_port


class Cluster:
    """A cluster whose members die with the test."""

    def __init__(self, size: int = 3) -> None:
        peers: list[int] = []
        while len(set(peers)) < size:
            peers.append(free_port())
        urls = [f"http://127.0.0.1:{port}" for port in dict.fromkeys(peers)]
        everybody = ",".join(f"m{n}={url}" for n, url in enumerate(urls))
        self.members = [
            EtcdServer(
                arguments=[
                    *("--name", f"m{n}", "--listen-peer-urls", url, "--initial-advertise-peer-urls", url),
                    *("--initial-cluster", everybody, "--initial-cluster-token", f"test-{peers[0]}"),
                ]
            )
            for n, url in enumerate(urls)
        ]

    def __enter__(self) -> Cluster:
        try:
            for member in self.members:
                member.launch()
            for member in self.members:
                member.wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.stop()

    @property
    def endpoint(self) -> str:
        """All members."""
        return ",".join(member.endpoint for member in self.members)

    def leader(self, within: float = 15.0) -> EtcdServer:
        """The member that leads, as soon as one does and a majority knows it."""
        deadline = time.monotonic() + within
        while True:
            for member in self.members:
                status = _status(member) if member.pid is not None else None
                if status and int(status.get("leader", 0)) == int(status["header"]["member_id"]):
                    return member
            assert time.monotonic() < deadline, "the cluster has no leader"
            time.sleep(0.02)

    def kill_leader(self) -> float:
        """Kill the leader and wait for the next; answers when that was there, by ``time.monotonic``."""
        self.leader().kill()
        self.leader()
        return time.monotonic()


def _status(member: EtcdServer) -> dict | None:
    connection = http.client.HTTPConnection(member.host, member.port, timeout=1)
    try:
        connection.request("POST", "/v3/maintenance/status", "{}")
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
