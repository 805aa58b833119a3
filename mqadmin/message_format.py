"""Output formats of `mqadmin consume`.

Formats are line, body, JSON, hex and templates. Messages may hold control characters that a
terminal obeys, so terminals and lines show them as escapes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from raftmq.client.message import RESERVED_PROPERTIES, MessageExt

from .command import CommandError, show_time

Show = Callable[[MessageExt], bytes]
HEX_COLUMNS = 16
# Properties that brokers and clients set, not the sender.
NOT_OWN = RESERVED_PROPERTIES | {"CLUSTER", "IDEMPOTENT", "MSG_REGION", "TRACE_ON"}
_FIELD = re.compile(r"\{([^{}]*)\}|\\(.)|\{\{|\}\}", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_PROPERTY = "property."


def show_as(form: str, template: str, *, terminal: bool) -> Show:
    """Return the function that formats a message. Raises CommandError."""
    if (form == "template") != bool(template):
        raise CommandError("--format template and --template TEXT go together", usage=True)
    if form == "template":
        return _by_template(template)
    shows: dict[str, Show] = {
        "line": _line,
        "text": _text_for_terminal if terminal else _bytes,
        "json": _json,
        "hex": _hex,
    }
    return shows[form]


def plain(message: MessageExt) -> dict[str, Any]:
    """Return a message as JSON, which `produce --format json` accepts."""
    result: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags or "",
        "keys": (message.keys or "").split(),
        "properties": {
            name: value for name, value in message.properties.items() if name not in NOT_OWN
        },
        "bornMs": message.born_timestamp_ms,
        "storedMs": message.store_timestamp_ms,
        "reconsumeTimes": message.reconsume_times,
    }
    try:
        result["body"] = message.body.decode()
    except UnicodeDecodeError:
        result["bodyBase64"] = base64.b64encode(message.body).decode()
    return result


def escaped(text: str, keep: str = "") -> str:
    """Escape the text's control characters except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def _json(message: MessageExt) -> bytes:
    return orjson.dumps(plain(message), option=orjson.OPT_APPEND_NEWLINE)


def _bytes(message: MessageExt) -> bytes:
    return message.body + b"\n"


def _text_for_terminal(message: MessageExt) -> bytes:
    return escaped(_body(message), "\n\t").encode() + b"\n"


def _line(message: MessageExt) -> bytes:
    position = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    parts = [show_time(message.store_timestamp_ms), position]
    if message.tags:
        parts.append(f"[{escaped(message.tags)}]")
    if message.keys:
        parts.append(f"({escaped(message.keys)})")
    return "  ".join([*parts, escaped(_body(message))]).encode() + b"\n"


def _body(message: MessageExt) -> str:
    try:
        return message.body.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(message.body).decode()}"


def _hex(message: MessageExt) -> bytes:
    position = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    lines = [f"{position}  {len(message.body)} bytes", *_rows(message.body), ""]
    return "\n".join(lines).encode() + b"\n"


def _rows(body: bytes) -> Iterator[str]:
    for start in range(0, len(body), HEX_COLUMNS):
        part = body[start : start + HEX_COLUMNS]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{start:08x}  {part.hex(' '):<{HEX_COLUMNS * 3}} {text}"


_VALUES: dict[str, Callable[[MessageExt], bytes]] = {
    "topic": lambda m: m.topic.encode(),
    "broker": lambda m: m.broker_name.encode(),
    "queue": lambda m: b"%d" % m.queue_id,
    "offset": lambda m: b"%d" % m.queue_offset,
    "msgId": lambda m: m.msg_id.encode(),
    "tags": lambda m: (m.tags or "").encode(),
    "keys": lambda m: (m.keys or "").encode(),
    "born": lambda m: show_time(m.born_timestamp_ms).encode(),
    "stored": lambda m: show_time(m.store_timestamp_ms).encode(),
    "reconsumeTimes": lambda m: b"%d" % m.reconsume_times,
    "size": lambda m: b"%d" % len(m.body),
    "body": lambda m: m.body,
}


def _by_template(template: str) -> Show:
    """Compile a template of {fields} and backslashes before n, t, r, 0. Raises CommandError."""
    parts: list[Callable[[MessageExt], bytes]] = []
    at = 0
    for match in _FIELD.finditer(template):
        parts.append(_constant(template[at : match.start()]))
        parts.append(_piece(match))
        at = match.end()
    parts.append(_constant(template[at:]))
    return lambda message: b"".join(part(message) for part in parts)


def _piece(match: re.Match[str]) -> Callable[[MessageExt], bytes]:
    name, escape = match[1], match[2]
    if name is None:
        return _constant(match[0][0] if escape is None else _ESCAPES.get(escape, match[0]))
    if name.startswith(_PROPERTY):
        key = name.removeprefix(_PROPERTY)
        return lambda message: message.properties.get(key, "").encode()
    if name not in _VALUES:
        known = ", ".join([*_VALUES, "property.NAME"])
        raise CommandError(f"--template: no field {name!r}; there are {known}", usage=True)
    return _VALUES[name]


def _constant(text: str) -> Callable[[MessageExt], bytes]:
    data = text.encode()
    return lambda _: data
