"""Prints answers: as tables and fields, with rich, or as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from raftmq.mqadmin.command import Done, Fields, Part, Table

PIPE_COLUMNS = 240  # for a file or pipe, which has no width; nothing is cut there


def as_json(parts: Sequence[Part]) -> bytes:
    """Encode an answer: a single part as its data, several as an object by title."""
    values = [(_key(part, n), _data(part)) for n, part in enumerate(parts)]
    value = values[0][1] if len(values) == 1 else dict(values)
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)


def show(parts: Sequence[Part], console: Console) -> None:
    """Print an answer for people."""
    for number, part in enumerate(parts):
        if number:
            console.print()
        if isinstance(part, Done):
            console.print(Text(part.sentence), soft_wrap=True)
        else:
            _show_part(part, console)


def make_console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_COLUMNS)
    return console


def _show_part(part: Table | Fields, console: Console) -> None:
    if part.title:
        console.print(Text(part.title, style="bold"))
    if isinstance(part, Fields):
        width = max(map(len, part.values), default=0)
        for key, value in part.values.items():
            console.print(Text(f"{key:<{width}}  {_cell(value)}"), soft_wrap=True)
        return
    columns = list(part.rows[0]) if part.rows else list(part.columns)
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float) for row in part.rows)
        right = numbers and bool(part.rows)
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in part.rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    if columns:
        console.print(table)
    if not part.rows:
        console.print("(none)")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_cell(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_cell(part) for part in value)
    return str(value)


def _key(part: Part, number: int) -> str:
    title = part.title if isinstance(part, Table | Fields) else ""
    return title or f"part{number + 1}"


def _data(part: Part) -> Any:
    if isinstance(part, Table):
        return [dict(row) for row in part.rows]
    if isinstance(part, Fields):
        return dict(part.values)
    return {"done": part.sentence, **part.values}
