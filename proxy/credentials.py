"""A gRPC server's certificate, from its files; changed files are taken over. Shell.

gRPC asks for the certificate at each handshake. Files that cannot be read then, or do not fit each
other, change nothing: the certificate before stays in use.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import grpc

from raftmq.ops.tlsoptions import TlsOptions
from raftmq.remoting.tls import ClientAuth, ServerTls, TlsError, build_server

log = logging.getLogger("raftmq.proxy.tls")


class Certificates:
    """Makes the server's credentials, and again when the files change."""

    def __init__(self, keys: TlsOptions) -> None:
        self._files = ServerTls(
            keys.tls_server_cert_path,
            keys.tls_server_key_path,
            keys.tls_server_key_password,
            keys.tls_server_trust_cert_path,
            ClientAuth(keys.tls_server_need_client_auth),
        )
        self._stamp: object = None

    def load(self) -> Any:
        """Return the credentials for gRPC's port. Blocking. Raises TlsError."""
        if self._files.key_password:
            raise TlsError("gRPC takes no key with a password")
        first = self._read()
        needs = self._files.client_auth is ClientAuth.REQUIRE
        return grpc.dynamic_ssl_server_credentials(first, self._fetch, needs)

    def _fetch(self) -> Any:
        """Return a new configuration if the files have changed; None: the one before."""
        try:
            if self._stamp_now() == self._stamp:
                return None
            return self._read()
        except (OSError, TlsError) as error:
            log.error("tls_files_refused: %s", error)
            return None

    def _read(self) -> Any:
        stamp = self._stamp_now()
        build_server(self._files)  # which checks that they fit each other
        self._stamp = stamp
        files = self._files
        trust = _content(files.trust_path) if files.client_auth is not ClientAuth.NONE else None
        pair = (_content(files.key_path or files.cert_path), _content(files.cert_path))
        return grpc.ssl_server_certificate_configuration([pair], trust)

    def _stamp_now(self) -> object:
        paths = (self._files.cert_path, self._files.key_path, self._files.trust_path)
        try:
            return [(p, os.stat(p).st_mtime_ns, os.stat(p).st_size) for p in paths if p]
        except OSError as error:
            raise TlsError(f"{error.filename}: {error.strerror}") from error


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}") from error
