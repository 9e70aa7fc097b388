"""Will nodes meet at this endpoint, from here, and how soon? Asked before a job is, or when one hangs.

``python -m rdzv_c10d.doctor HOST:29400`` looks at what a TCPStore leans on and never speaks of: that the host has an
address, that a store answers there, and that DNS is quick to say a name for each address. torch asks it for one at
every connect, on both sides, for the text of a log line; an answer that is lost stops the store's host, and so
everybody, for five seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic

from rdzv_core.endpoint import Address, parse_endpoint

from .detection import Machine, judge
from .target import DEFAULT_PORT

__all__ = ["Finding", "examine", "main"]

SLOW = 0.5
"""Seconds for one reverse look-up; a store's host makes one for each client, one after the other."""
PATIENCE = 12.0
"""Seconds that one question may take: longer than a resolver's two tries of five seconds."""
IMPORT = 60.0
"""Seconds that a new process may take until it has torch."""

# A client that meets a silent program hangs in torch, so it is one in a process of its own, which the alarm ends. Where
# it meets one that answers otherwise, torch says so on stderr, and tries again until the store's timeout is over.
_CLIENT = """
import signal, sys
from datetime import timedelta
from torch.distributed import TCPStore
print("asks", flush=True)
host, port, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
signal.setitimer(signal.ITIMER_REAL, patience)
TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1)).check(["rdzv"])
print("answered", flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    well: bool
    seen: str
    """What was found, in words."""
    advice: str = ""
    """What to do about it; empty if all is well."""


def examine(endpoint: str, *, machine: Machine | None = None, patience: float = PATIENCE) -> tuple[Finding, ...]:
    """Look at each address of an endpoint, and at the names of all machines that are seen on the way.

    Args:
        endpoint: As ``--rdzv-endpoint``; a list of addresses too.
        machine: What this machine says of itself.
        patience: Seconds that one question may take.

    Raises:
        ValueError: The endpoint is not understood.
    """
    machine = machine or Machine()
    findings: list[Finding] = []
    seen: dict[str, None] = {}
    for address in parse_endpoint(endpoint, default_port=DEFAULT_PORT, allow_list=True).addresses:
        found = _resolve(address, machine, patience)
        findings.append(found[0])
        seen.update(dict.fromkeys(found[1]))
        if found[1]:
            finding, own = _connect(address, machine, patience)
            findings.append(finding)
            seen.update(dict.fromkeys(own))
    findings += [_reverse(address, patience) for address in seen]
    return tuple(findings)


def _resolve(address: Address, machine: Machine, patience: float) -> tuple[Finding, tuple[str, ...]]:
    what = f"the address of {address.host}"
    took, answer = _timed(lambda: machine.resolve(address.host), patience)
    if isinstance(answer, tuple):
        return Finding(what=what, well=True, seen=f"{', '.join(answer)} ({took:.2f} s)"), answer
    said = "no answer" if answer is None else str(getattr(answer, "strerror", None) or answer)
    return Finding(
        what=what,
        well=False,
        seen=f"{said} after {took:.1f} s",
        advice="Correct the name, or give the address itself.",
    ), ()


def _connect(address: Address, machine: Machine, patience: float) -> tuple[Finding, tuple[str, ...]]:
    what = f"a store at {address}"
    try:
        with socket.create_connection((address.host, address.port), timeout=min(patience, 5.0)) as connection:
            own, there = str(connection.getsockname()[0]), str(connection.getpeername()[0])
    except OSError as error:
        why = error.strerror or error
    else:
        return _ask(what, there, address.port, patience), (own,)
    verdict = judge(address.host, machine)
    seen = f"nobody listens ({why}); {address.host} {verdict.reason}"
    if verdict.mine:
        return Finding(what=what, well=True, seen=f"{seen}: this node would host it"), ()
    return Finding(
        what=what,
        well=False,
        seen=seen,
        advice="Start the node that is to host, open the port in the firewall, or say is_host=true on one node.",
    ), ()


def _ask(what: str, host: str, port: int, patience: float) -> Finding:
    """Whether the program that listens there answers a client of a TCPStore; nothing is written."""
    client = [sys.executable, "-c", _CLIENT, host, str(port), str(patience)]
    # Names are looked at later: here the client's own look-ups are not to use up the time.
    environment = {"RES_OPTIONS": "timeout:1 attempts:1", **os.environ}
    try:
        ended = subprocess.run(
            client,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=IMPORT + patience,
            check=False,
        )
        said, status, last = ended.stdout, ended.returncode, ended.stderr.strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        said, status, last = "", 0, f"it was not imported in {IMPORT:g} s"
    if "answered" in said:
        return Finding(what=what, well=True, seen="somebody listens, and answers as a TCPStore")
    if "asks" not in said:
        return Finding(
            what=what,
            well=False,
            seen=f"somebody listens there; whether it is a TCPStore cannot be told without torch ({last})",
            advice=f"Install a torch that {sys.executable} can import.",
        )
    seen = "somebody listens there, but it does not answer as a TCPStore"
    if status == -signal.SIGALRM:
        return Finding(
            what=what,
            well=False,
            seen=f"{seen} within {patience:g} s",
            advice="Another program has the port: choose another port; or the store's host hangs: look at it.",
        )
    return Finding(what=what, well=False, seen=seen, advice="Another program has the port: choose another port.")


def _reverse(address: str, patience: float) -> Finding:
    what = f"the name of {address}"

    def look() -> str:
        return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]

    took, answer = _timed(look, patience)
    seen = answer if isinstance(answer, str) else "no name" if isinstance(answer, Exception) else "no answer"
    if took < SLOW:
        return Finding(what=what, well=True, seen=f"{seen} ({took:.2f} s)")
    return Finding(
        what=what,
        well=False,
        seen=f"{seen} after {took:.1f} s; torch asks for it at every connect, and everybody waits",
        advice=f"Put the line '{address} NAME' into the hosts file of each node (and '::ffff:{address} NAME' for an "
        'address with dots), or set RES_OPTIONS="timeout:1 attempts:1" for torchrun.',
    )


def _timed(question: Callable[[], object], patience: float) -> tuple[float, object]:
    """Ask aside, since a resolver has no deadline of its own; seconds, and the answer, its error, or None for none."""
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(question())
        except OSError as error:
            answers.append(error)

    began = monotonic()
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return monotonic() - began, answers[0] if answers else None


def main(arguments: list[str] | None = None) -> int:
    """Examine an endpoint and print what was found; 0 if all is well, 1 if not, 2 if the endpoint is not understood."""
    parser = argparse.ArgumentParser(prog="python -m rdzv_c10d.doctor", description="Will nodes meet at this endpoint?")
    parser.add_argument("endpoint", help="as --rdzv-endpoint: HOST:PORT, or a list of them")
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of lines")
    given = parser.parse_args(arguments)
    try:
        findings = examine(given.endpoint)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if given.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings]) + "\n")
    else:
        for finding in findings:
            sys.stdout.write(f"{'ok  ' if finding.well else 'FAIL'} {finding.what}: {finding.seen}\n")
            if finding.advice:
                sys.stdout.write(f"     {finding.advice}\n")
    return 0 if all(finding.well for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
