"""Sessions of people who logged in to a page: a signed cookie, which every server with the same
tokens file accepts, so that any of them may die. Nothing is kept on the server.

    cookie   base64url(JSON {"name", "role", "until": s since the epoch}) "." HMAC-SHA-256, hex

The key is made of all tokens in the file, and of the OpenID client's secret if there is one:
whoever changes them ends all sessions. Somebody who knows all tokens could make the key. So without
a secret that no caller knows, no session is above the highest role of a token. What else a cookie
has to keep is signed in the same way, for another purpose (`sealed`). A cookie is
sent by the browser without anybody's doing, so a change that is asked for with one must come from a
page of this server (its Origin), beside SameSite=Strict. Pure.
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
    """A cookie that no script reads: how servers set it and take it back."""

    plain_name: str
    lasts_s: int
    is_https: bool  # then it is sent over HTTPS only
    path: str = "/"
    same_site: str = "Strict"

    @property
    def name(self) -> str:
        """Return the name, for browsers to refuse one that another host or a page without TLS has
        set (RFC 6265bis, 4.1.3.2) where it can have the prefix for that."""
        return (
            f"__Host-{self.plain_name}" if self.is_https and self.path == "/" else self.plain_name
        )

    def holding(self, value: str) -> str:
        """Return the header Set-Cookie that gives a browser the cookie."""
        return self._header(value, self.lasts_s)

    def removed(self) -> str:
        """Return the header Set-Cookie that takes it from a browser."""
        return self._header("", 0)

    def _header(self, value: str, age_s: int) -> str:
        flags = f"Path={self.path}; HttpOnly; SameSite={self.same_site}"
        secure = "; Secure" if self.is_https else ""
        return f"{self.name}={value}; Max-Age={age_s}; {flags}{secure}"


class Sessions:
    """Makes and reads sessions. `callers`: who has a token, by its SHA-256. `secret`: known to name
    servers only."""

    def __init__(self, callers: Mapping[bytes, Caller], secret: str = "") -> None:
        self._secret = secret
        self._key = b""
        self._highest = Role.VIEWER
        self.use(callers)

    def use(self, callers: Mapping[bytes, Caller]) -> None:
        """Take other callers: the sessions of before end."""
        digests = sorted(callers)
        if self._secret:
            digests.append(hashlib.sha256(self._secret.encode()).digest())
        self._key = hashlib.sha256(_PURPOSE + b"".join(digests)).digest()
        self._highest = Role.ADMIN if self._secret else max(one.role for one in callers.values())

    def made(self, caller: Caller, now_s: int) -> str:
        """Return the cookie's value for a caller who has shown who it is."""
        session = {"name": caller.name, "role": int(caller.role)}
        return self.sealed("", session, now_s + LASTS_S)

    def caller(self, value: str, now_s: int) -> Caller | None:
        """Return whose session this is; None if it is none, or is over."""
        session = self.opened("", value, now_s)
        if session is None or session["role"] > self._highest:
            return None
        return Caller(session["name"], Role(session["role"]))

    def sealed(self, purpose: str, content: Mapping[str, Any], until_s: int) -> str:
        """Return the value of a cookie that keeps `content` for a purpose; "" is a session's."""
        kept = orjson.dumps({**content, "until": until_s})
        text = base64.urlsafe_b64encode(kept).decode()
        return f"{text}.{self._signature(purpose, text)}"

    def opened(self, purpose: str, value: str, now_s: int) -> dict[str, Any] | None:
        """Return what `sealed` was given for that purpose; None if this is none, or is over."""
        text, _, signature = value.partition(".")
        if len(value) > VALUE_LENGTH_MAX or not value.isascii():
            return None
        if not hmac.compare_digest(self._signature(purpose, text), signature):
            return None
        content: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(text))
        return content if now_s < content["until"] else None

    def _signature(self, purpose: str, text: str) -> str:
        signed = f"{purpose}.{text}" if purpose else text  # which has no dot
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
