"""A client's TLS settings from a file, as for Apache's clients (tls.config.file).

Properties: `tls.enable`, `tls.client.trustCertPath`, `tls.client.certPath`, `tls.client.keyPath`,
`tls.client.keyPassword`, `tls.client.authServer` (default true, unlike Apache's) and our
`tls.client.checkHostName`. Other `tls.` keys are ignored, because Apache's brokers read the same
file. Relative paths are relative to the file's directory.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from .tls import ClientTls, Renewed, TlsError

VARIABLE = "RAFTMQ_TLS_CONFIG_FILE"
ENABLE = "tls.enable"
PATHS = {
    "tls.client.trustCertPath": "trust_path",
    "tls.client.certPath": "cert_path",
    "tls.client.keyPath": "key_path",
}
PASSWORD = "tls.client.keyPassword"
SWITCHES = {
    "tls.client.authServer": "auth_server",
    "tls.client.checkHostName": "check_host_name",
}


def read_client_tls(path: str) -> ClientTls | None:
    """Read the settings; None for `tls.enable=false`. Blocking. Raises TlsError."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TlsError(f"TLS settings {path}: {reason}") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise TlsError(f"TLS settings {path}:{number}: expected key=value")
        if not key.strip().startswith("tls."):
            raise TlsError(f"TLS settings {path}:{number}: unknown key {key.strip()!r}")
        settings[key.strip()] = value.strip()
    if not _boolean(path, ENABLE, settings.get(ENABLE, "true")):
        return None
    directory = os.path.dirname(os.path.abspath(path))
    paths = {
        field: os.path.join(directory, settings[key])
        for key, field in PATHS.items()
        if settings.get(key)
    }
    switches = {
        field: _boolean(path, key, settings[key])
        for key, field in SWITCHES.items()
        if key in settings
    }
    password = settings.get(PASSWORD, "")
    return ClientTls(**paths, **switches, key_password=password)  # type: ignore[arg-type]


def _boolean(path: str, key: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise TlsError(f"TLS settings {path}: {key}={value}: expected true or false")
    return value.lower() == "true"


def client_tls_of(environment: Mapping[str, str]) -> ClientTls | None:
    """Read the settings from the file in VARIABLE; None without TLS. Blocking. Raises TlsError."""
    path = environment.get(VARIABLE, "")
    return read_client_tls(path) if path else None


def tls_of(environment: Mapping[str, str]) -> Renewed | None:
    """Return `client_tls_of` as a context that follows its files."""
    settings = client_tls_of(environment)
    return None if settings is None else Renewed(settings, "client")


def context_of(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return `client_tls_of` as a plain context, for a single request."""
    tls = tls_of(environment)
    return None if tls is None else tls.context
