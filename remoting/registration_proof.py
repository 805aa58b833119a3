"""Signed registrations: proof to a name server that a broker has the cluster's key.

A broker requests a nonce (30005 REGISTRATION_NONCE, 16 random bytes) once per connection, and the
name server keeps it. The broker then counts its requests on the connection and adds two ext fields
to each request about itself (103, 104, 322, 904):

    registrationCounter     1, 2, …; each greater than the one before
    registrationSignature   hex of HMAC-SHA256(key, text)

    text: "raftmq registration 1" | nonce (16) | code (4) | counter (8) | SHA-256 of the body (32)
          | per ext field, by name: size (4), name, size (4), value    (integers big-endian)

without the signature itself and the fields that access control adds after it.

A recorded request is worthless on any other connection, whose nonce differs, and on its own, where
the counter has advanced. Unlike with dates, clocks need not agree, and a name server keeps only a
nonce and a number per connection. The sizes before names and values make the text unambiguous.

An attacker between broker and name server can suppress requests. If he claims that there is no
nonce, the broker registers unsigned, which cannot take over a signed name. TLS protects against
reading and suppression.

Name servers without signatures answer 30005 with "not supported" and ignore the fields. Several
keys allow key rotation: a name server accepts each of its keys, a broker signs with its first.
"""

from __future__ import annotations

import hmac
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from .acl.signature import SIGNED_FIELDS
from .codes import SUCCESS, RequestCode
from .command import RemotingCommand
from .connection import Connection
from .errors import RemotingError

COUNTER = "registrationCounter"
SIGNATURE = "registrationSignature"
NONCE = "registrationNonce"  # ext field of the answer to 30005, in hex
NONCE_BYTES = 16
WRONG_SIGNATURE = "[SIGNATURE]"  # prefix of such an error's remark
KEY_LENGTH_MIN = 16  # characters
KEYS_MAX = 10
COUNTER_MAX = (1 << 63) - 1
SIGNATURE_LENGTH = 64  # hex digits
_LEFT_OUT = frozenset((SIGNATURE, *SIGNED_FIELDS))


def keys_of(text: str) -> tuple[bytes, ...]:
    """Parse a key file, a key per line. Raises ValueError without the keys."""
    keys = tuple(line.strip().encode() for line in text.splitlines() if line.strip())
    if not 1 <= len(keys) <= KEYS_MAX or any(len(key) < KEY_LENGTH_MIN for key in keys):
        raise ValueError(
            f"expected 1 to {KEYS_MAX} lines, each a key of at least {KEY_LENGTH_MIN} characters"
        )
    return keys


class RegistrationSigner:
    """The broker's side of a connection."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._key = key
        self._nonce = nonce
        self._counter = 0

    def sign(self, command: RemotingCommand) -> None:
        """Sign a request, just before access control signs, because any later change invalidates
        the signature."""
        self._counter += 1
        ext = {**(command.ext or {}), COUNTER: str(self._counter)}
        command.ext = ext
        digest = sha256(command.body).digest()
        made = _signature(self._key, self._nonce, self._counter, command, digest)
        command.ext = {**ext, SIGNATURE: made}


@dataclass(slots=True)
class RegistrationChallenge:
    """The name server's side of a connection."""

    nonce: bytes
    counter: int = 0  # the greatest with a valid signature

    def is_plausible(self, command: RemotingCommand) -> bool:
        """Return whether the header may be a signed request's and no replay, without the cost of
        body or key."""
        ext = command.ext or {}
        given = ext.get(SIGNATURE, "")
        return len(given) == SIGNATURE_LENGTH and self._counter_of(ext) > 0

    def _counter_of(self, ext: dict[str, str]) -> int:
        """Return a request's counter; 0 if it has no unused counter."""
        text = ext.get(COUNTER, "")
        if not text.isascii() or not text.isdigit() or len(text) > len(str(COUNTER_MAX)):
            return 0
        counter = int(text)
        return counter if self.counter < counter <= COUNTER_MAX else 0

    def proves(self, keys: Sequence[bytes], command: RemotingCommand, digest: bytes = b"") -> bool:
        """Return whether this request is signed with any of the keys for this connection, and no
        replay; its counter is then used. `digest` is the body's SHA-256, if known."""
        ext = command.ext or {}
        counter = self._counter_of(ext)
        if not counter:
            return False
        given = ext.get(SIGNATURE, "").encode()
        digest = digest or sha256(command.body).digest()
        proofs = [
            hmac.compare_digest(
                given, _signature(key, self.nonce, counter, command, digest).encode()
            )
            for key in keys
        ]
        if not any(proofs):
            return False
        self.counter = counter
        return True


def nonce_of(answer: RemotingCommand) -> bytes | None:
    """Return the nonce in an answer to 30005, or None."""
    text = (answer.ext or {}).get(NONCE, "")
    try:
        nonce = bytes.fromhex(text)
    except ValueError:
        return None
    return nonce if answer.code == SUCCESS and len(nonce) == NONCE_BYTES else None


def is_signed(command: RemotingCommand) -> bool:
    """Return whether the request has a signature, valid or not."""
    return bool(command.ext) and SIGNATURE in (command.ext or {})


def _signature(
    key: bytes, nonce: bytes, counter: int, command: RemotingCommand, digest: bytes
) -> str:
    parts = [b"raftmq registration 1", nonce, command.code.to_bytes(4, "big", signed=True)]
    parts += [counter.to_bytes(8, "big"), digest]
    fields = {name: value for name, value in (command.ext or {}).items() if name not in _LEFT_OUT}
    for name in sorted(fields):
        for text in (name, fields[name]):
            encoded = text.encode("utf-8", "surrogatepass")
            parts += [len(encoded).to_bytes(4, "big"), encoded]
    return hmac.digest(key, b"".join(parts), "sha256").hex()


SIZE_MAX = 64 * 1024


class KeyFileError(RemotingError):
    """The file cannot be used, for the reason in the text, which has no key."""


def load_registration_keys(path: str, setting: str = "registrationKeyFile") -> tuple[bytes, ...]:
    """Return the keys in the file; () if `path` is empty. Blocking. Raises KeyFileError."""
    if not path:
        return ()
    try:
        with Path(path).open("rb") as file:
            mode = Path(path).stat().st_mode
            content = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise KeyFileError(f"{setting}={path}: {error.strerror}") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise KeyFileError(f"{setting}={path} is open to everybody: chmod 600 it")
    if len(content) > SIZE_MAX:
        raise KeyFileError(f"{setting}={path} is larger than {SIZE_MAX} bytes")
    try:
        return keys_of(content.decode())
    # UnicodeDecodeError is a subclass with bytes of the file in its text
    except ValueError as error:
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise KeyFileError(f"{setting}={path}: {why}") from None


async def ask_signer(
    connection: Connection, key: bytes, timeout_ms: float
) -> RegistrationSigner | None:
    """Return the signer for this connection's requests; None if the name server has no key or no
    support for signatures. Raises RemotingError."""
    ask = RemotingCommand.request(RequestCode.REGISTRATION_NONCE)
    nonce = nonce_of(await connection.invoke(ask, timeout_ms))
    return None if nonce is None else RegistrationSigner(key, nonce)
