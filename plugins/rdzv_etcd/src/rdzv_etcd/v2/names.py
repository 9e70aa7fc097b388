"""The names of a run's keys under the v2 API, where ``/`` makes directories and a leading ``_`` hides.

``<prefix>/run.<run id>/``: ``run/register``, ``run/leader``; ``nodes/<id>``; ``pages/<group>/<n>``. What users
choose is percent-encoded with ``=`` for ``%``, since etcd decodes a path before it looks at its slashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

__all__ = ["RunNames", "encode"]


def encode(text: str) -> str:
    """A name that any text may be written as, and no other text."""
    return "." + quote(text, safe="").replace("%", "=")


def _decode(name: str) -> str:
    return unquote(name[1:].replace("=", "%"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """The names of all keys that a run may own.

    Raises:
        ValueError: The run id is empty.
    """

    run_id: str
    prefix: str

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("The run id must be a non-empty string.")

    @property
    def all(self) -> str:
        """The directory of the run."""
        prefix = f"/{self.prefix.strip('/')}" if self.prefix.strip("/") else ""
        return f"{prefix}/run{encode(self.run_id)}"

    @property
    def small(self) -> str:
        """The directory of register and leader."""
        return self.all + "/run"

    @property
    def register(self) -> str:
        """``<write id> <state in base64>``."""
        return self.small + "/register"

    @property
    def leader(self) -> str:
        """The leader's id."""
        return self.small + "/leader"

    @property
    def nodes(self) -> str:
        """The directory of records and tombstones."""
        return self.all + "/nodes"

    def node(self, node_id: str) -> str:
        """``+ <seq> <record in base64>``, or ``- <seq>`` of a node that has withdrawn."""
        return f"{self.nodes}/{encode(node_id)}"

    @property
    def pages(self) -> str:
        """The directory of all groups."""
        return self.all + "/pages"

    def group(self, group: str) -> str:
        """The directory of a group's pages."""
        return f"{self.pages}/{encode(group)}"

    def page(self, group: str, index: int) -> str:
        """One page, in base64."""
        return f"{self.group(group)}/{index}"

    @staticmethod
    def node_id_of(key: str) -> str:
        """The node that a key is about."""
        return _decode(key.rpartition("/")[2])
