"""Request signatures with a token that is never sent, for requests between processes. Pure.

A person sends a token as it is (`Authorization: Bearer …`) to the address that they typed. A name
server calls every process that has registered as a broker, perhaps an impostor, which must learn
nothing it could use elsewhere. So the name server only proves that it has the token:

    401                WWW-Authenticate: … RaftMQ-HMAC nonce="N"
    the same again     Authorization: RaftMQ-HMAC nonce="N", id="I", body="B", signature="S"

N, I: 32 hexadecimal digits. The server chooses N and changes it at times; the caller chooses I for
each request.
B: SHA-256 of the body. S: HMAC-SHA256, keyed with SHA-256 of the token, over the lines "raftmq-1",
audience, N, I, method, target (path and query as sent), B, joined by newlines; all in hexadecimal.

- The audience is the host:port that the caller has called; the server uses the one that it
  announces. So a signature for an impostor's address is worthless anywhere else.
- A server accepts each I once for its N, so an overheard request cannot be replayed. It remembers
  IDS_MAX of them and then chooses another N: callers get a 401, and sign anew.
- No clock is needed. Answers, and headers of requests, are not signed: an attacker on the path can
  still change them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SCHEME = "RaftMQ-HMAC"
IDS_MAX = 10_000  # about a megabyte; a name server sends some ten requests a second
NONCES_MAX = 1_024  # servers whose nonce a caller remembers
_HEX = "([0-9a-f]{%d})"
_CHALLENGE = re.compile(f'{SCHEME} nonce="{_HEX % 32}"')
_AUTHORIZATION = re.compile(
    f'{SCHEME} nonce="{_HEX % 32}", id="{_HEX % 32}", body="{_HEX % 64}", signature="{_HEX % 64}"',
    re.IGNORECASE,
)

Random = Callable[[], str]  # returns 32 unguessable hexadecimal digits


@dataclass(frozen=True, slots=True)
class Signed:
    """The content of an Authorization header of this scheme."""

    nonce: str
    id: str
    body: str
    signature: str

    @classmethod
    def parse(cls, authorization: str | None) -> Signed | None:
        """Parse the header; None if it is of another scheme, or malformed."""
        found = _AUTHORIZATION.fullmatch(authorization or "")
        return None if found is None else cls(*(part.lower() for part in found.groups()))

    def covers(self, body: bytes) -> bool:
        """Return whether this is the body that was signed."""
        return hmac.compare_digest(self.body, hashlib.sha256(body).hexdigest())

    def header(self) -> str:
        parts = (("nonce", self.nonce), ("id", self.id), ("body", self.body),
                 ("signature", self.signature))  # fmt: skip
        return f"{SCHEME} " + ", ".join(f'{name}="{value}"' for name, value in parts)


class Challenges:
    """The server's side: decides which signatures it accepts."""

    def __init__(self, random: Random, ids_max: int = IDS_MAX) -> None:
        self._random = random
        self._ids_max = ids_max
        self._nonce = random()
        self._ids: set[str] = set()

    def header(self) -> str:
        """Return the challenge for the WWW-Authenticate header of a 401."""
        return f'{SCHEME} nonce="{self._nonce}"'

    def signer(
        self, signed: Signed, keys: Iterable[bytes], audience: str, method: str, target: str
    ) -> bytes | None:
        """Return which of `keys` signed a request; None if none did, or if it is a replay."""
        if signed.nonce != self._nonce or signed.id in self._ids:
            return None
        text = _text(audience, signed.nonce, signed.id, method, target, signed.body)
        found = None
        for key in keys:  # always all of them, for constant time
            if hmac.compare_digest(_signature(key, text), signed.signature):
                found = key
        if found is not None:
            self._ids.add(signed.id)
            if len(self._ids) >= self._ids_max:
                self._ids.clear()
                self._nonce = self._random()
        return found


class Signer:
    """The caller's side: one token, and the nonces of the servers it calls."""

    def __init__(self, token: str, random: Random, nonces_max: int = NONCES_MAX) -> None:
        self._key = key_of(token)
        self._random = random
        self._nonces_max = nonces_max
        self._nonces: dict[str, str] = {}  # address → nonce, the latest at the end

    def challenged(self, address: str, www_authenticate: str, shown: Signed | None) -> bool:
        """Take the nonce from a 401 of `address` to a request that showed `shown`; return whether
        it is worth asking again."""
        found = _CHALLENGE.search(www_authenticate)
        if found is None or (shown is not None and shown.nonce == found[1]):
            return False  # another scheme is wanted, or the server does not know this token
        self._nonces.pop(address, None)
        self._nonces[address] = found[1]
        if len(self._nonces) > self._nonces_max:
            del self._nonces[next(iter(self._nonces))]
        return True

    def sign(self, address: str, method: str, target: str, body: bytes) -> Signed | None:
        """Sign one request; None as long as `address` has not asked for a signature."""
        nonce = self._nonces.get(address)
        if nonce is None:
            return None
        digest = hashlib.sha256(body).hexdigest()
        own = self._random()
        text = _text(address, nonce, own, method, target, digest)
        return Signed(nonce, own, digest, _signature(self._key, text))


def key_of(token: str) -> bytes:
    """Return the hash of a token that servers keep."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _text(*parts: str) -> bytes:
    return "\n".join(("raftmq-1", *parts)).encode("utf-8", "surrogateescape")


def _signature(key: bytes, text: bytes) -> str:
    return hmac.digest(key, text, "sha256").hex()
