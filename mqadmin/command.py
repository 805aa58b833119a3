"""What a sub-command is: a name, flags as Apache's mqadmin has them, and a coroutine that answers
with data. Pure; parsing is mqadmin.cli's, showing mqadmin.output's.

An answer is a list of parts, each a table (rows of the same keys), a set of fields, or a sentence.
`--json` prints the same data, so scripts and people see the same.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from raftmq.client.admin import Admin


class Kind(Enum):
    """What stands behind a flag."""

    SWITCH = "switch"  # nothing
    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "true|false"
    TIME = "time"  # parse_time


@dataclass(frozen=True, slots=True)
class Flag:
    """`-s --long`; `short` is empty where there is none."""

    short: str
    long: str
    doc: str
    kind: Kind = Kind.TEXT
    required: bool = False
    default: Any = None

    @property
    def name(self) -> str:
        """How commands ask for its value."""
        return self.long


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one shape; `title` names it when an answer has several parts."""

    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    columns: Sequence[str] = ()  # shown when there is no row


@dataclass(frozen=True, slots=True)
class Fields:
    """One thing's properties."""

    values: Mapping[str, Any]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A deed that was done, in a sentence, and what scripts want to know of it."""

    sentence: str
    values: Mapping[str, Any] = field(default_factory=dict)


Part = Table | Fields | Done


class Arguments:
    """Values of flags by long name; None where a flag was not given and has no default."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return "" if value is None else str(value).strip()

    def integer(self, name: str) -> int | None:
        value = self._values.get(name)
        return None if value is None else int(value)

    def boolean(self, name: str) -> bool | None:
        value = self._values.get(name)
        return None if value is None else bool(value)

    def given(self, name: str) -> bool:
        return self._values.get(name) is not None

    def on(self, name: str) -> bool:
        return bool(self._values.get(name))


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command. `run` raises ClientError and CommandError."""

    name: str
    doc: str
    flags: tuple[Flag, ...]
    run: Callable[[Admin, Arguments], Awaitable[Sequence[Part]]]


class CommandError(Exception):
    """A command that cannot be done, in words. `usage`: it was asked for wrongly."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


TIME_FORMATS = "now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS (local time)"


def parse_time(text: str, now_ms: int) -> int:
    """A time as Apache's mqadmin takes it → epoch ms; -1 for "now" is the caller's to choose.
    Raises ValueError."""
    if text == "now":
        return now_ms
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d)(?::(\d{1,3}))?", text)
    if match is None:
        raise ValueError(f"{text!r} is no time; expected {TIME_FORMATS}")
    moment = datetime.strptime(match[1], "%Y-%m-%d#%H:%M:%S")
    return int(moment.timestamp()) * 1000 + int(match[2] or 0)


def show_time(ms: int) -> str:
    """Local time with milliseconds; empty for none."""
    if ms <= 0:
        return ""
    moment = datetime.fromtimestamp(ms // 1000)
    return f"{moment:%Y-%m-%d %H:%M:%S},{ms % 1000:03d}"
