"""`mqadmin top`, which shows rates, lag and leaders of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from raftmq.client.admin import Admin
from raftmq.client.errors import ClientError
from raftmq.ops.console import PipedConsole

from .command import Arguments, CommandError, Fields, Section, Table
from .output import as_json
from .tables import make_console, rich_table, show
from .terminal import Terminal
from .top_data import Sample, Scope, broker_rows, group_rows, take_sample, topic_rows

INTERVAL_S_MIN = 0.2


async def top(admin: Admin, arguments: Arguments, terminal: Terminal) -> int:
    """Return the exit status, which is 1 for a single incomplete sample."""
    interval_s = arguments.number("interval") or 0.0
    if interval_s < INTERVAL_S_MIN:
        raise CommandError(f"--interval is {INTERVAL_S_MIN} or more", usage=True)
    scope = Scope(arguments.text("topic"), arguments.text("group"), arguments.on("all"))
    rows_max = arguments.integer("rows") or 0
    before = await take_sample(admin, scope)
    try:
        if arguments.on("once"):
            await asyncio.sleep(interval_s)
            now = await _print(admin, scope, before, rows_max, arguments, terminal)
            return 0 if now.complete else 1
        elif terminal.is_terminal and not arguments.on("json"):
            await _live(admin, scope, before, rows_max, interval_s)
        else:
            while True:
                await asyncio.sleep(interval_s)
                try:
                    before = await _print(admin, scope, before, rows_max, arguments, terminal)
                except ClientError as error:  # the next sample may succeed
                    terminal.say(f"mqadmin: {error}")
    except asyncio.CancelledError:  # the regular end
        if arguments.on("once"):
            raise
    return 0


async def _print(
    admin: Admin,
    scope: Scope,
    before: Sample,
    rows_max: int,
    arguments: Arguments,
    terminal: Terminal,
) -> Sample:
    now = await take_sample(admin, scope)
    sections = sections_of(now, before, 0 if arguments.on("json") else rows_max)
    if arguments.on("json"):
        about = Fields({"atMs": now.at_ms, "seconds": round(now.at_s - before.at_s, 3)}, "look")
        terminal.write(as_json([about, *sections], indent=arguments.on("once")) + b"\n")
        terminal.flush()
    else:
        console = make_console()
        console.print(Text(_time(now)))
        show(sections, console)
        console.print()
    return now


async def _live(
    admin: Admin, scope: Scope, before: Sample, rows_max: int, interval_s: float
) -> None:
    sections = sections_of(before, None, rows_max)
    with Live(
        _screen(before, sections, ""), console=PipedConsole(), screen=True, auto_refresh=False
    ) as on:
        while True:
            await asyncio.sleep(interval_s)
            wrong = ""
            try:
                now = await take_sample(admin, scope)
                sections, before = sections_of(now, before, rows_max), now
            except ClientError as error:
                wrong = error.message
            on.update(_screen(before, sections, wrong), refresh=True)


def sections_of(now: Sample, before: Sample | None, rows_max: int) -> list[Section]:
    """Return the tables, with at most as many rows each (0 for all)."""
    result: list[Section] = []
    for title, rows in (
        ("brokers", broker_rows(now, before)),
        ("topics", topic_rows(now, before)),
        ("groups", group_rows(now, before)),
    ):
        shown = rows[:rows_max] if rows_max > 0 else rows
        text = title if len(shown) == len(rows) else f"{title}, {len(shown)} of {len(rows)}"
        result.append(Table(shown, text))
    return result


def _screen(now: Sample, sections: Sequence[Section], wrong: str) -> Group:
    lines: list[RenderableType] = [Text(f"{_time(now)}   Ctrl-C ends")]
    if wrong:
        lines.append(Text(f"cannot look: {wrong}", style="red"))
    for section in sections:
        if isinstance(section, Table):
            lines += [Text(""), Text(section.title, style="bold")]
            lines.append(rich_table(section) if section.rows else Text("(none)"))
    return Group(*lines)


def _time(now: Sample) -> str:
    return f"{datetime.fromtimestamp(now.at_ms / 1000):%Y-%m-%d %H:%M:%S}"
