"""Sessions of logged-in browsers as signed cookies, valid at all servers with the same tokens file.

    cookie   base64url(JSON {"name", "role", "until": s since the epoch}) "." HMAC-SHA-256, hex

The key is derived from all tokens in the file, and from the OpenID client's secret if there is one,
so a change of these ends all sessions. A person with all tokens could compute the key. So without a
secret that no caller has, no session exceeds the highest role of a token. Other cookie contents are
signed in the same way, for a different purpose (`sealed`). Browsers send cookies automatically, so
a change with a cookie must originate from a page of this server (its Origin), in addition to
SameSite=Strict. Nothing is kept on the server. Pure.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from .operation import Caller, Role
from .problem import forbidden

COOKIE = "raftmq_session"
LASTS_S = 12 * 3600
VALUE_LENGTH_MAX = 1_024
_PURPOSE = b"raftmq session 1\n"


@dataclass(frozen=True, slots=True)
class Cookie:
    """A cookie that scripts cannot read, set and removed by headers."""

    plain_name: str
    lasts_s: int
    is_https: bool  # sent over HTTPS only
    path: str = "/"
    same_site: str = "Strict"

    @property
    def name(self) -> str:
        """Return the name, with the prefix, if applicable, by which browsers refuse a cookie from a
        different host or a page without TLS (RFC 6265bis, 4.1.3.2)."""
        return (
            f"__Host-{self.plain_name}" if self.is_https and self.path == "/" else self.plain_name
        )

    def holding(self, value: str) -> str:
        """Return the header Set-Cookie that sets the cookie."""
        return self._header(value, self.lasts_s)

    def removed(self) -> str:
        """Return the header Set-Cookie that removes it."""
        return self._header("", 0)

    def _header(self, value: str, age_s: int) -> str:
        flags = f"Path={self.path}; HttpOnly; SameSite={self.same_site}"
        secure = "; Secure" if self.is_https else ""
        return f"{self.name}={value}; Max-Age={age_s}; {flags}{secure}"


class Sessions:
    """Makes and reads sessions. `callers` has the callers by SHA-256 of their token. Only name
    servers have the `secret`."""

    def __init__(self, callers: Mapping[bytes, Caller], secret: str = "") -> None:
        self._secret = secret
        self._key = b""
        self._highest = Role.VIEWER
        self.use(callers)

    def use(self, callers: Mapping[bytes, Caller]) -> None:
        """Replace the callers, which ends earlier sessions."""
        digests = sorted(callers)
        if self._secret:
            digests.append(hashlib.sha256(self._secret.encode()).digest())
        self._key = hashlib.sha256(_PURPOSE + b"".join(digests)).digest()
        self._highest = Role.ADMIN if self._secret else max(one.role for one in callers.values())

    def made(self, caller: Caller, now_s: int) -> str:
        """Return the cookie's value for an authenticated caller."""
        session = {"name": caller.name, "role": int(caller.role)}
        return self.sealed("", session, now_s + LASTS_S)

    def caller(self, value: str, now_s: int) -> Caller | None:
        """Return the session's caller; None if it is invalid or expired."""
        session = self.opened("", value, now_s)
        if session is None or session["role"] > self._highest:
            return None
        return Caller(session["name"], Role(session["role"]))

    def sealed(self, purpose: str, content: Mapping[str, Any], until_s: int) -> str:
        """Return the value of a cookie with `content` for a purpose; "" is a session's."""
        kept = orjson.dumps({**content, "until": until_s})
        text = base64.urlsafe_b64encode(kept).decode()
        return f"{text}.{self._signature(purpose, text)}"

    def opened(self, purpose: str, value: str, now_s: int) -> dict[str, Any] | None:
        """Return the content of a value that `sealed` made for that purpose; None if it is invalid
        or expired."""
        text, _, signature = value.partition(".")
        if len(value) > VALUE_LENGTH_MAX or not value.isascii():
            return None
        if not hmac.compare_digest(self._signature(purpose, text), signature):
            return None
        content: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(text))
        return content if now_s < content["until"] else None

    def _signature(self, purpose: str, text: str) -> str:
        signed = f"{purpose}.{text}" if purpose else text  # the purpose has no dot
        return hmac.new(self._key, signed.encode(), hashlib.sha256).hexdigest()


def check_own_page(origin: str | None, host: str) -> None:
    """Check that a change with a cookie comes from a page of this server. Raises ApiProblem
    (403)."""
    if origin is None or host_of(origin) != host:
        raise forbidden(f"a page of origin {(origin or 'none')[:100]!r} changes nothing here")


def host_of(origin: str) -> str | None:
    """Return the host and port in an Origin header; None if there is none."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
