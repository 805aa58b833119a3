"""Escapes and truncates the text of log records, which peers may have chosen.

A record is a line, whatever its arguments contain. Control characters, line separators and
characters that hide or reorder text are escaped, so a name cannot forge a line of the log. The text
of an exception is a line of its traceback for the same reason; the remaining lines are the
interpreter's own. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from traceback import TracebackException, extract_tb

ARGUMENT_CHARS_MAX = 1_000  # also per line of a traceback
MESSAGE_CHARS_MAX = 8_000
TRACE_HEAD_LINES, TRACE_TAIL_LINES = 60, 20  # lines in between are left out
SHORT_FRAMES_MAX, CAUSES_MAX = 8, 3  # in a traceback without line breaks
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def one_line(text: str, chars_max: int = ARGUMENT_CHARS_MAX) -> str:
    """Return a text without line breaks; a truncated text ends with its length."""
    shown = _UNSAFE.sub(_escaped, text[:chars_max])
    if len(text) <= chars_max >= len(shown):
        return shown
    return f"{shown[:chars_max]}...({len(text)} characters)"


def message_of(template: object, args: object) -> str:
    """Return a record's message, with its arguments, as a line."""
    text = str(template)
    if isinstance(args, tuple) and args:
        text %= tuple(_shown(value) for value in args)
    elif isinstance(args, Mapping) and args:
        text %= {key: _shown(value) for key, value in args.items()}
    return one_line(text, MESSAGE_CHARS_MAX)


def field_of(value: object) -> object:
    if isinstance(value, bool | float | None):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    return one_line(str(value))


def trace_of(error: BaseException) -> str:
    """Return an error's traceback, with those of its causes."""
    lines: list[str] = []
    for piece in TracebackException.from_exception(error).format():
        # A frame has several indented lines; anything else has one.
        lines += piece.splitlines() if piece.startswith(" ") else [piece.strip("\n")]
    left_out = len(lines) - TRACE_HEAD_LINES - TRACE_TAIL_LINES
    if left_out > 0:
        lines[TRACE_HEAD_LINES:-TRACE_TAIL_LINES] = [f"  ... {left_out} lines"]
    return "\n".join(one_line(line) for line in lines)


def short_trace_of(error: BaseException) -> str:
    """Return an error, its causes and their innermost frames as text without line breaks."""
    texts: list[str] = []
    while len(texts) < CAUSES_MAX:
        frames = [
            f"{'/'.join(PurePath(frame.filename).parts[-2:])}:{frame.lineno}"
            for frame in extract_tb(error.__traceback__)[-SHORT_FRAMES_MAX:]
        ]
        texts.append(one_line(f"{type(error).__name__}: {error}") + f" at {' > '.join(frames)}")
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None:
            break
        error = cause
    return " caused by ".join(texts)


@dataclass(frozen=True, slots=True)
class _Shown:
    """An argument without line breaks, by `%s` and by `%r`."""

    value: object

    def __str__(self) -> str:
        return one_line(str(self.value))

    def __repr__(self) -> str:
        return one_line(repr(self.value))


def _shown(value: object) -> object:
    return value if isinstance(value, int | float) else _Shown(value)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
