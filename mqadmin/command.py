"""Declarations of sub-commands: a name, the flags of Apache's mqadmin, and a coroutine that returns
data. Pure; mqadmin.cli does the parsing, mqadmin.output the printing.

An answer is a list of parts, each a table (rows with the same keys), a set of fields, or a
sentence. JSON and YAML have the same data, so scripts and people see the same. A command that goes
on until it is stopped, or whose answer has no bound, prints by itself (`Manner.STREAMS`).
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
    """The kind of a flag's value."""

    SWITCH = "switch"  # nothing
    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "true|false"
    TIME = "time"  # parse_time
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag `-s --long`; `short` is empty if there is none. Commands get its value by `long`: a
    tuple if it is `repeated`. `choices`: the only values it may have."""

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
    """A value without a flag, by its `name`; `repeated`: any number of them."""

    name: str
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the same keys; `title` is shown if an answer has several parts. `complete` False: a
    row says of whom there is no answer, and the exit status is 1. `unknown`: a row says where it is
    unknown whether a change was made, and the exit status is 4."""

    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    columns: Sequence[str] = ()  # shown if there is no row
    complete: bool = True
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Fields:
    """The properties of one thing."""

    values: Mapping[str, Any]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A completed action: a sentence for people, and values for scripts."""

    sentence: str
    values: Mapping[str, Any] = field(default_factory=dict)


Part = Table | Fields | Done


class Arguments:
    """The flags' values by long name; None if a flag was not given and has no default."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return "" if value is None else str(value).strip()

    def exact(self, name: str) -> str:
        """Return a text with the blanks around it."""
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
    """What a command does: it reads, and may be repeated (`--watch`); it may change something; or
    it prints by itself as it goes: what it reads, or what became of what it sends."""

    READS = "reads"
    CHANGES = "changes"
    STREAMS = "streams"
    SENDS = "sends"

    @property
    def prints(self) -> bool:
        """Whether the command prints by itself."""
        return self in (Manner.STREAMS, Manner.SENDS)

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing: then that an answer did not come leaves nothing unknown."""
        return self in (Manner.READS, Manner.STREAMS)


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command. `runs` names what carries it out, `module:function` of this room, which
    raises ClientError and CommandError. It gets the admin client and the arguments, and returns the
    answer; one that STREAMS gets a Terminal, too, and returns the exit status."""

    name: str
    doc: str
    flags: tuple[Flag, ...]
    runs: str
    manner: Manner = Manner.READS
    positionals: tuple[Positional, ...] = ()

    def load(self) -> Callable[..., Awaitable[Any]]:
        """Import what carries it out."""
        module, _, function = self.runs.partition(":")
        found = getattr(importlib.import_module(f"raftmq.mqadmin.{module}"), function)
        assert callable(found)
        return found  # type: ignore[no-any-return]


class CommandError(Exception):
    """A command cannot be carried out. `usage`: it was called wrongly."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


TIME_FORMATS = "now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS (local time)"


def parse_time(text: str, now_ms: int) -> int:
    """Parse a time in a form that Apache's mqadmin accepts into epoch ms; numbers, also -1, are
    returned as they are. Raises ValueError."""
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
    """Return a local time with milliseconds; "" for 0 or less. A producer may set any number: one
    that is in no year to 9999 is returned as it is."""
    if ms <= 0:
        return ""
    try:
        moment = datetime.fromtimestamp(ms // 1000)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return f"{moment:%Y-%m-%d %H:%M:%S},{ms % 1000:03d}"
