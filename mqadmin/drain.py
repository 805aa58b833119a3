"""Commands that empty and remove a broker group: drainGroup, drainStatus, removeGroup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raftmq.client.admin import Admin, drain_options, until_empty

from .command import Arguments, CommandError, Done, Fields, Section, Table, show_time
from .targets import leader_of
from .terminal import Terminal

COUNTS = (
    "delayed", "timers", "transactions", "popped", "writers", "idempotent", "deadLetters",
)  # fmt: skip


async def drain_group(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    name, op = arguments.text("brokerName"), "cancel" if arguments.on("cancel") else "start"
    options = drain_options(
        move_timers=arguments.on("moveTimers"),
        move_dead_letters=arguments.on("moveDeadLetters"),
        to=arguments.text("to"),
        given_up=arguments.texts("givenUp"),
    )
    if options and op == "cancel":
        raise CommandError("--cancel has no other options", usage=True)
    status = await admin.broker.drain(await leader_of(admin, name), op, options)
    wait_s = arguments.number("wait")
    if wait_s is None or op == "cancel":
        sentence = f"{name} takes sends again" if op == "cancel" else f"{name} is draining"
        return [Done(sentence, status)]

    async def leader() -> str | None:
        return (await admin.cluster.leaders()).get(name)

    terminal = Terminal()
    status = await until_empty(admin, leader, wait_s, lambda text: terminal.say(f"{name}: {text}"))
    if not status["isEmpty"]:
        raise CommandError(f"{name} is not empty after {wait_s:g} s: {status['remainder']}")
    return [Done(f"{name} is empty", status)]


async def drain_status(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    status = await admin.broker.drain(
        await leader_of(admin, arguments.text("brokerName")), "status"
    )
    rows = [
        {
            **{key: row[key] for key in ("topic", "group", "messages", "members")},
            "unread since": show_time(row["sinceMs"]) if row["sinceMs"] else "",
            "given up": row["givenUp"],
        }
        for row in status["unconsumed"]
    ]
    return [Fields(_shown(status)), Table(rows)]


def _shown(status: dict[str, Any]) -> dict[str, Any]:
    since_ms, latest_ms = status["drainingMs"], status["latestDueMs"]
    return {
        "broker": status["brokerName"],
        "draining since": show_time(since_ms) if since_ms else "no",
        "takes sends": status["takesSends"],
        "empty": status["isEmpty"],
        **{kind: status[kind] for kind in COUNTS},
        "latest due": show_time(latest_ms) if latest_ms else "",
        "empty at about": show_time(status["emptyAtMs"] or 0),
        **(_shown_move(status) if any(status["move"].values()) else {}),
    }


def _shown_move(status: dict[str, Any]) -> dict[str, Any]:
    move = status["move"]
    return {
        "moves to": move["to"],
        "moved timers": move["movedTimers"],
        "moved dead letters": move["movedDeadLetters"],
        "being moved": status["inMove"],
        "problem": move["problem"],
    }


async def remove_group(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    name = arguments.text("brokerName")
    leader = await leader_of(admin, name)
    status = await admin.broker.drain(
        leader, "remove", {"lose": "true"} if arguments.on("lose") else None
    )
    return [Done(f"{name} is removed; its brokers can be stopped", status)]
