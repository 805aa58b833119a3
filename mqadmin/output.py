"""Prints answers as tables, or as a JSON or YAML document.

Messages and clients' names may hold control characters that a terminal obeys. Tables and fields
escape them, except line feeds and tabs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from raftmq.ops.console import PipedConsole

from .command import Done, Fields, Part, Table
from .message_format import escaped

PIPE_COLUMNS = 240  # for files and pipes; nothing is truncated there


def write(parts: Sequence[Part], form: str, *, repeated: bool = False) -> None:
    """Print an answer to standard output as `form`, which is table, json or yaml. A repeated answer
    (`repeated`) is a line of JSON or a YAML document."""
    if form == "table":
        show(parts, make_console())
        if repeated:
            print(flush=True)
        return
    if form == "json":
        text = as_json(parts, indent=not repeated) + b"\n"
    else:
        text = (b"---\n" if repeated else b"") + as_yaml(parts)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def as_json(parts: Sequence[Part], *, indent: bool = True) -> bytes:
    """Encode an answer as its data, or as an object by title if it has several items."""
    indented = orjson.OPT_INDENT_2 if indent else 0
    return orjson.dumps(_value(parts), option=indented | orjson.OPT_NON_STR_KEYS)


def as_yaml(parts: Sequence[Part]) -> bytes:
    """Encode the same data as YAML."""
    import yaml

    value = orjson.loads(as_json(parts))  # as plain data, without tuples and with text keys
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text.encode()


def _value(parts: Sequence[Part]) -> Any:
    values = [(_key(part, n), _data(part)) for n, part in enumerate(parts)]
    return values[0][1] if len(values) == 1 else dict(values)


def show(parts: Sequence[Part], console: Console) -> None:
    """Print an answer for people."""
    for number, part in enumerate(parts):
        if number:
            console.print()
        if isinstance(part, Done):
            console.print(Text(_shown(part.sentence)), soft_wrap=True)
        else:
            _show_part(part, console)


def make_console() -> Console:
    console = PipedConsole(highlight=False)
    if not console.is_terminal:
        console = PipedConsole(highlight=False, width=PIPE_COLUMNS)
    return console


def _show_part(part: Table | Fields, console: Console) -> None:
    if part.title:
        console.print(Text(_shown(part.title), style="bold"))
    if isinstance(part, Fields):
        width = max(map(len, part.values), default=0)
        for key, value in part.values.items():
            text = f"{_shown(key):<{width}}  {_shown(_cell(value))}"
            console.print(Text(text), soft_wrap=True)
        return
    if part.rows or part.columns:
        console.print(rich_table(part))
    if not part.rows:
        console.print("(none)")


def rich_table(part: Table) -> RichTable:
    """Return a table for rich."""
    columns = list(part.rows[0]) if part.rows else list(part.columns)
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float | None) for row in part.rows)
        right = numbers and any(row.get(column) is not None for row in part.rows)
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in part.rows:
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
