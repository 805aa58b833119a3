"""Accounts and consume modes, in all groups.

An account's secret is sent only to brokers that may see the cluster's token, because an impostor
may have registered.
"""

from __future__ import annotations

from typing import Any

from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import unavailable
from raftmq.web.resources.accounts import AccountBody, AccountPath, WhiteAddressesBody
from raftmq.web.resources.consumers import ModeBody
from raftmq.web.schema import Input

from .broker_fanout import Leaders
from .changes import Body, Everywhere
from .cluster import ClusterView, Item
from .inputs import (
    CONSUMERS,
    AccountQuery,
    Name,
    OfName,
    OneGroup,
    filled,
    items_of,
)
from .merging import with_group
from .reads import none_has
from .seen import Accounts, Items
from .views import AccountsOfGroups, ChangedInGroups, GroupsListing, ModeOfGroup

ACCOUNT = "/accounts/{access_key}"
MODES = f"{CONSUMERS}/modes"


class OfMode(Input, frozen=True):
    name: Name
    topic: Name


class ClientAccess:
    """The handlers; `operations()` lists them."""

    def __init__(self, cluster: ClusterView, leaders: Leaders, everywhere: Everywhere) -> None:
        self._cluster = cluster
        self._leaders = leaders
        self._everywhere = everywhere

    def operations(self) -> list[Operation]:
        admin = Role.ADMIN
        change: dict[str, Any] = {
            "role": admin, "query": OneGroup, "problems": (404, 409, 502, 503, 504),
            "answer": ChangedInGroups, "also": (207,),
        }  # fmt: skip
        account_change = {**change, "query": AccountQuery}
        account = f"/api/v1{ACCOUNT}".replace("access_key", "accessKey")
        return [
            Operation("GET", "/api/v1/accounts", "listAccounts",
                      "The accounts of clients, without their secrets.", self.accounts, role=admin,
                      query=OneGroup, answer=AccountsOfGroups, problems=(404, 503)),
            Operation("PUT", account, "putAccount", "Make or change an account.", self.put_account,
                      parameters=AccountPath, body=Body, body_schema=AccountBody, **account_change),
            Operation("DELETE", account, "deleteAccount", "Delete an account.",
                      self._everywhere.at(ACCOUNT), parameters=AccountPath, **account_change),
            Operation("PUT", "/api/v1/white-addresses", "putWhiteAddresses",
                      "Replace the addresses from which nobody needs an account.",
                      self._everywhere.at("/white-addresses"), body=Body,
                      body_schema=WhiteAddressesBody, **change),
            Operation("GET", f"/api/v1{MODES}", "listConsumeModes",
                      "The topics whose consume mode was set for a consumer group.", self.modes,
                      parameters=OfName, answer=GroupsListing[ModeOfGroup], problems=(404, 503)),
            Operation("PUT", f"/api/v1{MODES}/{{topic}}", "putConsumeMode",
                      "Let a consumer group's clients of 5.x pull or pop a topic.", self.put_mode,
                      parameters=OfMode, body=Body, body_schema=ModeBody, **change),
        ]  # fmt: skip

    async def accounts(self, call: Call) -> Item:
        result, errors = await self._leaders.views(
            "/api/v1/accounts", only=call.query.group, kind=Accounts
        )
        by_key: dict[str, list[Item]] = {}
        for group in sorted(result):
            for item in with_group(group, items_of(result[group])):
                by_key.setdefault(str(item["accessKey"]), []).append(item)
        groups = [
            {
                "group": group,
                "enabled": bool(result[group].get("enabled")),
                "whiteAddresses": list(result[group].get("whiteAddresses") or ()),
            }
            for group in sorted(result)
        ]
        items = [{"accessKey": key, "groups": by_key[key]} for key in sorted(by_key)]
        return {"items": items, "next": None, "groups": groups, "errors": errors}

    async def put_account(self, call: Call) -> Reply:
        if "secretKey" in call.body:
            self._check_secret_is_safe(call.query.group)
        return await self._everywhere.change(call, ACCOUNT)

    def _check_secret_is_safe(self, only: str) -> None:
        for group, address in self._cluster.leaders(only).items():
            why = self._cluster.nodes.distrusted(address) if address else ""
            if why:
                raise unavailable(f"the leader of {group} is not sent a secret: {why}", "DISTRUST")

    async def modes(self, call: Call) -> Item:
        result, errors = await self._leaders.views(filled(MODES, call), kind=Items)
        if not result:
            raise none_has("consumer group", errors)
        items = [
            {**item, "brokerGroup": group}
            for group in sorted(result)
            for item in items_of(result[group])
        ]
        return {"items": items, "next": None, "errors": errors}

    async def put_mode(self, call: Call) -> Reply:
        having = self._cluster.groups_with(call.parameters.topic)
        return await self._everywhere.change(call, f"{MODES}/{{topic}}", having)
