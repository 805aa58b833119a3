"""The caller of a gRPC call, from its metadata.

    x-mq-client-id        client id; required
    x-mq-date-time        the signed text
    authorization         MQv2-HMAC-SHA1 Credential=<access key>, SignedHeaders=x-mq-date-time,
                          Signature=<hex of HMAC-SHA1(secret, date-time)>
    x-mq-language, x-mq-namespace

A slash ends the access key in a credential; other clouds' credentials continue after it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from raftmq.remoting.acl import Account
from raftmq.remoting.address import host_of
from raftmq.remoting.codes import LanguageCode

from .protocol.messaging_pb2 import Code
from .status_codes import StatusError
from .validation import id_of

ALGORITHM = "MQv2-HMAC-SHA1"
_FIELD = re.compile(r"(\w+)=([^,\s]+)")
_LANGUAGES = {
    "JAVA": LanguageCode.JAVA,
    "CPP": LanguageCode.CPP,
    "DOT_NET": LanguageCode.DOTNET,
    "GOLANG": LanguageCode.GO,
    "GO": LanguageCode.GO,
    "RUST": LanguageCode.RUST,
    "PYTHON": LanguageCode.PYTHON,
    "PHP": LanguageCode.PHP,
    "NODE_JS": LanguageCode.NODE_JS,
    "RUBY": LanguageCode.RUBY,
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a call. `deadline_s` is a time of the loop's clock. `access_key` is "" for a
    caller that needs none; `account` is None for a caller with all rights."""

    client_id: str
    namespace: str
    language: LanguageCode
    host: str
    deadline_s: float
    access_key: str = ""
    account: Account | None = None

    @property
    def owner(self) -> str:
        return "" if self.account is None else self.account.access_key


def metadata_of(pairs: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """Return a call's metadata without binary values."""
    return {key: value for key, value in pairs or () if isinstance(value, str)}


def client_id_of(metadata: Mapping[str, str]) -> str:
    """Return the client's id. Raises StatusError."""
    client_id = metadata.get("x-mq-client-id", "")
    if not client_id:
        raise StatusError(Code.CLIENT_ID_REQUIRED, "the metadata have no x-mq-client-id")
    return id_of(client_id, "x-mq-client-id")


def namespace_of(metadata: Mapping[str, str]) -> str:
    """Return the client's namespace, or "". Raises StatusError."""
    return id_of(metadata.get("x-mq-namespace", ""), "x-mq-namespace")


def language_of(metadata: Mapping[str, str]) -> LanguageCode:
    return _LANGUAGES.get(metadata.get("x-mq-language", ""), LanguageCode.OTHER)


def host_of_peer(peer: str) -> str:
    """Return the address in gRPC's name of a peer (`ipv4:1.2.3.4:5`, `ipv6:[::1]:5`), or ""."""
    kind, _, address = peer.partition(":")
    return host_of(unquote(address)) if kind in ("ipv4", "ipv6") else ""


def access_key_of(metadata: Mapping[str, str]) -> tuple[str, str]:
    """Return a call's access key and signature, each "" if missing."""
    algorithm, _, rest = metadata.get("authorization", "").partition(" ")
    if algorithm != ALGORITHM:
        return "", ""
    fields = dict(_FIELD.findall(rest))
    return fields.get("Credential", "").partition("/")[0], fields.get("Signature", "")


def is_signed_by(secret_key: str, date_time: str, given: str) -> bool:
    """Return whether this secret made the signature; compares in constant time."""
    made = hmac.digest(secret_key.encode(), date_time.encode(), "sha1").hex()
    return hmac.compare_digest(made.encode(), given.lower().encode())
