"""Declarations of sub-commands.

A declaration has a name, the flags of Apache's mqadmin, and a coroutine that returns data;
mqadmin.cli parses and mqadmin.output prints. An answer is a list of tables (rows with the same
keys), sets of fields, and sentences. JSON and YAML have the same data. Commands with an unbounded
answer print by themselves (`Manner.STREAMS`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any


class Kind(Enum):
    SWITCH = "switch"  # no value
    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "true|false"
    TIME = "time"  # parse_time
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag `-s --long`; `short` may be empty. Commands read its value as `long`, a tuple if
    `repeated`. `choices` limits the values."""

    short: str
    long: str
    doc: str
    kind: Kind = Kind.TEXT
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Positional:
    """A value without a flag. `repeated` accepts any number of values."""

    name: str
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the same keys. `title` is shown if an answer has several items. A row of an
    incomplete table (`complete` False) names a broker without an answer, and the exit status is 1.
    With `unknown` a row names a change whose outcome is unknown, and the exit status is 4. With
    `later` a row names work that is left for a later run, and the exit status is 5."""

    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    columns: Sequence[str] = ()  # shown for an empty table
    complete: bool = True
    unknown: bool = False
    later: bool = False


@dataclass(frozen=True, slots=True)
class Fields:
    """The properties of an object."""

    values: Mapping[str, Any]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A completed action, with a sentence for people and values for scripts."""

    sentence: str
    values: Mapping[str, Any] = field(default_factory=dict)


Section = Table | Fields | Done


class Arguments:
    """The flags' values by long name; None for a missing flag without a default."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return "" if value is None else str(value).strip()

    def exact(self, name: str) -> str:
        """Return a text without stripping its blanks."""
        value = self._values.get(name)
        return "" if value is None else str(value)

    def integer(self, name: str) -> int | None:
        value = self._values.get(name)
        return None if value is None else int(value)

    def number(self, name: str) -> float | None:
        value = self._values.get(name)
        return None if value is None else float(value)

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(str(value) for value in self._values.get(name) or ())

    def boolean(self, name: str) -> bool | None:
        value = self._values.get(name)
        return None if value is None else bool(value)

    def given(self, name: str) -> bool:
        return self._values.get(name) is not None

    def on(self, name: str) -> bool:
        return bool(self._values.get(name))


class Manner(Enum):
    """The manner of a command. It reads, and may be repeated (`--watch`); it may change the
    cluster; or it prints by itself while it reads or sends."""

    READS = "reads"
    CHANGES = "changes"
    STREAMS = "streams"
    SENDS = "sends"

    @property
    def prints(self) -> bool:
        """Return whether the command prints by itself."""
        return self in (Manner.STREAMS, Manner.SENDS)

    @property
    def only_reads(self) -> bool:
        """Return whether the command changes nothing, so that silence leaves nothing unknown."""
        return self in (Manner.READS, Manner.STREAMS)


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command. `runs` names its function, `module:function` of this package, which raises
    ClientError and CommandError. The function gets the admin client and the arguments and returns
    the answer. A command that STREAMS also gets a Terminal, and returns the exit status."""

    name: str
    doc: str
    flags: tuple[Flag, ...]
    runs: str
    manner: Manner = Manner.READS
    positionals: tuple[Positional, ...] = ()

    def load(self) -> Callable[..., Awaitable[Any]]:
        module, _, function = self.runs.partition(":")
        result = getattr(importlib.import_module(f"raftmq.mqadmin.{module}"), function)
        assert callable(result)
        return result  # type: ignore[no-any-return]


class CommandError(Exception):
    """A command cannot be carried out. `usage` marks a wrong call."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


TIME_FORMATS = "now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS (local time)"


def parse_time(text: str, now_ms: int) -> int:
    """Parse a time in a form of Apache's mqadmin into epoch ms; numbers, also -1, are returned
    unchanged. Raises ValueError."""
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
    """Return a local time with milliseconds, or "" for 0 or less. Producers may set any number; a
    number after the year 9999 is returned unchanged."""
    if ms <= 0:
        return ""
    try:
        moment = datetime.fromtimestamp(ms // 1000)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return f"{moment:%Y-%m-%d %H:%M:%S},{ms % 1000:03d}"
