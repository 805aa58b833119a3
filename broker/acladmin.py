"""What admins ask about accounts: 50 to 54 of Apache 4.x.

    50 UPDATE_AND_CREATE_ACL_CONFIG    an account; what the request does not say stays as it is
    51 DELETE_ACL_CONFIG
    52 GET_BROKER_CLUSTER_ACL_INFO     the version of the accounts
    53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    54 GET_BROKER_CLUSTER_ACL_CONFIG   all accounts, their secrets as ******

Refused changes have Apache's codes. The requests were let in already: admins' (remoting.acl.needs).
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import orjson

from broker.accountbook import AccountBook
from remoting.acl import AclError, account_from_config
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection, Handler
from remoting.fields import text, text_or_none

if TYPE_CHECKING:
    from broker.broker import Broker

log = logging.getLogger("broker.acl")

# ResponseCode has other names for these numbers; only what they answer tells them apart.
UPDATE_FAILED = 209
DELETE_FAILED = 210
WHITE_ADDRESSES_FAILED = 211


class AclAdmin:
    """The handlers."""

    def __init__(self, broker: Broker, book: AccountBook) -> None:
        self._broker = broker
        self._book = book

    def handlers(self) -> dict[int, Handler]:
        return {
            int(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG): self._put,
            int(RequestCode.DELETE_ACL_CONFIG): self._delete,
            int(RequestCode.GET_BROKER_CLUSTER_ACL_INFO): self._version,
            int(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG): self._white_addresses,
            int(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG): self._config,
        }

    async def _put(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        key = text(request.ext, "accessKey")
        value: dict[str, Any] = dict(request.ext or {})
        for name in ("topicPerms", "groupPerms"):
            if name in value:
                value[name] = split(value[name])
        now_ms = self._broker.wall_ms()
        try:
            await self._book.change(
                lambda accounts: accounts.with_account(
                    account_from_config(value, accounts.by_key.get(key)), now_ms
                )
            )
        except AclError as error:
            return RemotingCommand.response_to(request, UPDATE_FAILED, str(error))
        log.warning("acl_changed op=put access_key=%s by=%s", key, _by(connection, request))
        return RemotingCommand.response_to(request)

    async def _delete(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        key = text(request.ext, "accessKey")
        now_ms = self._broker.wall_ms()
        try:
            await self._book.change(lambda accounts: accounts.without(key, now_ms))
        except AclError as error:
            return RemotingCommand.response_to(request, DELETE_FAILED, str(error))
        log.warning("acl_changed op=delete access_key=%s by=%s", key, _by(connection, request))
        return RemotingCommand.response_to(request)

    async def _white_addresses(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        addresses = split(text_or_none(request.ext, "globalWhiteAddrs") or "")
        now_ms = self._broker.wall_ms()
        try:
            await self._book.change(lambda found: found.with_white_addresses(addresses, now_ms))
        except AclError as error:
            return RemotingCommand.response_to(request, WHITE_ADDRESSES_FAILED, str(error))
        by = _by(connection, request)
        log.warning("acl_changed op=white addresses=%s by=%s", ",".join(addresses), by)
        return RemotingCommand.response_to(request)

    def _version(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        version = self._book.current().data_version()
        config = self._broker.config
        ext = {
            "version": orjson.dumps(version).decode(),
            "allAclFileVersion": orjson.dumps({self._book.path: version}).decode(),
            "brokerName": config.broker_name,
            "brokerAddr": self._broker.address,
            "clusterName": config.broker_cluster_name,
        }
        return RemotingCommand.response_to(request, ext=ext)

    def _config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        accounts = self._book.current()
        masked = [one.to_config(masked=True) for _, one in sorted(accounts.by_key.items())]
        body = {"globalWhiteAddrs": list(accounts.white_addresses), "plainAccessConfigs": masked}
        return RemotingCommand.response_to(request, ext={}, body=orjson.dumps(body))


def split(given: str) -> list[str]:
    """The parts of a list, which commas separate, except within braces."""
    parts = re.findall(r"(?:\{[^{}]*\}|[^,{}]|[{}])+", given)
    return [part.strip() for part in parts if part.strip()]


def _by(connection: Connection, request: RemotingCommand) -> str:
    return (request.ext or {}).get("AccessKey") or connection.peer_address
