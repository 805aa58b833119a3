"""Commands for accounts, as in Apache's mqadmin 4.x.

In a Raft group any replica accepts a change and forwards it to its leader. The command asks only
the leader, because a second request could be signed by an account that the first has deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from raftmq.client.admin import Admin
from raftmq.client.admin.requests import at_each
from raftmq.client.errors import BrokerRefused
from raftmq.client.route import LEADER_ID
from raftmq.remoting.codes import LanguageCode, RequestCode
from raftmq.remoting.fast_json import loads_object

from .command import Arguments, CommandError, Done, Section, Table
from .targets import Replica, named, no_leader, replicas

CHANGE_TIMEOUT_MS = 10_000  # a follower asks its leader
FIELDS = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)


async def update(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    ext = {name: arguments.text(name) for name in FIELDS if arguments.given(name)}
    if arguments.given("admin"):
        ext["admin"] = "true" if arguments.boolean("admin") else "false"
    await _change(admin, arguments, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext)
    key = arguments.text("accessKey")
    return [Done(f"the account {key} is as you said", {"accessKey": key})]


async def delete(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    key = arguments.text("accessKey")
    await _change(admin, arguments, RequestCode.DELETE_ACL_CONFIG, {"accessKey": key})
    return [Done(f"there is no account {key} any more", {"accessKey": key})]


async def white_addresses(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    addresses = arguments.text("globalWhiteRemoteAddresses")
    ext = {"globalWhiteAddrs": addresses}
    if arguments.text("aclFileFullPath"):
        ext["aclFileFullPath"] = arguments.text("aclFileFullPath")
    await _change(admin, arguments, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ext)
    return [Done(f"these addresses need no account: {addresses or 'none'}")]


async def show(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    sections: list[Section] = []
    for address in await named(admin, arguments):
        response = await admin.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        body = loads_object(response.body)
        rows = [_row(item) for item in body.get("plainAccessConfigs") or []]
        sections.append(Table(rows, f"accounts of {address}", columns=FIELDS))
        white = [{"globalWhiteAddress": item} for item in body.get("globalWhiteAddrs") or []]
        title = f"addresses without account at {address}"
        sections.append(Table(white, title, columns=("globalWhiteAddress",)))
    return sections


async def version(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    rows = []
    for address in await named(admin, arguments):
        response = await admin.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        ext = response.ext or {}
        result = orjson.loads(ext.get("version") or "{}")
        rows.append(
            {
                "cluster": ext.get("clusterName", ""),
                "broker": ext.get("brokerName", ""),
                "address": ext.get("brokerAddr", address),
                "counter": result.get("counter", 0),
                "timestamp": result.get("timestamp", 0),
            }
        )
    return [Table(rows)]


def _row(account: dict[str, Any]) -> dict[str, Any]:
    shown = {**account}
    for name in ("topicPerms", "groupPerms"):
        shown[name] = ",".join(account.get(name) or [])
    return {name: shown.get(name) or "" for name in FIELDS} | {"admin": bool(shown.get("admin"))}


async def _change(admin: Admin, arguments: Arguments, code: int, ext: dict[str, str]) -> None:
    """Make the change at every broker. An incomplete change's error lists the changed brokers."""
    addresses = await _request_lines(admin, arguments)
    if arguments.on("force"):
        ext["lastAdministrator"] = "true"
    elif code == RequestCode.DELETE_ACL_CONFIG or ext.get("admin") == "false":
        for address in addresses:
            await _check_not_last(admin, address, ext["accessKey"])

    async def change(address: str) -> None:
        retained = await _kept(admin, address, code, ext)
        await admin.ask(address, code, ext | retained, timeout_ms=CHANGE_TIMEOUT_MS)

    await at_each(addresses, change)


async def _request_lines(admin: Admin, arguments: Arguments) -> list[str]:
    """Return `-b`, or of `-c` the leader of each Raft group and all brokers of each classic group,
    which have a file each. Raises CommandError."""
    address, cluster = arguments.text("brokerAddr"), arguments.text("clusterName")
    if address or not cluster:
        return await named(admin, arguments)
    groups: dict[str, list[Replica]] = {}
    for replica in replicas(await admin.cluster.info(), cluster):
        groups.setdefault(replica.broker_name, []).append(replica)
    addresses = []
    for name, members in groups.items():  # by broker id, so the leader is first
        if "raftRole" in await admin.broker.runtime_info(members[0].address):
            if members[0].broker_id != LEADER_ID:
                raise CommandError(no_leader([name]))
            del members[1:]
        addresses += [replica.address for replica in members]
    return addresses


async def _kept(admin: Admin, address: str, code: int, ext: dict[str, str]) -> dict[str, str]:
    """Return the fields that an update must repeat to keep the account otherwise unchanged.
    Apache's brokers read a missing `admin` as false. Our brokers keep it, and followers may list
    old accounts."""
    if code != RequestCode.UPDATE_AND_CREATE_ACL_CONFIG or "admin" in ext:
        return {}
    language, administrators = await _administrators(admin, address)
    lost = language != LanguageCode.PYTHON and ext["accessKey"] in administrators
    return {"admin": "true"} if lost else {}


async def _check_not_last(admin: Admin, address: str, key: str) -> None:
    """Raise CommandError if this broker lists no further administrator. Our brokers check that
    themselves when they apply the change; older brokers and Apache's do not."""
    if (await _administrators(admin, address))[1] == {key}:
        raise CommandError(
            f"{key} is the last administrator at {address}: nobody could change accounts or topics"
            " there any more; --force does it all the same"
        )


async def _administrators(admin: Admin, address: str) -> tuple[int, set[str]]:
    """Return the broker's language and administrators; none if it rejects the request."""
    try:
        response = await admin.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    except BrokerRefused:
        return LanguageCode.OTHER, set()
    accounts = loads_object(response.body).get("plainAccessConfigs") or []
    return response.language, {item.get("accessKey") for item in accounts if item.get("admin")}
