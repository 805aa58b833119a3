"""The text of log records: on one line, and not longer than allowed."""

import logging

import pytest

from raftmq.ops import log_text as logtext
from raftmq.ops.log_text import (
    ARGUMENT_CHARS_MAX,
    MESSAGE_CHARS_MAX,
    field_of,
    message_of,
    one_line,
    trace_of,
)


def message(template: str, *args: object) -> str:
    record = logging.LogRecord("l", logging.INFO, "f", 1, template, args, None)
    return message_of(record.msg, record.args)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 名", "plain ü 名"),
        ("a\r\nb\tc\x00\x7f\x85", "a\\r\\nb\\tc\\x00\\x7f\\x85"),
        ("a\u2028b\u2029c\u202ed\u200be\ufefff", "a\\u2028b\\u2029c\\u202ed\\u200be\\ufefff"),
        ("half \ud800 a pair", "half \\ud800 a pair"),
        ("x" * ARGUMENT_CHARS_MAX, "x" * ARGUMENT_CHARS_MAX),
        ("x" * 1_001, "x" * 1_000 + "...(1001 characters)"),
        ("\n" * 501, "\\n" * 500 + "...(501 characters)"),
    ],
)
def test_log_text_is_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


@pytest.mark.parametrize(
    ("template", "args", "shown"),
    [
        ("none 100%\n", (), "none 100%\\n"),
        ("a=%s b=%r", ("\n", "\n"), "a=\\n b='\\n'"),
        ("a=%s b=%r", (OSError("x\n"), OSError("x")), "a=x\\n b=OSError('x')"),
        ("a=%d b=%.2f c=%s d=%5s|", (7, 0.5, True, "x"), "a=7 b=0.50 c=True d=    x|"),
        ("a=%s", ({"k": "\n"},), "a={'k': '\\n'}"),
        ("a=%(k)s", ({"k": "\n"},), "a=\\n"),
        ("a=%s", ([b"\n", None],), "a=[b'\\n', None]"),
    ],
)
def test_log_message_is_formatted_with_any_arguments(
    template: str, args: tuple[object, ...], shown: str
) -> None:
    assert message(template, *args) == shown


def test_log_arguments_and_messages_are_truncated() -> None:
    assert len(message("a=%s b=%s", "x" * 480_000, ["y" * 480_000])) < 2 * ARGUMENT_CHARS_MAX + 100
    assert message("a=%s end=%s", "x" * 480_000, "here").endswith("end=here")
    assert len(message("x" * 480_000)) < MESSAGE_CHARS_MAX + 100


@pytest.mark.parametrize("value", [True, 7, -(1 << 63), (1 << 63) - 1, 0.5, None])
def test_number_stays_a_number_as_a_log_field(value: object) -> None:
    assert field_of(value) is value


def test_log_fields_of_other_types_are_text() -> None:
    assert field_of(1 << 63) == "9223372036854775808"  # JSON's writers take no more
    assert field_of(OSError("a\nb")) == "a\\nb"


def test_long_traceback_keeps_its_start_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logtext, "TRACE_HEAD_LINES", 3)
    monkeypatch.setattr(logtext, "TRACE_TAIL_LINES", 2)

    def deep(left: int) -> None:
        if not left:
            raise ValueError("at the bottom\nFORGED")
        deeper(left)

    def deeper(left: int) -> None:
        deep(left - 1)

    try:
        deep(20)
    except ValueError as error:
        lines = trace_of(error).splitlines()
    assert len(lines) == 6
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[3].startswith("  ... ") and lines[3].endswith(" lines")
    assert lines[-1] == "ValueError: at the bottom\\nFORGED"
