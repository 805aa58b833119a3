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

from .command import Done, Fields, Section, Table
from .message_format import escaped

PIPE_COLUMNS = 240  # for files and pipes; nothing is truncated there


def write(sections: Sequence[Section], form: str, *, repeated: bool = False) -> None:
    """Print an answer to standard output as `form`, which is table, json or yaml. A repeated answer
    (`repeated`) is a line of JSON or a YAML document."""
    if form == "table":
        show(sections, make_console())
        if repeated:
            print(flush=True)
        return
    if form == "json":
        text = as_json(sections, indent=not repeated) + b"\n"
    else:
        text = (b"---\n" if repeated else b"") + as_yaml(sections)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def as_json(sections: Sequence[Section], *, indent: bool = True) -> bytes:
    """Encode an answer as its data, or as an object by title if it has several items."""
    indented = orjson.OPT_INDENT_2 if indent else 0
    return orjson.dumps(_value(sections), option=indented | orjson.OPT_NON_STR_KEYS)


def as_yaml(sections: Sequence[Section]) -> bytes:
    """Encode the same data as YAML."""
    import yaml

    value = orjson.loads(as_json(sections))  # as plain data, without tuples and with text keys
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text.encode()


def _value(sections: Sequence[Section]) -> Any:
    values = [(_key(section, n), _data(section)) for n, section in enumerate(sections)]
    return values[0][1] if len(values) == 1 else dict(values)


def show(sections: Sequence[Section], console: Console) -> None:
    """Print an answer for people."""
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
    """Return a table for rich."""
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


def _key(section: Section, number: int) -> str:
    title = section.title if isinstance(section, Table | Fields) else ""
    return title or f"part{number + 1}"


def _data(section: Section) -> Any:
    if isinstance(section, Table):
        return [dict(row) for row in section.rows]
    if isinstance(section, Fields):
        return dict(section.values)
    return {"done": section.sentence, **section.values}
