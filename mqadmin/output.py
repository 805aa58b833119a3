"""Prints answers as tables (mqadmin.tables), or as a JSON or YAML document."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import orjson

from .command import Fields, Section, Table


def write(sections: Sequence[Section], form: str, *, repeated: bool = False) -> None:
    """Print an answer to standard output as `form`, which is table, json or yaml. A repeated answer
    (`repeated`) is a line of JSON or a YAML document."""
    if form == "table":
        from .tables import make_console, show  # rich, which scripts do without

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
    import yaml

    value = orjson.loads(as_json(sections))  # as plain data, without tuples and with text keys
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text.encode()


def _value(sections: Sequence[Section]) -> Any:
    values = [(_key(section, n), _data(section)) for n, section in enumerate(sections)]
    return values[0][1] if len(values) == 1 else dict(values)


def _key(section: Section, number: int) -> str:
    title = section.title if isinstance(section, Table | Fields) else ""
    return title or f"part{number + 1}"


def _data(section: Section) -> Any:
    if isinstance(section, Table):
        return [dict(row) for row in section.rows]
    if isinstance(section, Fields):
        return dict(section.values)
    return {"done": section.sentence, **section.values}
