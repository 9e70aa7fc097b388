"""Which etcd, and how to enter: what a client is made from."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from .errors import EtcdError

__all__ = ["Cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The members of one etcd cluster, and our credentials. Its text forms hide the password."""

    members: tuple[tuple[str, int], ...]
    """Host and port of each; any of them will do."""
    tls: bool = False
    timeout: float = 3.0
    """Seconds that a whole call may take, tries on several members included."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    ca_cert: Path | None = None
    cert: Path | None = None
    cert_key: Path | None = None
    check_hostname: bool = True

    def __str__(self) -> str:
        where = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.members)
        return f"https://{where}" if self.tls else where

    def read_password(self) -> str:
        """The password, from its file if that is where it is.

        Raises:
            EtcdError: The file cannot be read.
        """
        if self.password is not None or self.password_file is None:
            return self.password or ""
        try:
            return self.password_file.read_text(encoding="utf-8").split("\n", 1)[0].strip()
        except OSError as error:
            raise EtcdError(
                f"The password file '{self.password_file}' cannot be read ({error.strerror}). "
                "Is the secret mounted, and readable for this user?",
                permanent=True,
            ) from error

    def ssl_context(self) -> ssl.SSLContext | None:
        """How to speak TLS; None if that is not spoken.

        Raises:
            EtcdError: A file of certificates or keys cannot be used.
        """
        if not self.tls:
            return None
        file: Path | None = self.ca_cert
        try:
            context = ssl.create_default_context(cafile=self.ca_cert)
            context.check_hostname = self.check_hostname
            if self.cert is not None:
                file = self.cert
                context.load_cert_chain(self.cert, self.cert_key)
        except (OSError, ssl.SSLError) as error:
            raise EtcdError(
                f"The file '{file}' cannot be used for TLS ({error}). It must hold certificates in PEM form, and the "
                "key must be the one that belongs to them.",
                permanent=True,
            ) from error
        return context
