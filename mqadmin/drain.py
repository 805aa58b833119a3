"""Commands that empty and remove a broker group: drainGroup, drainStatus, removeGroup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raftmq.client.admin import Admin

from .command import Arguments, Done, Fields, Section, Table, show_time
from .targets import leader_of

COUNTS = ("delayed", "timers", "transactions", "popped", "writers", "idempotent", "deadLetters")


async def drain_group(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    name, op = arguments.text("brokerName"), "cancel" if arguments.on("cancel") else "start"
    status = await admin.broker.drain(await leader_of(admin, name), op)
    sentence = f"{name} takes sends again" if op == "cancel" else f"{name} is draining"
    return [Done(sentence, status)]


async def drain_status(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    status = await admin.broker.drain(
        await leader_of(admin, arguments.text("brokerName")), "status"
    )
    return [Fields(_shown(status)), Table(status["unconsumed"])]


def _shown(status: dict[str, Any]) -> dict[str, Any]:
    since_ms, latest_ms = status["drainingMs"], status["latestDueMs"]
    return {
        "broker": status["brokerName"],
        "draining since": show_time(since_ms) if since_ms else "no",
        "takes sends": status["takesSends"],
        "empty": status["isEmpty"],
        **{kind: status[kind] for kind in COUNTS},
        "latest due": show_time(latest_ms) if latest_ms else "",
    }


async def remove_group(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    name = arguments.text("brokerName")
    leader = await leader_of(admin, name)
    status = await admin.broker.drain(leader, "remove", lose=arguments.on("lose"))
    return [Done(f"{name} is removed; its brokers can be stopped", status)]
