"""Commands for brokers and Raft groups.

clusterList, brokerStatus, brokerConsumeStats, getBrokerConfig, updateBrokerConfig, cleanExpiredCQ,
deleteExpiredCommitLog, raftStatus, transferLeader, members.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from raftmq.client.admin import Admin
from raftmq.client.admin.brokers import DeletedLog
from raftmq.client.admin.requests import at_each
from raftmq.client.errors import BrokerRefused
from raftmq.client.route import LEADER_ID

from .command import (
    Arguments,
    CommandError,
    Done,
    Fields,
    Section,
    Table,
    show_time,
)
from .targets import everywhere, leader_of, named, replicas, runtime_infos, writable

HOUR_MS = 3_600_000
TRANSFER_WAIT_S = 10.0
TRANSFER_POLL_S = 0.1
MEMBERS_POLL_S = 0.2
MEMBER_OPS = {
    "add": "add-learner",
    "promote": "promote",
    "remove": "remove",
    "move": "move",
    "prefer": "prefer",
}


async def cluster_list(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    rows = []
    requested = replicas(await admin.cluster.info(), arguments.text("clusterName"))
    for replica, info in zip(requested, await runtime_infos(admin, requested), strict=True):
        row = {
            "cluster": replica.cluster,
            "broker": replica.broker_name,
            "id": replica.broker_id,
            "address": replica.address,
        }
        rows.append(row | (_totals(info) if arguments.on("moreStats") else _load(info)))
    return [Table(rows, columns=("cluster", "broker", "id", "address"))]


def _load(info: dict[str, str]) -> dict[str, Any]:
    if "error" in info:
        return {"version": info["error"]}
    earliest_ms = int(info.get("earliestMessageTimeStamp") or 0)
    hours = (time.time() * 1000 - earliest_ms) / HOUR_MS if earliest_ms > 0 else 0.0
    out = info.get("getTransferredTps") or info.get("getTransferedTps", "")
    return {
        "version": info.get("brokerVersionDesc", ""),
        "inTps": _first(info.get("putTps", "")),
        "outTps": _first(out),
        "sendQueue": int(info.get("sendThreadPoolQueueSize") or 0),
        "pullQueue": int(info.get("pullThreadPoolQueueSize") or 0),
        "hours": round(hours, 2),
        "diskUsed": float(info.get("commitLogDiskRatio") or 0),
        "active": info.get("brokerActive", "true") == "true",
    }


def _totals(info: dict[str, str]) -> dict[str, Any]:
    if "error" in info:
        return {"inTotalYesterday": info["error"]}

    def count(key: str) -> int:
        return int(info.get(key) or 0)

    return {
        f"{name}Total{day}": count(f"msg{verb}Total{newer}") - count(f"msg{verb}Total{older}")
        for name, verb in (("in", "Put"), ("out", "Get"))
        for day, newer, older in (
            ("Yesterday", "TodayMorning", "YesterdayMorning"),
            ("Today", "TodayNow", "TodayMorning"),
        )
    }


def _first(averages: str) -> float:
    sections = averages.split()
    return round(float(sections[0]), 2) if sections else 0.0


async def broker_status(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    return await _each(admin, arguments, admin.broker.runtime_info)


async def broker_consume_stats(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    result = await admin.broker.consume_stats(
        arguments.text("brokerAddr"),
        ordered=bool(arguments.boolean("order")),
        timeout_ms=arguments.integer("timeoutMillis") or 50_000,
    )
    least = arguments.integer("level") or 0
    rows = [
        {
            "topic": queue.topic,
            "group": group,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "brokerOffset": progress.broker_offset,
            "consumerOffset": progress.consumer_offset,
            "diff": progress.behind,
            "lastTime": show_time(progress.last_ms),
        }
        for group, sections in sorted(result.items())
        for section in sections
        for queue, progress in sorted(section.queues.items())
        if progress.behind >= least
    ]
    total = sum(row["diff"] for row in rows if isinstance(row["diff"], int))
    return [Table(rows, "queues"), Fields({"diffTotal": total}, "total")]


async def get_config(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    return await _each(admin, arguments, admin.broker.config)


async def _each(
    admin: Admin, arguments: Arguments, read: Callable[[str], Awaitable[dict[str, str]]]
) -> Sequence[Section]:
    """Return the result of `read` for every target broker."""
    result = [(address, await read(address)) for address in await named(admin, arguments)]
    return [Fields(dict(sorted(f.items())), "" if len(result) == 1 else a) for a, f in result]


async def update_config(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    key, value = arguments.text("key"), arguments.text("value")
    addresses = await writable(admin, arguments)
    everybody = addresses
    if not arguments.text("brokerAddr"):
        result = replicas(await admin.cluster.info(), arguments.text("clusterName"))
        everybody = [replica.address for replica in result]
    if arguments.boolean("updateAllBroker"):
        addresses = everybody
    await at_each(addresses, lambda address: admin.broker.update_config(address, key, value))
    left = [address for address in everybody if address not in addresses]
    message = f"; not at {', '.join(left)}, which lead no group: -a true" if left else ""
    values = {"key": key, "brokers": addresses, "notAt": left}
    return [Done(f"{key}={value} at {', '.join(addresses)}{message}", values)]


async def clean_queues(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    clean = admin.broker.clean_expired_queues
    return await _upkeep(admin, arguments, clean, "expired ConsumeQueues cleaned")


async def delete_log(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    addresses = await everywhere(admin, arguments.text("brokerAddr"), arguments.text("cluster"))
    trust = arguments.on("trustClock")
    result = await at_each(addresses, lambda at: admin.broker.delete_expired_log(at, trust))
    return [_deleted(address, log) for address, log in result.items()]


def _deleted(address: str, log: DeletedLog | None) -> Done:
    if log is None:
        return Done(f"expired CommitLog files deleted at {address}", {"broker": address})
    sentence = f"{log.deleted} bytes of expired CommitLog files deleted at {address}"
    if log.kept:
        sentence += f"; {log.kept} more have expired there and are kept for {log.kept_for}"
    return Done(sentence, {"broker": address, **asdict(log)})


async def _upkeep(
    admin: Admin, arguments: Arguments, do: Callable[[str], Awaitable[None]], done: str
) -> Sequence[Section]:
    addresses = await everywhere(admin, arguments.text("brokerAddr"), arguments.text("cluster"))
    await at_each(addresses, do)
    return [Done(f"{done} at {', '.join(addresses)}")]


async def raft_status(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    rows = []
    everybody = replicas(await admin.cluster.info(), arguments.text("clusterName"))
    name = arguments.text("brokerName")
    requested = [replica for replica in everybody if name in ("", replica.broker_name)]
    for replica, info in zip(requested, await runtime_infos(admin, requested), strict=True):
        row = {"broker": replica.broker_name, "address": replica.address}
        if "error" not in info and "raftRole" not in info:
            info = {"error": "no Raft replica"}
        figures: dict[str, Any] = {
            "node": info.get("raftSelfId", ""),
            "role": info.get("raftRole") or info.get("error", ""),
            "term": info.get("raftTerm", ""),
            "leader": info.get("raftLeader", ""),
            "ready": info.get("raftLeaderReady", ""),
            "first": info.get("raftFirstIndex", ""),
            "commit": info.get("raftCommitIndex", ""),
            "applied": info.get("raftAppliedIndex", ""),
            "last": info.get("raftLastIndex", ""),
            "durable": info.get("raftDurableIndex", ""),
            "recovered": info.get("raftRecovered", ""),
            "disk": info.get("raftDiskState", ""),
            "differs": info.get("raftDiffers", ""),
            "foreign": info.get("raftForeign", ""),
        }
        rows.append(row | figures)
    if not rows:
        raise CommandError("the name server knows no such broker")
    return [Table(rows)]


async def transfer_leader(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    name = arguments.text("brokerName")
    leader = await leader_of(admin, name)
    target = await admin.broker.transfer_leadership(
        leader, arguments.text("target"), force=arguments.on("force")
    )
    address = await leads(admin, name, target, TRANSFER_WAIT_S)
    if not address:
        raise CommandError(
            f"begun, but {target} did not lead {name} within {TRANSFER_WAIT_S:.0f} s"
        )
    values = {"broker": name, "leader": target, "address": address}
    return [Done(f"{target} ({address}) leads {name}", values)]


async def leads(admin: Admin, name: str, node_id: str, limit_s: float) -> str:
    """Wait until a node leads its broker group and serves, also in the name servers' view and so in
    the clients'. Return its address, or "" after the limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for replica in replicas(await admin.cluster.info()):
            if replica.broker_name != name or replica.broker_id != LEADER_ID:
                continue
            (info,) = await runtime_infos(admin, [replica], one_answers=False)
            ready = info.get("raftLeaderReady") == "true" and info.get("raftRole") == "leader"
            if ready and info.get("raftSelfId") == node_id:
                return replica.address
        await asyncio.sleep(TRANSFER_POLL_S)
    return ""


async def members(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    name, op = arguments.text("brokerName"), arguments.text("op")
    if op != "list" and op not in MEMBER_OPS:
        raise CommandError(f"-o {op}: expected list, {', '.join(MEMBER_OPS)}", usage=True)
    deadline = time.monotonic() + (arguments.integer("wait") or 0)
    while True:
        leader = await leader_of(admin, name)
        if op == "list":
            return [Table([_member(row) for row in await admin.broker.members(leader)])]
        node_id, where = arguments.text("memberId"), arguments.text("memberAddress")
        change, force = admin.broker.change_members, arguments.on("force")
        try:
            rows = await change(leader, MEMBER_OPS[op], node_id, where, force)
        except BrokerRefused as error:  # the learner may still be catching up
            if error.outcome_unknown or time.monotonic() >= deadline:
                raise
            await asyncio.sleep(MEMBERS_POLL_S)
            continue
        sentence = f"{op} {node_id or 'nobody'}: done; {name} has the members {_roles(rows)}"
        return [Done(sentence, {"broker": name, "members": [_member(row) for row in rows]})]


def _member(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": row["node_id"],
        "address": row["address"],
        "role": row["role"],
        "brokerId": row["broker_id"],
        "match": row["match"],
        "lag": row["lag"],
        "recovered": row["recovered"],
        "preferred": row.get("preferred", False),
    }


def _roles(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(
        f"{row['node_id']} ({row['role']}{', preferred' if row.get('preferred') else ''})"
        for row in rows
    )
