"""Account changes by the requests 50 to 54 of Apache 4.x, and the methods that HTTP shares.

    50 UPDATE_AND_CREATE_ACL_CONFIG    an account; fields missing in the request stay as they are
    51 DELETE_ACL_CONFIG               (both: the last administrator with lastAdministrator=true)
    52 GET_BROKER_CLUSTER_ACL_INFO     the version of the accounts
    53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    54 GET_BROKER_CLUSTER_ACL_CONFIG   all accounts, their secrets as ******

Rejected changes have Apache's codes. remoting.acl.needs has checked before that the sender is an
admin.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from raftmq.remoting.acl import Accounts, AclError, account_from_config
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.fields import boolean_or, text, text_or

from ..access import Access
from ..accountbook import AccountBook
from ..component import Service
from ..context import Context
from .pass_on import PassOn

log = logging.getLogger("raftmq.broker.acl")


class LastAdministrator(AclError):
    """The change would leave no administrator."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key} is the last administrator: nobody could change accounts or topics any more;"
            " with lastAdministrator=true (--force of mqadmin) it is done all the same"
        )


class AccountChanges:
    """Durable changes of accounts. All methods raise AclError, Refused and RaftError. `by` names
    the initiator in the log. Only `last_administrator` permits the removal of the last
    administrator (LastAdministrator)."""

    def __init__(self, book: AccountBook, wall_ms: Callable[[], int], *, is_classic: bool) -> None:
        self._book = book
        self._wall_ms = wall_ms
        self._is_classic = is_classic

    @property
    def accounts(self) -> Accounts:
        return self._book.current()

    async def put(
        self, key: str, fields: Mapping[str, Any], by: str, *, last_administrator: bool = False
    ) -> None:
        """Create or change an account; `fields` are plain_acl.yml's, and missing fields stay."""
        now_ms = self._wall_ms()
        value = {**fields, "accessKey": key}

        def changed(accounts: Accounts) -> Accounts:
            account = account_from_config(value, accounts.by_key.get(key))
            if not (account.admin or last_administrator):
                _check_not_last(accounts, key)
            return accounts.with_account(account, now_ms)

        await self._book.change(changed)
        log.warning("acl_changed op=put access_key=%s by=%s", key, by)

    async def delete(self, key: str, by: str, *, last_administrator: bool = False) -> None:
        now_ms = self._wall_ms()

        def changed(accounts: Accounts) -> Accounts:
            if not last_administrator:
                _check_not_last(accounts, key)
            return self._without(accounts, key, now_ms)

        await self._book.change(changed)
        log.warning("acl_changed op=delete access_key=%s by=%s", key, by)

    def _without(self, accounts: Accounts, key: str, now_ms: int) -> Accounts:
        """Delete an account. In a Raft group it may be deleted already, because tools send the
        request to each replica."""
        if key not in accounts.by_key and not self._is_classic:
            return accounts
        return accounts.without(key, now_ms)

    async def put_white_addresses(self, addresses: Sequence[str], by: str) -> None:
        """Replace the global white list."""
        now_ms = self._wall_ms()
        await self._book.change(lambda accounts: accounts.with_white_addresses(addresses, now_ms))
        log.warning("acl_changed op=white addresses=%s by=%s", ",".join(addresses), by)


def _check_not_last(accounts: Accounts, key: str) -> None:
    """Raise LastAdministrator if no further account is an administrator's."""
    if {one.access_key for one in accounts.by_key.values() if one.admin} == {key}:
        raise LastAdministrator(key)


# ResponseCode has different names for these numbers, which depend on the request.
UPDATE_FAILED = 209
DELETE_FAILED = 210
WHITE_ADDRESSES_FAILED = 211
CODES = (
    int(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG),
    int(RequestCode.DELETE_ACL_CONFIG),
    int(RequestCode.GET_BROKER_CLUSTER_ACL_INFO),
    int(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG),
    int(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG),
)


class AclAdmin:
    def __init__(
        self,
        context: Context,
        book: AccountBook,
        changes: AccountChanges,
        access: Access,
        pass_on: PassOn,
    ) -> None:
        self._context = context
        self._book = book
        self._changes = changes
        self._access = access
        self._pass_on = pass_on

    def service(self) -> Service:
        """Return the handlers of 50 to 54."""
        if not self._access.enabled:
            return Service(handlers=dict.fromkeys(CODES, switched_off))
        handlers = (
            self._pass_on(self._put),
            self._pass_on(self._delete),
            self._version,
            self._pass_on(self._white_addresses),
            self._config,
        )
        by_code: dict[int, Handler] = dict(zip(CODES, handlers, strict=True))
        return Service(handlers=by_code)

    async def _put(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Create or change an account (50)."""
        key = text(request.ext, "accessKey")
        value: dict[str, Any] = dict(request.ext or {})
        for name in ("topicPerms", "groupPerms"):
            if name in value:
                value[name] = split(value[name])
        try:
            await self._changes.put(
                key,
                value,
                self._access.who(connection),
                last_administrator=_of_the_last(request),
            )
        except AclError as error:
            return RemotingCommand.response_to(request, UPDATE_FAILED, str(error))
        return RemotingCommand.response_to(request)

    async def _delete(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete an account (51)."""
        key = text(request.ext, "accessKey")
        try:
            await self._changes.delete(
                key, self._access.who(connection), last_administrator=_of_the_last(request)
            )
        except AclError as error:
            return RemotingCommand.response_to(request, DELETE_FAILED, str(error))
        return RemotingCommand.response_to(request)

    async def _white_addresses(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Replace the global white list (53)."""
        addresses = split(text_or(request.ext, "globalWhiteAddrs"))
        try:
            await self._changes.put_white_addresses(addresses, self._access.who(connection))
        except AclError as error:
            return RemotingCommand.response_to(request, WHITE_ADDRESSES_FAILED, str(error))
        return RemotingCommand.response_to(request)

    def _version(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the accounts' version (52)."""
        version = self._book.current().data_version()
        config = self._context.config
        ext = {
            "version": orjson.dumps(version).decode(),
            "allAclFileVersion": orjson.dumps({self._book.path: version}).decode(),
            "brokerName": config.broker_name,
            "brokerAddr": self._context.address,
            "clusterName": config.broker_cluster_name,
        }
        return RemotingCommand.response_to(request, ext=ext)

    def _config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer all accounts with masked secrets (54)."""
        accounts = self._book.current()
        masked = [one.to_config(masked=True) for _, one in sorted(accounts.by_key.items())]
        body = {"globalWhiteAddrs": list(accounts.white_addresses), "plainAccessConfigs": masked}
        return RemotingCommand.response_to(request, ext={}, body=orjson.dumps(body))


def _of_the_last(request: RemotingCommand) -> bool:
    """Return whether a request may remove the last administrator (ours)."""
    return boolean_or(request.ext, "lastAdministrator", False)


def switched_off(_: Connection, request: RemotingCommand) -> RemotingCommand:
    """Answer a request without access control."""
    remark = str(AclError("there is no access control here: aclEnable is not set"))
    return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark)


def split(given: str) -> list[str]:
    """Split a list at its commas outside of braces."""
    parts = re.findall(r"(?:\{[^{}]*\}|[^,{}]|[{}])+", given)
    return [part.strip() for part in parts if part.strip()]
