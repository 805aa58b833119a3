"""Access control of the HTTP API: tokens from a file, or loopback only.

With a tokens file every caller shows a token, `Authorization: Bearer …`. Otherwise the API listens
on loopback only (`WebSettings.check`), and every caller is admin. Then the Host header must name
loopback, so that no web page reaches this API under its own host name (DNS rebinding), and a change
from a page of a different origin is refused.

The file is {"tokens":[{"token":"…","role":"viewer|operator|admin","name":"…"}]}, readable by its
owner and group only. It is read at start, and again when it changes.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
import orjson
from msgspec import Meta

from raftmq.ops.strict_json import loads

from .operation import Caller, Role
from .problem import forbidden, unauthorized
from .sessions import COOKIE, LASTS_S, Cookie, Sessions, check_own_page, host_of
from .settings import WebConfigError, WebSettings, is_loopback

log = logging.getLogger("raftmq.web")

TOKENS_MAX = 256
TOKEN_LENGTH_MIN = 16
FILE_SIZE_MAX = 256 * 1024  # bytes
LOCAL = Caller("local", Role.ADMIN)
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ROLES = {"viewer": Role.VIEWER, "operator": Role.OPERATOR, "admin": Role.ADMIN}


class _Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: Annotated[str, Meta(min_length=TOKEN_LENGTH_MIN, max_length=512, pattern="^[!-~]+$")]
    role: Literal["viewer", "operator", "admin"]
    name: Annotated[str, Meta(min_length=1, max_length=128)]


class _TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: Annotated[list[_Token], Meta(min_length=1, max_length=TOKENS_MAX)]


class Access:
    """Identifies callers by tokens in `tokens_file` (or None), or browsers' `sessions`."""

    def __init__(
        self,
        tokens_file: Path | None,
        *,
        with_sessions: bool = False,
        session_secret: str = "",
        is_https: bool = False,
    ) -> None:
        """Read the file. `is_https` is True if browsers use HTTPS. Raises WebConfigError."""
        self.tokens_file = tokens_file
        self.session_cookie = Cookie(COOKIE, LASTS_S, is_https)
        self.sessions: Sessions | None = None
        self._callers: Mapping[bytes, Caller] | None = None  # by SHA-256 of the token
        self._stamp: tuple[int, int, int] | None = None
        if tokens_file is not None:
            self._stamp = _stamp(tokens_file)
            self._callers = load_tokens(tokens_file)
            if with_sessions:
                self.sessions = Sessions(self._callers, session_secret)

    @classmethod
    def of(
        cls,
        settings: WebSettings,
        *,
        with_sessions: bool = False,
        session_secret: str = "",
        is_https: bool = False,
    ) -> Access:
        """Make the access control for these settings, and read the file. Raises WebConfigError."""
        settings.check()
        path = Path(settings.tokens_file) if settings.tokens_file else None
        return cls(
            path, with_sessions=with_sessions, session_secret=session_secret, is_https=is_https
        )

    def read_if_changed(self) -> None:
        """Read the tokens again if their file changed, which ends sessions. A failure is logged,
        and the earlier tokens stay. Blocking."""
        path = self.tokens_file
        if path is None or (stamp := _stamp(path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            callers = load_tokens(path)
        except WebConfigError as error:
            log.error("tokens_file_refused: %s; the tokens of before stay in force", error)
            return
        self._callers = callers
        if self.sessions is not None:
            self.sessions.use(callers)
        log.info("tokens_file_read path=%s tokens=%d", path, len(callers))

    def check_host(self, host: str, origin: str | None, method: str) -> None:
        """Check every request's Host and Origin if there are no tokens. Raises ApiProblem (403)."""
        if self._callers is not None:
            return
        name = _host_name(host)
        if name is None or not is_loopback(name):
            raise forbidden(f"the Host header says {host[:100]!r}, not loopback")
        if method not in SAFE_METHODS and origin is not None and host_of(origin) != host:
            raise forbidden(f"a page of origin {origin[:100]!r} changes nothing here")

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller with this token. Raises ApiProblem (401)."""
        if self._callers is None:
            return LOCAL
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise unauthorized("show a token: Authorization: Bearer …")
        shown = _digest(token.strip())
        result = None
        for digest, caller in self._callers.items():  # no early exit, for constant time
            if hmac.compare_digest(digest, shown):
                result = caller
        if result is None:
            raise unauthorized("nobody has this token")
        return result

    def caller_of(self, headers: Mapping[str, str], cookie: str, method: str) -> Caller:
        """Return the caller by token or session cookie. Raises ApiProblem (401, 403)."""
        authorization = headers.get("Authorization")
        if self.sessions is None or authorization or not cookie:
            return self.caller(authorization)
        caller = self.sessions.caller(cookie, int(time.time()))
        if caller is None:
            raise unauthorized("the session is over: log in again")
        if method not in SAFE_METHODS:
            check_own_page(headers.get("Origin"), headers.get("Host", ""))
        return caller


def allow(caller: Caller, role: Role) -> None:
    """Raise ApiProblem (403) if the caller's role is below `role`."""
    if caller.role < role:
        raise forbidden(f"{caller.name} is {caller.role.name.lower()}, not {role.name.lower()}")


def load_tokens(path: Path) -> dict[bytes, Caller]:
    """Read a tokens file into SHA-256 of a token → caller. Raises WebConfigError."""
    content = _read_secret(path, "httpTokensFile")
    try:
        tokens = msgspec.convert(loads(content), _TokenFile).tokens
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise WebConfigError(f"httpTokensFile={path}: {error}") from error
    callers = {_digest(t.token): Caller(t.name, ROLES[t.role]) for t in tokens}
    if len(callers) != len(tokens):
        raise WebConfigError(f"httpTokensFile={path}: a token stands there twice")
    return callers


def load_token(path: Path, key: str) -> str:
    """Read the token in a file, to be shown to other processes. `key` is the setting with the
    file's path. Raises WebConfigError."""
    try:
        token = _read_secret(path, key).decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise WebConfigError(f"{key}={path}: {error}") from error
    if not TOKEN_LENGTH_MIN <= len(token) <= 512 or not token.isprintable() or " " in token:
        raise WebConfigError(f"{key}={path} does not hold one token")
    return token


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return values that change with the file; None if it is not accessible."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(token: str) -> bytes:
    """Return the hash of a token, which is kept instead of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _host_name(host: str) -> str | None:
    """Return the name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _read_secret(path: Path, key: str) -> bytes:
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            content = file.read(FILE_SIZE_MAX + 1)
    except OSError as error:
        raise WebConfigError(f"{key}={path}: {error.strerror}") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise WebConfigError(f"{key}={path} is open to everybody: chmod o-rwx it")
    if len(content) > FILE_SIZE_MAX:
        raise WebConfigError(f"{key}={path} is larger than {FILE_SIZE_MAX} bytes")
    return content
