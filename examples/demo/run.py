"""Train on three nodes, kill one, watch the others go on and a new one come in.

Every node is a real torchrun launcher with a real worker; only that they share this machine is pretended. The
server that they meet on is started here and dies with the demo.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from display import Display
from nodes import Nodes

from rdzv_core import RendezvousError
from rdzv_core.discovery import SERVERS, Discovery
from rdzv_core.servers import DevServer

TOTAL = 170.0
"""Seconds after which the demo gives up, whatever it waits for."""
OPTIONS = {
    "keep_alive_interval": 1,  # a lost node is missed after three of these
    "last_call_timeout": 2,  # how long two of three nodes wait for the third
    "scale_up_delay": 1,  # how long a newcomer waits before it disturbs a healthy round
}
"""Set so that there is something to watch; the defaults suit jobs of hours."""


KILL_AT = 60
"""The step after which a node dies."""
SLOW, QUICK = 0.1, 0.02
"""Seconds for a step while there is something to watch, and when the story has been told."""


class DemoError(Exception):
    """The demo cannot go on: one sentence for the person who runs it."""


class Story:
    """The demo as it unfolds: what is waited for, and for how long at most."""

    def __init__(self, nodes: Nodes, display: Display, steps: int) -> None:
        self.nodes = nodes
        self.display = display
        self.steps = steps
        self.chapter = ""
        self._deadline = time.monotonic() + TOTAL

    def set_pace(self, seconds: float) -> None:
        """Say how long a step takes at least; the workers look at each step."""
        (self.nodes.folder / "pace").write_text(str(seconds))

    def wait(self, what: str, found: Callable[[], Any], within: float = 60.0) -> Any:
        """Wait until ``found`` answers something, and answer that; the progress is shown meanwhile.

        Raises:
            DemoError: Nothing was found ``within`` seconds, or a node ended badly.
        """
        deadline = min(time.monotonic() + within, self._deadline)
        while not (answer := found()):
            self._show_progress()
            bad = [n for n in self.nodes.all.values() if n.process.poll() not in (None, 0, -signal.SIGKILL)]
            if bad:
                raise DemoError(f"{what}: node {bad[0].name} ended with status {bad[0].process.returncode}")
            if time.monotonic() > deadline:
                raise DemoError(f"{what}: nothing came of it within {within:.0f} s")
            time.sleep(0.05)
        return answer

    def round_of(self, names: set[str], since: float) -> Callable[[], Any]:
        """The round that exactly the workers of ``names`` gathered in after ``since``, with its first step done."""

        def found() -> Any:
            step = self.nodes.last("step")
            for number, lines in self.nodes.gathered(since).items():
                if lines.keys() == names and step is not None and step["round"] == number:
                    return number, lines, step
            return None

        return found

    def tell_round(self, found: Any, since: tuple[str, float] | None = None) -> dict[str, Any]:
        """Say who gathered, and how long it took ``since`` something; answer the line of any one of them.

        Two times are told: when all had met, which is the rendezvous, and when the first step was done, which
        is mostly Python and torch being loaded by the new workers.
        """
        number, lines, step = found
        times = {}
        suffix = ""
        if since is not None:
            what, then = since
            met = max(self.nodes.all[name].diary("begun")[-1]["at"] for name in lines) - then
            trains = step["at"] - then
            times = {"met_after": round(met, 2), "training_after": round(trains, 2)}
            suffix = f"; met {met:.1f} s and training {trains:.1f} s after {what}"
        line = next(iter(lines.values()))
        leader = next(name for name, own in lines.items() if own["rank"] == 0)
        names = ", ".join(sorted(lines))
        self.display.tell(
            f"round {number}",
            f"{names}: world size {len(lines)}, rank 0 on {leader}, from step {line['step']}{suffix}",
            round=number,
            nodes=sorted(lines),
            world=len(lines),
            from_step=line["step"],
            **times,
        )
        return line

    def _show_progress(self) -> None:
        step, checkpoint = self.nodes.last("step"), self.nodes.last("checkpoint")
        if step is not None:
            accuracy = checkpoint["accuracy"] if checkpoint else None
            self.display.progress(step["step"], self.steps, step["loss"], accuracy, step["world"])


def play(story: Story) -> None:
    """The demo itself."""
    nodes, tell = story.nodes, story.display.tell

    story.chapter = "three nodes meet"
    story.set_pace(SLOW)
    for name in ("a", "b", "c"):
        nodes.start(name)
    tell("start", "nodes a, b and c, with the same command")
    story.tell_round(story.wait("the first round of three", story.round_of({"a", "b", "c"}, since=0.0)))

    story.chapter = "a node dies"
    story.wait(f"step {KILL_AT}", lambda: (nodes.last("step") or {"step": 0})["step"] >= KILL_AT)
    victim = next(node for node in nodes.all.values() if node.diary("gathered")[-1]["rank"] == 0)
    survivors = {"a", "b", "c"} - {victim.name}
    killed, lost_step = time.monotonic(), nodes.last("step")["step"]  # type: ignore[index]
    victim.kill()
    tell("kill", f"node {victim.name} at step {lost_step}, launcher and worker with SIGKILL; it had rank 0")
    found = story.wait("a round of the survivors", story.round_of(survivors, since=killed))
    line = story.tell_round(found, since=("the kill", killed))
    if not 0 < line["step"] <= lost_step:
        raise DemoError(f"training went on from step {line['step']}, not from a checkpoint before {lost_step}")

    story.chapter = "a node comes in"
    newcomer = nodes.start("d")
    tell("start", "node d, in the place of the lost one")
    everybody = survivors | {"d"}
    found = story.wait("a round with the newcomer", story.round_of(everybody, since=newcomer.began))
    story.tell_round(found, since=("its start", newcomer.began))

    story.chapter = "the job ends"
    story.set_pace(QUICK)
    story.wait("the last step", lambda: not nodes.alive(), within=90.0)
    statuses = {name: nodes.all[name].process.returncode for name in sorted(everybody)}
    accuracy = nodes.last("checkpoint")["accuracy"]  # type: ignore[index]
    ends = ", ".join(f"{name} {status}" for name, status in statuses.items())
    tell(
        "end",
        f"all {story.steps} steps done, and {accuracy:.0%} of unseen digits read; exit statuses: {ends}",
        statuses=statuses,
        accuracy=accuracy,
    )
    if any(statuses.values()):
        raise DemoError(f"not every node ended well: {ends}")


def name_for_torchrun(backend: str, plugins: Discovery) -> str:
    """What torchrun calls ``backend``: torch keeps a few names to itself, and ours then begin with ``rdzv-``.

    Of several versions, as in ``etcd-v3``, it is the latest.

    Raises:
        DemoError: No plugin that torchrun could load offers it.
    """
    installed = plugins.names("torchrun.handlers")
    versions = sorted((name for name in installed if name.startswith(f"{backend}-v")), reverse=True)
    for name in (backend, f"rdzv-{backend}", *versions):
        if name in installed:
            return name
    raise DemoError(f"no plugin offers '{backend}' to torchrun. Installed: {', '.join(installed) or 'nothing'}.")


@contextmanager
def server_for(backend: str, port: int, plugins: Discovery) -> Iterator[DevServer]:
    """A server for ``backend``, found as any plugin's is, for as long as the demo runs.

    Raises:
        DemoError: There is no such plugin, no server program, or the port is taken.
    """
    fitting = [name for name in plugins.names(SERVERS) if name in backend.split("-")]
    if not fitting:
        raise DemoError(f"no plugin offers a server for '{backend}'. Installed: {', '.join(plugins.names(SERVERS))}.")
    try:
        server: DevServer = plugins.load(SERVERS, fitting[0])(port=port)
        server.start()
    except (ValueError, OSError, RendezvousError) as error:
        raise DemoError(str(error)) from error
    try:
        yield server
    finally:
        server.stop()


def main() -> int:
    """Run the demo; 0 if all went as told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="redis", help="where the nodes meet (default: redis)")
    parser.add_argument("--port", type=int, default=0, help="port of the server (default: a free one)")
    parser.add_argument("--steps", type=int, default=400, help="how long to train (default: 400)")
    parser.add_argument(
        "--folder", type=Path, help="where logs and checkpoint go, and stay (default: removed at the end)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of words")
    arguments = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("demo: torch is not installed here; `make demo TORCH=yes` lets pip fetch it", file=sys.stderr)
        return 1

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="rdzv-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    display = Display(as_json=arguments.json)
    keep = arguments.folder is not None
    story = None
    try:
        plugins = Discovery()
        backend = name_for_torchrun(arguments.backend, plugins)
        with server_for(backend, arguments.port, plugins) as server:
            display.tell("server", f"{backend} at {server.endpoint}; logs in {folder}", folder=str(folder))
            nodes = Nodes(
                folder=folder,
                launcher=[
                    "--nnodes=2:4",
                    "--nproc-per-node=1",
                    "--max-restarts=3",
                    f"--rdzv-backend={backend}",
                    f"--rdzv-endpoint={server.endpoint}",
                    f"--rdzv-id=demo-{folder.name}",
                    "--rdzv-conf=" + ",".join(f"{name}={value}" for name, value in OPTIONS.items()),
                    "--local-addr=127.0.0.1",
                ],
                program=[f"--folder={folder}", f"--steps={arguments.steps}"],
            )
            story = Story(nodes, display, arguments.steps)
            try:
                play(story)
            finally:
                nodes.stop()
    except DemoError as error:
        keep = keep or story is not None
        where = f" while {story.chapter}; logs: {folder}" if story else ""
        display.close()
        print(f"demo: failed{where}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        display.close()
        print("demo: interrupted, all nodes stopped", file=sys.stderr)
        return 130
    finally:
        display.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    display.tell("demo", "ok") if arguments.json else print("demo: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
