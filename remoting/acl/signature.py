"""Request signatures, as Apache's AclClientRPCHook makes them.

The signed text consists of the values of all extFields except `Signature`, in the order of their
keys, and the body. Keys are ordered by UTF-16 code units, as Java orders strings. The signature is
Base64(HMAC-SHA1(secret key, text)), sent as an extField with `AccessKey` and the optional
`SecurityToken`. The secret key is never sent.

Some of Apache's clients sign `_UNIQUE_KEY_QUERY`, and some add it after signing. Both are accepted,
as by Apache's brokers. Pure, without I/O.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from raftmq.ops.strict_json import loads

from ..command import RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
UNSIGNED_BY_SOME = "_UNIQUE_KEY_QUERY"
SIGNED_FIELDS = (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of a signer. Its repr does not show the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError if a key is empty."""
        if not self.access_key or not self.secret_key:
            raise ValueError("credentials need an access key and a secret key")

    def sign(self, command: RemotingCommand) -> None:
        """Sign `command`, replacing an earlier signature. Call it last before encoding, because any
        later change invalidates the signature."""
        ext = {k: v for k, v in (command.ext or {}).items() if k not in SIGNED_FIELDS}
        ext[ACCESS_KEY] = self.access_key
        if self.security_token:
            ext[SECURITY_TOKEN] = self.security_token
        ext[SIGNATURE] = signature(self.secret_key, signed_text(ext, command.body))
        command.ext = ext


def credentials_of(text: str) -> Credentials | None:
    """Parse `{"accessKey":"…","secretKey":"…"}`, the form in Apache's broker configuration; None
    for "". Raises ValueError without the keys."""
    if not text:
        return None
    try:
        value = loads(text)
        token = value.get("securityToken")
        fields = str(value["accessKey"]), str(value["secretKey"]), token and str(token)
    except (orjson.JSONDecodeError, KeyError, AttributeError, TypeError):
        raise ValueError('expected {"accessKey":"…","secretKey":"…"}') from None
    return Credentials(*fields)


def credentials_of_environment(environment: Mapping[str, str]) -> Credentials | None:
    """Read a tool's RAFTMQ_ACCESS_KEY, RAFTMQ_SECRET_KEY and RAFTMQ_SECURITY_TOKEN; None without
    keys. Raises ValueError if a key is missing."""
    access_key, secret_key, token = (
        environment.get(f"RAFTMQ_{name}", "")
        for name in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN")
    )
    if not access_key and not secret_key:
        return None
    try:
        return Credentials(access_key, secret_key, token or None)
    except ValueError as error:
        raise ValueError(f"RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY: {error}") from None


def signed_text(ext: Mapping[str, str], body: bytes) -> bytes:
    if all(map(str.isascii, ext)):
        keys = sorted(ext)
    else:
        keys = sorted(ext, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    return "".join([ext[key] for key in keys if key != SIGNATURE]).encode() + body


def signature(secret_key: str, text: bytes) -> str:
    return b2a_base64(hmac.digest(secret_key.encode(), text, "sha1"), newline=False).decode()


def is_signed_by(secret_key: str, ext: Mapping[str, str], body: bytes) -> bool:
    """Return whether the signature was made with this secret, in constant time."""
    given = ext.get(SIGNATURE, "").encode()
    if _equal(given, secret_key, signed_text(ext, body)):
        return True
    if UNSIGNED_BY_SOME not in ext:
        return False
    without = {key: value for key, value in ext.items() if key != UNSIGNED_BY_SOME}
    return _equal(given, secret_key, signed_text(without, body))


def _equal(given: bytes, secret_key: str, text: bytes) -> bool:
    return hmac.compare_digest(given, signature(secret_key, text).encode())
