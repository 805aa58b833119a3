"""Prints answers as tables for people.

Messages and clients' names may hold control characters that a terminal obeys. Tables and fields
escape them, except line feeds and tabs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from raftmq.ops.console import PipedConsole

from .command import Done, Fields, Section, Table
from .message_format import escaped

PIPE_COLUMNS = 240  # for files and pipes; nothing is truncated there


def show(sections: Sequence[Section], console: Console) -> None:
    for number, section in enumerate(sections):
        if number:
            console.print()
        if isinstance(section, Done):
            console.print(Text(_shown(section.sentence)), soft_wrap=True)
        else:
            _show_section(section, console)


def make_console() -> Console:
    console = PipedConsole(highlight=False)
    if not console.is_terminal:
        console = PipedConsole(highlight=False, width=PIPE_COLUMNS)
    return console


def _show_section(section: Table | Fields, console: Console) -> None:
    if section.title:
        console.print(Text(_shown(section.title), style="bold"))
    if isinstance(section, Fields):
        width = max(map(len, section.values), default=0)
        for key, value in section.values.items():
            text = f"{_shown(key):<{width}}  {_shown(_cell(value))}"
            console.print(Text(text), soft_wrap=True)
        return
    if section.rows or section.columns:
        console.print(rich_table(section))
    if not section.rows:
        console.print("(none)")


def rich_table(section: Table) -> RichTable:
    columns = list(section.rows[0]) if section.rows else list(section.columns)
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float | None) for row in section.rows)
        right = numbers and any(row.get(column) is not None for row in section.rows)
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in section.rows:
        table.add_row(*(Text(_shown(_cell(row.get(column)))) for column in columns))
    return table


def _shown(text: str) -> str:
    return escaped(text, "\n\t")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_cell(section)}" for key, section in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_cell(section) for section in value)
    return str(value)
