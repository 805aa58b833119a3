"""Requests of admins about accounts: 50 to 54 of Apache 4.x.

    50 UPDATE_AND_CREATE_ACL_CONFIG    an account; fields that the request lacks stay as they are
    51 DELETE_ACL_CONFIG               (both: the last administrator with lastAdministrator=true)
    52 GET_BROKER_CLUSTER_ACL_INFO     the version of the accounts
    53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    54 GET_BROKER_CLUSTER_ACL_CONFIG   all accounts, their secrets as ******

Refused changes have Apache's codes. The handlers need not check that the requests are from admins:
that is done before (remoting.acl.needs).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from raftmq.remoting.acl import AclError
from raftmq.remoting.acl.signature import SIGNATURE
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.fields import boolean_or, text, text_or

from ..access import Access
from ..accountbook import AccountBook
from ..component import Service
from ..context import Context
from ..errors import not_leader
from .account_changes import AccountChanges

# ResponseCode has other names for these numbers; only the request tells which is meant.
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
PASSED_ON = "passed on"  # remark of a change that a replica passes on to the leader
PASS_ON_TIMEOUT_MS = 5_000.0
Change = Callable[[Connection, RemotingCommand], Awaitable[RemotingCommand]]


class AclAdmin:
    """The handlers of requests about accounts."""

    def __init__(
        self, context: Context, book: AccountBook, changes: AccountChanges, access: Access
    ) -> None:
        self._context = context
        self._book = book
        self._changes = changes
        self._access = access
        self._peers = RemotingClient(tls=context.tls.client)

    def service(self) -> Service:
        """Return the handlers of 50 to 54."""
        if not self._access.enabled:
            return Service(handlers=dict.fromkeys(CODES, switched_off))
        handlers = (
            self._by_leader(self._put),
            self._by_leader(self._delete),
            self._version,
            self._by_leader(self._white_addresses),
            self._config,
        )
        by_code: dict[int, Handler] = dict(zip(CODES, handlers, strict=True))
        return Service(handlers=by_code, stop=self._peers.close)

    def _by_leader(self, handler: Change) -> Handler:
        """Return a handler that has the leader make the change. Apache's tools send a change of a
        cluster to all its brokers and stop at a refusal. So a replica that does not lead passes it
        on, with the signature that it has; one admitted by its address is signed by this node,
        which checked it."""

        async def at_leader(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            roles = self._context.roles
            if self._context.config.is_classic or roles.leading or request.remark == PASSED_ON:
                return await handler(connection, request)
            address = roles.leader_address
            if not address:
                raise not_leader()
            ext = dict(request.ext or {})
            command = RemotingCommand.request(request.code, ext, request.body)
            command.remark = PASSED_ON  # not part of what is signed
            own = self._context.config.inner_credentials
            if SIGNATURE not in ext and own is not None:
                own.sign(command)
            answer = await self._peers.invoke(address, command, PASS_ON_TIMEOUT_MS)
            return RemotingCommand.response_to(
                request, answer.code, answer.remark, answer.ext, answer.body
            )

        return at_leader

    async def _put(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """50: create or change an account."""
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
        """51: delete an account."""
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
        """53: replace the global white list."""
        addresses = split(text_or(request.ext, "globalWhiteAddrs"))
        try:
            await self._changes.put_white_addresses(addresses, self._access.who(connection))
        except AclError as error:
            return RemotingCommand.response_to(request, WHITE_ADDRESSES_FAILED, str(error))
        return RemotingCommand.response_to(request)

    def _version(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """52: answer the accounts' version."""
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
        """54: answer all accounts, secrets masked."""
        accounts = self._book.current()
        masked = [one.to_config(masked=True) for _, one in sorted(accounts.by_key.items())]
        body = {"globalWhiteAddrs": list(accounts.white_addresses), "plainAccessConfigs": masked}
        return RemotingCommand.response_to(request, ext={}, body=orjson.dumps(body))


def _of_the_last(request: RemotingCommand) -> bool:
    """Return whether a request may take away the last administrator (ours)."""
    return boolean_or(request.ext, "lastAdministrator", False)


def switched_off(_: Connection, request: RemotingCommand) -> RemotingCommand:
    """Answer a request where there is no access control."""
    remark = str(AclError("there is no access control here: aclEnable is not set"))
    return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark)


def split(given: str) -> list[str]:
    """Split a list at its commas, except within braces."""
    parts = re.findall(r"(?:\{[^{}]*\}|[^,{}]|[{}])+", given)
    return [part.strip() for part in parts if part.strip()]
