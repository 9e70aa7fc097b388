"""The errors of a rendezvous: who is to blame, and what to do.

The six classes carry the names and the meaning of ``torch.distributed.elastic.rendezvous``. Each instance
also carries what a person needs at 3 a.m.: the run, the node, the backend, and the last decisions that led
here (``story``). ``str(error)`` starts *and* ends with the sentence, since torchrun shows a long trace of
which people read the last line.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
]


class RendezvousError(Exception):
    """Something went wrong with a rendezvous; the base of all its errors.

    Args:
        message: One sentence or two: what happened, what was seen and expected, what to do.
        run_id: The run that it happened to.
        node_id: The node that it happened on.
        backend: The name of the backend.
        story: The last decisions that led here, oldest first.
    """

    def __init__(
        self,
        message: str = "",
        *,
        run_id: str | None = None,
        node_id: str | None = None,
        backend: str | None = None,
        story: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.run_id = run_id
        self.node_id = node_id
        self.backend = backend
        self.story = tuple(story)

    def __str__(self) -> str:
        if not self.story:
            return self.message
        return "\n".join([self.message, "The last decisions were:", *self.story, self.message])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__)


def _rebuild(kind: type[RendezvousError], message: str, attributes: dict[str, Any]) -> RendezvousError:
    error = kind(message)
    error.__dict__.update(attributes)
    return error


class RendezvousClosedError(RendezvousError):
    """The rendezvous is closed: the job has ended, and no round will complete in this life of the run."""


class RendezvousTimeoutError(RendezvousError):
    """A round did not complete, or an answer did not come, within its time."""


class RendezvousConnectionError(RendezvousError):
    """The connection to the backend failed.

    Attributes:
        maybe_applied: True if a write was under way and may have reached the store all the same. Such a
            write must not be repeated blindly: re-read first.
        permanent: True if trying again cannot help, as with a wrong password: the caller is told at once
            and not when its join timeout ends.
    """

    def __init__(
        self, message: str = "", *, maybe_applied: bool = False, permanent: bool = False, **about: Any
    ) -> None:
        super().__init__(message, **about)
        self.maybe_applied = maybe_applied
        self.permanent = permanent


class RendezvousStateError(RendezvousError):
    """What is stored cannot be read, or contradicts what this node was told to do."""


class RendezvousGracefulExitError(RendezvousError):
    """This node was not needed, and the job has ended without it. Not a failure: leave with status 0."""
