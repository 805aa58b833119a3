"""Reads and writes bodies in the dialect of Java's fastjson. Pure.

Fastjson writes two kinds of maps that are not JSON: number keys without quotes,
`{0:"10.0.0.1:10911"}`, and objects as keys, `{{"brokerName":"b","queueId":0,"topic":"t"}:5}`.
`loads` reads those and plain JSON; an unquoted number key becomes its text ("0"), as if it had been
quoted, an object key becomes a `MessageQueue` (the only class used as a key). `dumps` writes JSON,
with MessageQueue keys as objects and number keys quoted, which fastjson reads as well.
Not supported: fastjson's `$ref` shorthand for repeated objects (it is read as a plain object).
"""

from __future__ import annotations

import re
from json import JSONDecoder
from typing import Any, NamedTuple

import orjson

from raftmq.remoting.errors import BodyError

DEPTH_MAX = 64  # of nesting; bounds the recursion on a peer's data
_SPACE = re.compile(r"[ \t\r\n]*")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_SCALARS = JSONDecoder(parse_constant=_refuse_constant)


class MessageQueue(NamedTuple):
    """One queue of a topic in one broker group; the key of many Java maps. Sorts as RocketMQ's
    clients sort it."""

    topic: str
    broker_name: str
    queue_id: int

    def as_fields(self) -> dict[str, Any]:
        """Return the fields as in JSON."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_fields(cls, fields: Any) -> MessageQueue:
        """Make a queue from its fields. Raises BodyError if `fields` is not a message queue."""
        if not isinstance(fields, dict):
            raise BodyError("a message queue is not an object")
        topic, name, queue_id = (fields.get(key) for key in ("topic", "brokerName", "queueId"))
        if not isinstance(topic, str) or not isinstance(name, str) or type(queue_id) is not int:
            raise BodyError(f"not a message queue: {fields!r}")
        return cls(topic, name, queue_id)


def loads(data: bytes) -> Any:
    """Read JSON or fastjson's dialect. Raises BodyError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass  # expected for the two dialect forms; a damaged body fails again below
    try:
        text = data.decode()
        value, position = _value(text, 0, 0)
        position = _skip(text, position)
    except (UnicodeDecodeError, ValueError, IndexError) as error:
        raise BodyError(f"body is not JSON: {error}") from error
    if position != len(text):
        raise BodyError(f"body goes on behind its JSON value at {position}")
    return value


def loads_object(data: bytes) -> dict[str, Any]:
    """Read a body that must be an object. Raises BodyError."""
    value = loads(data)
    if not isinstance(value, dict):
        raise BodyError("body is not a JSON object")
    return value


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS


def dumps(value: Any) -> bytes:
    """Write `value` (dict, list, str, int, float, bool, None; keys str, int or MessageQueue), as
    orjson does, except for MessageQueue keys. Parts without any are left to orjson as a whole: for
    a topic with 65,536 queues that is everything but the keys."""
    try:
        return orjson.dumps(value, default=_fields_of, option=_OPTIONS)
    except orjson.JSONEncodeError:
        if isinstance(value, dict):
            items = [_written_key(key) + b":" + dumps(item) for key, item in value.items()]
            return b"{%s}" % b",".join(items)
        if isinstance(value, list | tuple):
            return b"[%s]" % b",".join(map(dumps, value))
        raise


def _fields_of(value: Any) -> Any:
    if isinstance(value, MessageQueue):
        return value.as_fields()
    raise TypeError(f"{type(value).__name__} is not written as JSON")


def _written_key(key: Any) -> bytes:
    return orjson.dumps(key.as_fields() if isinstance(key, MessageQueue) else str(key))


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None  # it matches the empty string too
    return match.end()


def _value(text: str, position: int, depth: int) -> tuple[Any, int]:
    if depth > DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    position = _skip(text, position)
    first = text[position]
    if first == "{":
        return _object(text, position + 1, depth)
    if first == "[":
        return _array(text, position + 1, depth)
    return _SCALARS.raw_decode(text, position)


def _array(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    position = _skip(text, position)
    if text[position] == "]":
        return items, position + 1
    while True:
        item, position = _value(text, position, depth + 1)
        items.append(item)
        position = _skip(text, position)
        if text[position] == "]":
            return items, position + 1
        if text[position] != ",":
            raise ValueError(f"no comma at {position}")
        position += 1


def _object(text: str, position: int, depth: int) -> tuple[dict[Any, Any], int]:
    fields: dict[Any, Any] = {}
    position = _skip(text, position)
    if text[position] == "}":
        return fields, position + 1
    while True:
        key, position = _key(text, position, depth)
        position = _skip(text, position)
        if text[position] != ":":
            raise ValueError(f"no colon at {position}")
        fields[key], position = _value(text, position + 1, depth + 1)
        position = _skip(text, position)
        if text[position] == "}":
            return fields, position + 1
        if text[position] != ",":
            raise ValueError(f"no comma at {position}")
        position += 1


def _key(text: str, position: int, depth: int) -> tuple[str | MessageQueue, int]:
    position = _skip(text, position)
    key, position = _value(text, position, depth + 1)
    if isinstance(key, str):
        return key, position
    if isinstance(key, dict):
        return MessageQueue.from_fields(key), position
    if type(key) is int:
        return str(key), position
    raise ValueError(f"a key is neither text, number nor object before {position}")
