"""A gRPC server's credentials, of the certificate that its `Renewed` took over from files. Shell.

gRPC asks for the certificate at each handshake, in a thread of its own. It is handed what is in use
by the log and the metrics; which files are taken over is decided in `Renewed` alone.
"""

from __future__ import annotations

from typing import Any

import grpc

from raftmq.remoting.tls import ClientAuth, Pem, Renewed, TlsError


class Certificates:
    """Makes the credentials of gRPC's port."""

    def __init__(self, source: Renewed) -> None:
        self._source = source
        self._given: Pem | None = None  # what gRPC has

    def load(self, client_auth: ClientAuth, key_password: str) -> Any:
        """Return the credentials. Raises TlsError."""
        if key_password:
            raise TlsError("gRPC takes no key with a password")
        needs = client_auth is ClientAuth.REQUIRE
        return grpc.dynamic_ssl_server_credentials(self._fetch(), self._fetch, needs)

    def _fetch(self) -> Any:
        """Return the configuration if it is new; None: the one before."""
        pem = self._source.pem
        if pem is self._given:
            return None
        assert pem is not None, "a server has a certificate"
        self._given = pem
        pair = (pem.key.encode(), pem.certificate.encode())
        return grpc.ssl_server_certificate_configuration([pair], pem.trust.encode() or None)
