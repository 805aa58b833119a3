"""Sessions of people who logged in to a page: a signed cookie, which every server with the same
tokens file accepts, so that any of them may die. Nothing is kept on the server.

    cookie   base64url(JSON {"name", "role", "until": s since the epoch}) "." HMAC-SHA-256, hex

The key is made of all tokens in the file: whoever changes the file ends all sessions. A cookie is
sent by the browser without anybody's doing, so a change that is asked for with one must come from a
page of this server (its Origin), beside SameSite=Strict. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec
import orjson

from raftmq.web.operation import Caller, Role
from raftmq.web.problem import forbidden

COOKIE = "raftmq_session"
LASTS_S = 12 * 3600
VALUE_LENGTH_MAX = 1_024
_PURPOSE = b"raftmq session 1\n"


class _Session(msgspec.Struct, frozen=True):
    name: str
    role: int
    until: int


class Sessions:
    """Makes and reads sessions. `digests`: SHA-256 of every token."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._key = hashlib.sha256(_PURPOSE + b"".join(sorted(digests))).digest()

    def made(self, caller: Caller, now_s: int) -> str:
        """Return the cookie's value for a caller who has shown a token."""
        session = _Session(caller.name, int(caller.role), now_s + LASTS_S)
        text = base64.urlsafe_b64encode(orjson.dumps(msgspec.to_builtins(session))).decode()
        return f"{text}.{self._signature(text)}"

    def caller(self, value: str, now_s: int) -> Caller | None:
        """Return whose session this is; None if it is none, or is over."""
        text, _, signature = value.partition(".")
        if len(value) > VALUE_LENGTH_MAX or not value.isascii():
            return None
        if not hmac.compare_digest(self._signature(text), signature):
            return None
        try:
            session = msgspec.convert(orjson.loads(base64.urlsafe_b64decode(text)), _Session)
            role = Role(session.role)
        except (binascii.Error, orjson.JSONDecodeError, ValueError):
            return None
        return Caller(session.name, role) if now_s < session.until else None

    def _signature(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


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
