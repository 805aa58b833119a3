"""Accounts of clients and their permissions."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ..schema import Input, View

LISTED_MAX = 1_000  # permissions of an account, and addresses, per request

AccessKey = Annotated[str, Meta(min_length=7, max_length=256, pattern="^[!-~]+$")]
_PERMISSION = r"(DENY|PUB|SUB|PUB\|SUB|SUB\|PUB|ANY)$"
Permission = Annotated[str, Meta(pattern=f"^{_PERMISSION}", examples=["PUB|SUB"])]
Grant = Annotated[str, Meta(max_length=300, pattern=f"^[^=]+={_PERMISSION}")]
Address = Annotated[str, Meta(max_length=300)]


class AccountPath(Input, frozen=True, kw_only=True):
    access_key: AccessKey


class AccountQuery(Input, frozen=True, kw_only=True):
    """`lastAdministrator` permits deleting the only administrator, or removing its right. After
    that, accounts and topics cannot be changed by the protocol of clients."""

    last_administrator: bool = False


class AccountBody(Input, frozen=True, kw_only=True):
    """Omitted fields stay unchanged; a new account needs a secretKey. `topicPerms` and `groupPerms`
    are name=permission, for names without the default."""

    secret_key: AccessKey | UnsetType = UNSET
    white_remote_address: Address | UnsetType = UNSET
    admin: bool | UnsetType = UNSET
    default_topic_perm: Permission | UnsetType = UNSET
    default_group_perm: Permission | UnsetType = UNSET
    topic_perms: Annotated[list[Grant], Meta(max_length=LISTED_MAX)] | UnsetType = UNSET
    group_perms: Annotated[list[Grant], Meta(max_length=LISTED_MAX)] | UnsetType = UNSET


class AccountView(View, frozen=True, kw_only=True):
    """An account; its secret is never shown."""

    access_key: str
    white_remote_address: str
    admin: bool
    default_topic_perm: str
    default_group_perm: str
    topic_perms: list[str]
    group_perms: list[str]


class AccountsView(View, frozen=True, kw_only=True):
    """`enabled` is false if this broker requires no accounts (aclEnable). `whiteAddresses` need no
    account."""

    items: list[AccountView]
    next: None = None
    enabled: bool
    white_addresses: list[str]


class WhiteAddressesBody(Input, frozen=True, kw_only=True):
    addresses: Annotated[list[Address], Meta(max_length=LISTED_MAX)]
