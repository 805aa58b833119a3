"""TLS contexts from files, and their renewal when the files change.

They are of Python's ssl over OpenSSL, with OpenSSL's ciphers and no versions below 1.2.
Certificates are checked before use by a trial handshake in memory, which proves that certificate
and key match and that the certificate fits its purpose. Errors are a `TlsError` with the file's
name.

`Renewed` is a context that follows its files. `check` (blocking, called periodically) makes a new
context after a change, for new connections. Unusable files change nothing, are logged once, and
stay visible in `error`; likewise files with an expired certificate, unless the current certificate
is no better. An expiring and an expired certificate are each logged once and visible in `expiry`,
also for the last CA of a trust file (during a CA rotation the older CA may end).
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from .codes import ResponseCode
from .errors import RemotingError

LOG = logging.getLogger("raftmq.remoting.tls")

HANDSHAKE_ROUNDS_MAX = 10  # in a trial; TLS needs three
EXPIRES_SOON_S = 14 * 86_400  # as in the alert RaftmqCertificateExpires
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name. An expired certificate must not
# fail the trial like a wrong certificate.
NO_CHECK_TIME = 0x200000
CERTIFICATE_LINE = "-----BEGIN CERTIFICATE-----"


class TlsError(RemotingError):
    """TLS cannot be used as configured; the text has the file and its problem."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ResponseCode.SYSTEM_ERROR)


class TlsMode(StrEnum):
    """The connections that a listener accepts, as in Apache's tls.server.mode."""

    DISABLED = "disabled"  # plain connections only
    PERMISSIVE = "permissive"  # both
    ENFORCING = "enforcing"  # TLS only


class ClientAuth(StrEnum):
    """The demand for client certificates, as in Apache's tls.server.need.client.auth. With OPTIONAL
    and REQUIRE, a CA of the trust store must have signed the client's certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's PEM files. `cert_path` has the certificate and intermediate certificates; with an
    empty `key_path` also the key."""

    cert_path: str
    key_path: str = ""
    key_password: str = field(default="", repr=False)
    trust_path: str = ""  # CAs of clients' certificates
    client_auth: ClientAuth = ClientAuth.NONE
    protocols: tuple[str, ...] = ()  # offered by ALPN


@dataclass(frozen=True, slots=True)
class ClientTls:
    """A client's PEM files. With an empty `cert_path` the client has no certificate."""

    trust_path: str = ""  # CAs of servers; "" for the system's
    cert_path: str = ""
    key_path: str = ""
    key_password: str = field(default="", repr=False)
    auth_server: bool = True  # False accepts any server, for experiments only
    check_host_name: bool = True  # the certificate must match the dialled host


class Expiry(IntEnum):
    """The urgency of a certificate's end, which grows with time."""

    FAR = 0
    SOON = 1
    PAST = 2


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of ours, for operators. Times are in seconds since the epoch."""

    subject: str
    issuer: str
    not_before_s: float
    not_after_s: float

    def usable_at(self, now_s: float) -> bool:
        return self.not_before_s <= now_s < self.not_after_s

    def expiry_at(self, now_s: float) -> Expiry:
        left_s = self.not_after_s - now_s
        if left_s <= 0:
            return Expiry.PAST
        return Expiry.SOON if left_s < EXPIRES_SOON_S else Expiry.FAR

    @property
    def end(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.not_after_s))


@dataclass(frozen=True, slots=True)
class Built:
    """A context, its certificate, and the last-ending CA in its trust file, or None."""

    context: ssl.SSLContext
    certificate: Certificate | None
    authority: Certificate | None


def build_server(settings: ServerTls) -> Built:
    """Build a server's context. Blocking. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not settings.cert_path:
        raise TlsError("a TLS server needs a certificate: no file is named")
    read, authority = _contents(settings), None
    _load_identity(context, settings.cert_path, settings.key_path, settings.key_password)
    if settings.client_auth is not ClientAuth.NONE:
        if not settings.trust_path:
            raise TlsError("client certificates are asked for, and no trust store is named")
        authority = _load_trust(context, settings.trust_path)
        context.verify_mode = (
            ssl.CERT_REQUIRED if settings.client_auth is ClientAuth.REQUIRE else ssl.CERT_OPTIONAL
        )
    certificate = _certificate(settings, ssl.Purpose.SERVER_AUTH)
    if settings.protocols:
        context.set_alpn_protocols(settings.protocols)
    if _contents(settings) != read:
        raise TlsError(f"certificate file {settings.cert_path}: replaced while it was read")
    return Built(context, certificate, authority)


def build_client(settings: ClientTls) -> Built:
    """Build a client's context. Blocking. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.auth_server and settings.check_host_name
    authority = None
    if not settings.auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif settings.trust_path:
        authority = _load_trust(context, settings.trust_path)
    else:
        context.load_default_certs()
    if not settings.cert_path:
        if settings.key_path:
            raise TlsError(f"key file {settings.key_path}: no certificate file is named for it")
        return Built(context, None, authority)
    _load_identity(context, settings.cert_path, settings.key_path, settings.key_password)
    return Built(context, _certificate(settings, ssl.Purpose.CLIENT_AUTH), authority)


class Renewed:
    """A context that follows its files; new connections use `context`. The constructor blocks and
    raises TlsError."""

    def __init__(self, settings: ServerTls | ClientTls, name: str) -> None:
        """`name` is the purpose, for messages and metrics."""
        self.name = name
        self.error = ""  # why the current files are not in use, or ""
        self.renewed_count = 0
        self._settings = settings
        self._seen = self._state_of_files()
        self._built = self._build()
        self._logged: dict[str, tuple[Certificate, Expiry]] = {}  # the last logged states
        now_s = time.time()
        if self.certificate is None or self.certificate.usable_at(now_s):
            return
        if self.certificate.expiry_at(now_s) is Expiry.PAST:
            self._log_expiry()
        else:
            LOG.error("tls_certificate_not_valid_now for=%s %s", name, _validity(self.certificate))

    @property
    def context(self) -> ssl.SSLContext:
        return self._built.context

    @property
    def certificate(self) -> Certificate | None:
        return self._built.certificate

    def check(self) -> None:
        """Reload the files if they changed, and log an expiring certificate. Blocking; not
        concurrent."""
        self._load_changed()
        self._log_expiry()

    @property
    def watched(self) -> list[tuple[str, Certificate]]:
        """The certificates that new connections depend on, each with its purpose."""
        certificates = ((self.name, self.certificate), (f"{self.name} CA", self._built.authority))
        return [
            (name, certificate) for name, certificate in certificates if certificate is not None
        ]

    @property
    def expiry(self) -> str:
        """Return which certificates expire soon or are expired, or ""."""
        texts = []
        for name, certificate in self.watched:
            expiry = certificate.expiry_at(time.time())
            if expiry is not Expiry.FAR:
                word = "expired" if expiry is Expiry.PAST else "expires"
                texts.append(f"{name}: the certificate {word} at {certificate.end}")
        return "; ".join(texts)

    def _load_changed(self) -> None:
        seen = self._state_of_files()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            built = self._build()
            self._check_better(built)
        except TlsError as error:
            self.error = str(error)
            LOG.error("tls_not_renewed for=%s: %s; what was there is kept", self.name, error)
            return
        self.error, self._built = "", built
        self.renewed_count += 1
        LOG.info("tls_renewed for=%s %s", self.name, _validity(self.certificate))

    def _log_expiry(self) -> None:
        for name, certificate in self.watched:
            logged_certificate, logged_expiry = self._logged.get(name, (certificate, Expiry.FAR))
            expiry = certificate.expiry_at(time.time())
            if certificate == logged_certificate and expiry <= logged_expiry:
                continue
            self._logged[name] = certificate, expiry
            if expiry is Expiry.PAST:
                LOG.error("tls_certificate_expired for=%s %s", name, _validity(certificate))
            elif expiry is Expiry.SOON:
                LOG.warning("tls_certificate_expires for=%s %s", name, _validity(certificate))

    def _build(self) -> Built:
        settings = self._settings
        if isinstance(settings, ServerTls):
            return build_server(settings)
        return build_client(settings)

    def _check_better(self, built: Built) -> None:
        now_s = time.time()
        old, new = self.certificate, built.certificate
        if old is None or new is None or new.usable_at(now_s) or not old.usable_at(now_s):
            return
        reason = "has expired" if new.not_after_s <= now_s else "is not valid yet"
        raise TlsError(f"certificate file {self._settings.cert_path}: the certificate {reason}")

    def _state_of_files(self) -> list[tuple[int, ...]]:
        settings = self._settings
        paths = (settings.cert_path, settings.key_path, settings.trust_path)
        return [_file_state(path) for path in paths if path]


def tls_reason(error: BaseException) -> str:
    """Return in plain English why a connection failed, for readers without OpenSSL knowledge."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if reason in ("wrong version number", "record layer failure", "http request"):
            return f"TLS: {reason}: the other side does not speak TLS"
        return f"TLS: {reason}"
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        # asyncio's own text repeats the address, and has an errno
        return os.strerror(error.errno or 0)
    if isinstance(error, ConnectionResetError) and not error.args:  # uvloop has no text
        why = "perhaps it does not take TLS, or refuses our certificate"
        return f"closed by the other side during the handshake: {why}"
    return str(error) or type(error).__name__


def _validity(certificate: Certificate | None) -> str:
    if certificate is None:
        return "certificate=none"
    return f"certificate={certificate.subject!r} until={certificate.end}"


def _file_state(path: str) -> tuple[int, ...]:
    """Return a value that changes with the file, also if a symbolic link is replaced."""
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _contents(settings: ServerTls) -> tuple[str, ...]:
    asks = settings.client_auth is not ClientAuth.NONE and settings.trust_path
    return (
        _text(settings.cert_path, "certificate"),
        _text(settings.key_path or settings.cert_path, "key"),
        _text(settings.trust_path, "trust") if asks else "",
    )


def _load_identity(context: ssl.SSLContext, cert: str, key: str, password: str) -> None:
    if CERTIFICATE_LINE not in _text(cert, "certificate"):
        raise TlsError(f"certificate file {cert}: holds no certificate in PEM")
    if "PRIVATE KEY-----" not in _text(key or cert, "key"):
        raise TlsError(f"key file {key or cert}: holds no private key in PEM")
    password_read = False

    def read_password() -> str:
        nonlocal password_read
        password_read = True
        return password

    try:
        context.load_cert_chain(cert, key or None, read_password)
    except (ssl.SSLError, ValueError) as error:  # ValueError means that the password is too long
        reason = getattr(error, "reason", None) or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"key file {key or cert}: is not the key of {cert}") from error
        if password_read:
            reason = "the password is wrong" if password else "is encrypted, and no password is set"
            raise TlsError(f"key file {key or cert}: {reason}") from error
        where = f"certificate file {cert}" + (f", key file {key}" if key else "")
        raise TlsError(f"{where}: cannot be read: {reason}") from error


def _load_trust(context: ssl.SSLContext, path: str) -> Certificate | None:
    """Load a trust file; return its last-ending CA."""
    if CERTIFICATE_LINE not in _text(path, "trust"):
        raise TlsError(f"trust file {path}: holds no certificate in PEM")
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise TlsError(f"trust file {path}: cannot be read: {error.reason or error}") from error
    authorities = [_summary(fields) for fields in context.get_ca_certs()]
    return max(authorities, key=lambda authority: authority.not_after_s, default=None)


def _text(path: str, what: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise TlsError(f"{what} file {path}: {error.strerror}") from error


def _certificate(settings: ServerTls | ClientTls, purpose: ssl.Purpose) -> Certificate:
    """Return the certificate that peers will see, after a handshake in memory for `purpose`. Raises
    TlsError."""
    path = settings.cert_path
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    judge = client if purpose is ssl.Purpose.SERVER_AUTH else server
    for context in (server, client):
        context.verify_mode = ssl.CERT_REQUIRED if context is judge else ssl.CERT_NONE
        _load_identity(context, path, settings.key_path, settings.key_password)
    # Only the certificate itself is checked here, not its issuer.
    judge.load_verify_locations(cadata=_first_certificate(path))
    flags = int(judge.verify_flags) | int(ssl.VERIFY_X509_PARTIAL_CHAIN) | NO_CHECK_TIME
    judge.verify_flags = ssl.VerifyFlags(flags)
    try:
        of_server, of_client = _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        raise TlsError(f"certificate file {path}: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise TlsError(f"certificate file {path}: of no use: {error.reason or error}") from error
    shown = (of_server if judge is server else of_client).getpeercert()
    assert shown, "a verified certificate is told"
    return _summary(shown)


def _summary(fields: Mapping[str, Any]) -> Certificate:
    return Certificate(
        _name(fields.get("subject")),
        _name(fields.get("issuer")),
        float(ssl.cert_time_to_seconds(fields["notBefore"])),
        float(ssl.cert_time_to_seconds(fields["notAfter"])),
    )


def _first_certificate(path: str) -> str:
    """Return the first certificate of a file, before its issuers' certificates."""
    text = _text(path, "certificate")
    start = text.index(CERTIFICATE_LINE)
    end_line = CERTIFICATE_LINE.replace("BEGIN", "END")
    end = text.find(end_line, start)
    if end < 0:
        raise TlsError(f"certificate file {path}: the certificate does not end")
    return text[start : end + len(end_line)] + "\n"


def _handshake(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Do a handshake in memory; return both sides. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server),
    )
    for _ in range(HANDSHAKE_ROUNDS_MAX):
        waiting = False
        for side in reversed(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
        if not waiting:
            return sides
    raise AssertionError("a handshake that does not end")


def _name(parts: Any) -> str:
    pairs = [f"{key}={value}" for part in parts or () for key, value in part]
    return ", ".join(pairs)
