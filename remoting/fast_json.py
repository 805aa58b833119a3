"""Bodies in the dialect of Java's fastjson.

Fastjson writes two kinds of maps that are not JSON: number keys without quotes,
`{0:"10.0.0.1:10911"}`, and objects as keys, `{{"brokerName":"b","queueId":0,"topic":"t"}:5}`.
`loads` reads both and plain JSON. A number key becomes a string ("0"), an object key a
`MessageQueue`, the only class used as a key. Duplicate keys are rejected in bodies up to
STRICT_BYTES_MAX; in larger bodies the last value counts. `dumps` writes JSON, with MessageQueue
keys as objects and number keys quoted, which fastjson also reads. Fastjson's `$ref` shorthand is
not supported; it is read as a plain object. Pure, without I/O.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from raftmq.ops.strict_json import loads as loads_strictly

from .errors import BodyError

STRICT_BYTES_MAX = 256 * 1024  # larger bodies are tables and registrations, made by programs
# an unterminated string extends to the end, so that nothing is read twice
_STRING = r'"(?:[^"\\]|\\.)*+"?+'
_COLON = r"(?=[ \t\r\n]*+:)"
# Strings, which are kept, and the two kinds of keys that are not JSON.
_FIELDS = re.compile(
    rf'(?P<object>\{{[^{{}}"]*+(?:{_STRING}[^{{}}"]*+)*+\}}){_COLON}'
    rf"|(?P<before>[{{,][ \t\r\n]*+)(?P<number>-?+(?:0|[1-9][0-9]*+)){_COLON}"
    rf"|{_STRING}",
    re.DOTALL,
)

# Of a request's body, because a value takes up to .2 us, in the dialect up to 2 us.
VALUES_MAX, DIALECT_VALUES_MAX = 32_768, 2_048


class MessageQueue(NamedTuple):
    """A queue of a topic in a group; the key of Java maps. Sorts as in Java clients."""

    topic: str
    broker_name: str
    queue_id: int

    def as_fields(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_fields(cls, fields: Any) -> MessageQueue:
        """Make a queue from its fields. Raises BodyError."""
        if not isinstance(fields, dict):
            raise BodyError("a message queue is not an object")
        topic, name, queue_id = (fields.get(key) for key in ("topic", "brokerName", "queueId"))
        if not isinstance(topic, str) or not isinstance(name, str) or type(queue_id) is not int:
            raise BodyError(f"not a message queue: {fields!r}")
        return cls(topic, name, queue_id)


def loads(data: bytes) -> Any:
    """Read JSON or fastjson's dialect, into values for `dumps`. Raises BodyError."""
    read = loads_strictly if len(data) <= STRICT_BYTES_MAX else orjson.loads
    try:
        return read(data)
    except orjson.JSONDecodeError:
        pass  # expected for the dialect; a damaged body fails again below
    queues: dict[str, MessageQueue] = {}

    def as_json(match: re.Match[str]) -> str:
        if match["number"]:
            return f'{match["before"]}"{match["number"]}"'
        if match["object"]:
            queues[match["object"]] = MessageQueue.from_fields(read(match["object"]))
            return orjson.dumps(match["object"]).decode()
        return match[0]

    try:
        value = read(_FIELDS.sub(as_json, data.decode()))
        return _with_queues(value, queues) if queues else value
    except (UnicodeDecodeError, orjson.JSONDecodeError, RecursionError) as error:
        raise BodyError(f"body is not JSON: {error}") from error


def _with_queues(value: Any, queues: dict[str, MessageQueue]) -> Any:
    """Replace keys that are the text of message queues by the queues."""
    if isinstance(value, dict):
        return {queues.get(key, key): _with_queues(item, queues) for key, item in value.items()}
    return [_with_queues(item, queues) for item in value] if isinstance(value, list) else value


def loads_request(data: bytes) -> dict[str, Any]:
    """Do as `loads_object` for foreign bodies; rejects slow ones. Raises BodyError."""
    count = 1 + data.count(b",") + data.count(b"{") + data.count(b"[")
    if count > VALUES_MAX:
        raise BodyError(f"a body of some {count} values; at most {VALUES_MAX}")
    if count <= DIALECT_VALUES_MAX:
        return loads_object(data)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BodyError(f"body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BodyError("body is not a JSON object")
    return value


def loads_object(data: bytes) -> dict[str, Any]:
    """Read a body that is an object. Raises BodyError."""
    value = loads(data)
    if not isinstance(value, dict):
        raise BodyError("body is not a JSON object")
    return value


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS


def dumps(value: Any) -> bytes:
    """Write `value` (dict, list, str, int, float, bool, None; keys str, int or MessageQueue) as
    orjson does, except for MessageQueue keys. Values without such keys are passed to orjson as a
    whole."""
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
