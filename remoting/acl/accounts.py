"""Accounts and their permissions, in the form of Apache's plain_acl.yml.

    globalWhiteRemoteAddresses: [10.10.103.*]       requests from there may do everything
    accounts:
      - accessKey: rocketmq2                        longer than 6 characters
        secretKey: "12345678"                       longer than 6 characters
        whiteRemoteAddress: 192.168.1.*             from there the account need not sign and may
        admin: false                                do everything
        defaultTopicPerm: DENY                      for topics that topicPerms does not name
        defaultGroupPerm: SUB
        topicPerms: [topicA=DENY, topicB=PUB|SUB]
        groupPerms: [groupA=SUB]

Permissions are DENY, PUB, SUB, PUB|SUB and ANY (the same as PUB|SUB). An admin account without
topicPerms and groupPerms may do everything; such lists restrict an admin also. A change makes a new
`Accounts`. Pure and immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Any

from ..codes import ResponseCode
from ..errors import RemotingError
from ..names import DLQ_PREFIX, OPERATOR_LOG_TOPIC
from .addresses import AddressPattern, AddressPatternError, parse_pattern

KEY_LENGTH_MIN = 7  # characters, for access keys and secrets
KEY_LENGTH_MAX = 256
ACCOUNTS_MAX = 10_000
PERMISSIONS_MAX = 10_000  # per account, for topics and groups each
WHITE_ADDRESSES_MAX = 1_000
HOSTS_REMEMBERED_MAX = 10_000  # cached white list look-ups
RETRY_PREFIX = "%RETRY%"
# Brokers keep all users' messages in these topics, at least until delivery. A default permission
# does not apply to them, so an account has to list them.
SHARED_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        OPERATOR_LOG_TOPIC,
    }
)
# replies to all users' requests; a default permission covers sends to them
REPLY_SUFFIX = "_REPLY_TOPIC"
MASKED = "******"
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "


class AclError(RemotingError):
    """A refusal, or an invalid account. Sent over the wire as Apache's AclException."""

    def __init__(self, message: str, code: int = ResponseCode.SYSTEM_ERROR) -> None:
        super().__init__(EXCEPTION + message, code=code)


class Permission(IntFlag):
    """An account's permission for a topic or a group."""

    DENY = 0
    PUB = 1
    SUB = 2
    ANY = 3  # as a grant, both; as a need, either


_BY_WORD = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.ANY,
    "SUB|PUB": Permission.ANY,
    "ANY": Permission.ANY,
}


def parse_permission(word: str) -> Permission:
    """Parse a permission. Raises AclError for an unknown word, which Apache reads as DENY."""
    permission = _BY_WORD.get(word.strip())
    if permission is None:
        raise AclError(f"The permission {word[:40]!r} is none of {', '.join(_BY_WORD)}")
    return permission


@dataclass(frozen=True, slots=True)
class Account:
    """An account as in its file, with parsed forms. Its repr hides the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str = "DENY"
    default_group_perm: str = "DENY"
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()
    trusted: AddressPattern = field(init=False, repr=False, compare=False)
    topics: dict[str, Permission] = field(init=False, repr=False, compare=False)
    groups: dict[str, Permission] = field(init=False, repr=False, compare=False)
    topic_default: Permission = field(init=False, repr=False, compare=False)
    group_default: Permission = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the keys and parse the permissions. Raises AclError."""
        for name, value in (("accessKey", self.access_key), ("secretKey", self.secret_key)):
            if not KEY_LENGTH_MIN <= len(value) <= KEY_LENGTH_MAX:
                shown = f"={value[:40]}" if name == "accessKey" else ""
                raise AclError(
                    f"The {name}{shown} must have {KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} characters"
                )
        parsed = {
            "trusted": pattern(self.white_remote_address),
            "topics": _parsed("topic", self.topic_perms),
            "groups": _parsed("group", self.group_perms),
            "topic_default": parse_permission(self.default_topic_perm or "DENY"),
            "group_default": parse_permission(self.default_group_perm or "DENY"),
        }
        for name, permissions in parsed.items():
            object.__setattr__(self, name, permissions)

    @property
    def is_unbound(self) -> bool:
        """Return whether this is an unrestricted admin, without lists."""
        return self.admin and not self.topics and not self.groups

    def on_topic(self, topic: str) -> Permission:
        """Return the account's permission for the topic. Reading dead letters takes the permission
        for their group; sending them takes a separate permission."""
        listed = self.topics.get(topic)
        if listed is not None:
            return listed
        if topic in SHARED_TOPICS:
            return Permission.DENY
        if topic.startswith(DLQ_PREFIX):
            return self.on_group(topic[len(DLQ_PREFIX) :]) & Permission.SUB
        if topic.endswith(REPLY_SUFFIX):
            return self.topic_default & Permission.PUB
        return self.topic_default

    def on_group(self, group: str) -> Permission:
        return self.groups.get(group, self.group_default)

    def to_config(self, *, masked: bool = False) -> dict[str, Any]:
        """Return the form of plain_acl.yml and of code 54, `masked` without the secret."""
        return {
            "accessKey": self.access_key,
            "secretKey": MASKED if masked else self.secret_key,
            "whiteRemoteAddress": self.white_remote_address,
            "admin": self.admin,
            "defaultTopicPerm": self.default_topic_perm,
            "defaultGroupPerm": self.default_group_perm,
            "topicPerms": list(self.topic_perms),
            "groupPerms": list(self.group_perms),
        }


def account_from_config(value: Mapping[str, Any], before: Account | None = None) -> Account:
    """Make an account of plain_acl.yml's keys, others from `before`. Raises AclError."""
    if not isinstance(value, Mapping):
        raise AclError("an account is not a mapping of keys")
    secret = value.get("secretKey")
    base: dict[str, Any] = {"secret_key": ""}
    if before is not None:
        base = {name: getattr(before, name) for name in (*_FIELD_OF.values(), "secret_key")}
    for config_key, name in _FIELD_OF.items():
        given = value.get(config_key)
        if given is None or (given == "" and config_key != "whiteRemoteAddress"):
            continue
        base[name] = _converted(config_key, given)
    if secret not in (None, "", MASKED):
        base["secret_key"] = str(secret)
    return Account(str(value.get("accessKey") or ""), **base)


_FIELD_OF = {
    "whiteRemoteAddress": "white_remote_address",
    "admin": "admin",
    "defaultTopicPerm": "default_topic_perm",
    "defaultGroupPerm": "default_group_perm",
    "topicPerms": "topic_perms",
    "groupPerms": "group_perms",
}


def _converted(key: str, given: Any) -> Any:
    if key == "admin":
        return given if isinstance(given, bool) else str(given).strip().lower() == "true"
    if key in ("topicPerms", "groupPerms"):
        if not isinstance(given, list | tuple):
            raise AclError(f"{key} is not a list")
        return tuple(str(one).strip() for one in given)
    return str(given).strip()


@dataclass(frozen=True, slots=True)
class Accounts:
    """All accounts, and the white list of addresses. `counter` and `timestamp_ms` are the data
    version for Apache's tools."""

    by_key: Mapping[str, Account] = field(default_factory=dict)
    white_addresses: tuple[str, ...] = ()
    counter: int = 0
    timestamp_ms: int = 0
    _white: tuple[AddressPattern, ...] = field(init=False, repr=False, compare=False)
    _hosts: dict[str, bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the sizes and parse the white list. Raises AclError."""
        if len(self.by_key) > ACCOUNTS_MAX:
            raise AclError(f"more than {ACCOUNTS_MAX} accounts")
        if len(self.white_addresses) > WHITE_ADDRESSES_MAX:
            raise AclError(f"more than {WHITE_ADDRESSES_MAX} white addresses")
        object.__setattr__(self, "_white", tuple(pattern(one) for one in self.white_addresses))
        object.__setattr__(self, "_hosts", {})

    def trusts(self, host: str) -> bool:
        """Return whether `host` is on the white list and may do everything."""
        if not self._white:
            return False
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= HOSTS_REMEMBERED_MAX:
                self._hosts.clear()
            known = self._hosts[host] = any(one.matches(host) for one in self._white)
        return known

    def with_account(self, account: Account, now_ms: int) -> Accounts:
        """Return these accounts with `account` added or replaced. Raises AclError."""
        return self._changed(now_ms, by_key={**self.by_key, account.access_key: account})

    def without(self, access_key: str, now_ms: int) -> Accounts:
        """Return these accounts without `access_key`. Raises AclError if it does not exist."""
        if access_key not in self.by_key:
            raise AclError(f"No acl config for {access_key[:KEY_LENGTH_MAX]}")
        rest = {key: one for key, one in self.by_key.items() if key != access_key}
        return self._changed(now_ms, by_key=rest)

    def with_white_addresses(self, addresses: Iterable[str], now_ms: int) -> Accounts:
        """Return these accounts with a new white list. Raises AclError."""
        return self._changed(now_ms, white_addresses=tuple(addresses))

    def _changed(self, now_ms: int, **what: Any) -> Accounts:
        return replace(self, counter=self.counter + 1, timestamp_ms=now_ms, **what)

    def data_version(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": 0, "timestamp": self.timestamp_ms}

    def to_config(self) -> dict[str, Any]:
        """Return plain_acl.yml's content."""
        return {
            "globalWhiteRemoteAddresses": list(self.white_addresses),
            "accounts": [one.to_config() for _, one in sorted(self.by_key.items())],
            "dataVersion": [{"counter": self.counter, "timestamp": self.timestamp_ms}],
        }


def accounts_from_config(value: Any) -> Accounts:
    """Make accounts from a parsed plain_acl.yml. Raises AclError, without secrets."""
    if value is None:
        return Accounts()
    if not isinstance(value, Mapping):
        raise AclError("not a mapping of globalWhiteRemoteAddresses and accounts")
    by_key: dict[str, Account] = {}
    for one in _list(value, "accounts"):
        account = account_from_config(one)
        if account.access_key in by_key:
            raise AclError(f"the accessKey {account.access_key} is there twice")
        by_key[account.access_key] = account
    versions = _list(value, "dataVersion")
    version = versions[0] if versions and isinstance(versions[0], Mapping) else {}
    try:
        counter, timestamp = int(version.get("counter", 0)), int(version.get("timestamp", 0))
    except (TypeError, ValueError) as error:
        raise AclError("dataVersion is not of numbers") from error
    white = tuple(str(one).strip() for one in _list(value, "globalWhiteRemoteAddresses"))
    return Accounts(by_key, white, counter, timestamp)


def pattern(text: str) -> AddressPattern:
    """Parse an address pattern. Raises AclError."""
    try:
        return parse_pattern(text)
    except AddressPatternError as error:
        raise AclError(f"netaddress examine exception: {error}") from error


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    items = value.get(key) or []
    if not isinstance(items, list):
        raise AclError(f"{key} is not a list")
    return items


def _parsed(kind: str, perms: tuple[str, ...]) -> dict[str, Permission]:
    if len(perms) > PERMISSIONS_MAX:
        raise AclError(f"more than {PERMISSIONS_MAX} permissions of {kind}s")
    permissions: dict[str, Permission] = {}
    for one in perms:
        name, equals, word = one.partition("=")
        if not equals or not name.strip() or "=" in word:
            raise AclError(f"Parse resource permission failed for {kind}:{one[:80]}")
        permissions[name.strip()] = parse_permission(word)
    return permissions
