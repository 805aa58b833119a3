"""Encodes send requests and decodes their answers: the producer's hot path. Pure.

The JSON header of SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320) is one %-format of bytes:
everything that is the same for all messages of a topic is prepared once per (topic, broker group).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from raftmq.remoting.codes import MQ_VERSION

from ..compression import Compression
from ..errors import InvalidMessage
from ..message import (
    BODY_SIZE_BYTES_MAX,
    PROPERTIES_SIZE_BYTES_MAX,
    RETRY_PREFIX,
    Message,
    properties_of,
    properties_text,
)

SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
SEND_REPLY_MESSAGE_V2 = 325
TRANSACTION_PREPARED = 0x4  # sysFlag: a half message
FLAG_END = 1 << 31  # a record has it as an int32
ZLIB = Compression()
FRAME_PREFIX = struct.Struct(">ii")
_BATCH_ITEM = struct.Struct(">iiiii")
_PROPERTIES_LENGTH = struct.Struct(">h")
_PLAIN_PROPERTIES = b'"UNIQ_KEY\\u0001%b\\u0002WAIT\\u0001true\\u0002"'  # as JSON writes them


class SendTemplate:
    """The header parts that are the same for one producer group, topic and broker group."""

    __slots__ = ("_format", "_plain_format")

    def __init__(self, producer_group: str, topic: str, broker_name: str, code: int) -> None:
        batch = b"true" if code == SEND_BATCH_MESSAGE else b"false"
        self._format = b"".join(
            (
                b'{"code":%d,"extFields":{"a":' % code,
                _constant(producer_group),
                b',"b":',
                _constant(topic),
                b',"c":"TBW102","d":"4","e":"%d","f":"%d","g":"%d","h":"%d","i":%s,',
                b'"j":"0","k":"false","m":"' + batch + b'","n":',
                _constant(broker_name),
                b'},"flag":%d,"language":"PYTHON","opaque":%d,',
                b'"serializeTypeCurrentRPC":"JSON","version":' + b"%d}" % MQ_VERSION,
            )
        )
        # The same for flags of 0, as nearly all sends have them.
        self._plain_format = (
            self._format.replace(b'"f":"%d"', b'"f":"0"')
            .replace(b'"h":"%d"', b'"h":"0"')
            .replace(b'},"flag":%d,', b'},"flag":0,')
        )

    def frame(self, item: OutgoingSend, queue_id: int, opaque: int, rpc_flag: int = 0) -> bytes:
        """Return the whole frame, length prefix included. `rpc_flag` 2 is one-way."""
        if item.sys_flag or item.flag or rpc_flag:
            header = self._format % (
                queue_id,
                item.sys_flag,
                item.born_ms,
                item.flag,
                item.properties_json,
                rpc_flag,
                opaque,
            )
        else:
            changing = (queue_id, item.born_ms, item.properties_json, opaque)
            header = self._plain_format % changing
        header_length = len(header)
        body = item.body
        prefix = FRAME_PREFIX.pack(4 + header_length + len(body), header_length)
        return prefix + header + body


@dataclass(slots=True, eq=False)
class OutgoingSend:
    """One encoded send, which every attempt repeats: same UNIQ_KEY, same body."""

    code: int
    body: bytes
    unique_key: str
    properties_json: bytes
    sys_flag: int
    flag: int
    born_ms: int


def outgoing(
    message: Message,
    unique_key: str,
    born_ms: int,
    *,
    compression: Compression = ZLIB,
    code: int = SEND_MESSAGE_V2,
    sys_flag: int = 0,
    suffix: str = "",
) -> OutgoingSend:
    """Encode one message. Raises InvalidMessage. `suffix`: the library's own properties, encoded
    (`properties_text`), to append to those of the message."""
    body = message.body
    if type(body) is not bytes:
        if not isinstance(body, bytearray | memoryview):
            raise InvalidMessage(f"the body is bytes, not {type(body).__name__}")
        body = bytes(body)
    if not body:
        raise InvalidMessage("body is empty")
    if len(body) > BODY_SIZE_BYTES_MAX:
        raise InvalidMessage(f"body of {len(body)} bytes is over {BODY_SIZE_BYTES_MAX}")
    if message.flag != 0:
        _check_flag(message.flag)
    if len(body) >= compression.from_bytes:
        body, compressed = compression.apply(body)
        sys_flag |= compressed
    if (
        unique_key.isalnum()
        and unique_key.isascii()
        and not (suffix or message.tags or message.properties or message.keys)
        and not message.delay_level
        and message.delay_time is None
        and message.deliver_time is None
        and message.wait_store
    ):  # the same result as below, in half the time
        json = _PLAIN_PROPERTIES % unique_key.encode()
    else:
        json = orjson.dumps(encoded_properties(message, unique_key) + suffix)
    return OutgoingSend(code, body, unique_key, json, sys_flag, message.flag, born_ms)


def outgoing_batch(
    messages: Sequence[Message], unique_keys: Sequence[str], born_ms: int
) -> OutgoingSend:
    """Encode messages of one topic as one batch. Raises InvalidMessage.

    Bodies are not compressed: the flag would have to hold for the batch as a whole.
    """
    if not messages:
        raise InvalidMessage("batch is empty")
    first = messages[0]
    if any(m.topic != first.topic or m.is_later for m in messages):
        raise InvalidMessage("a batch has one topic and no delayed messages")
    if not isinstance(first.topic, str):
        raise InvalidMessage(f"the topic is a text, not {type(first.topic).__name__}")
    if first.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage("a retry topic takes no batches")
    if any(m.born_timestamp_ms is not None for m in messages):
        raise InvalidMessage("a batch is born when it is sent")
    if any(m.wait_store is not first.wait_store for m in messages):
        raise InvalidMessage("the messages of a batch wait for storage all or none")
    parts: list[bytes] = []
    for message, key in zip(messages, unique_keys, strict=True):
        if not message.body:
            raise InvalidMessage("body is empty")
        _check_flag(message.flag)
        properties = encoded_properties(message, key).encode()
        body = message.body
        size = _BATCH_ITEM.size + len(body) + _PROPERTIES_LENGTH.size + len(properties)
        parts.append(_BATCH_ITEM.pack(size, 0, 0, message.flag, len(body)))
        parts += (body, _PROPERTIES_LENGTH.pack(len(properties)), properties)
    body = b"".join(parts)
    if len(body) > BODY_SIZE_BYTES_MAX:
        raise InvalidMessage(f"batch of {len(body)} bytes is over {BODY_SIZE_BYTES_MAX}")
    wait = "true" if first.wait_store else "false"
    # Apache's broker appends these to every item's own properties, and the last one of a name
    # counts: a UNIQ_KEY here would replace those of all items.
    json = orjson.dumps(properties_text({"WAIT": wait}))
    return OutgoingSend(SEND_BATCH_MESSAGE, body, ",".join(unique_keys), json, 0, 0, born_ms)


def encoded_properties(message: Message, unique_key: str) -> str:
    """Return the properties string, without building a dict for a plain message (at most a tag).
    Raises InvalidMessage."""
    if message.properties or message.keys or message.is_later or not message.wait_store:
        try:
            text = properties_text(properties_of(message, unique_key))
        except ValueError as error:
            raise InvalidMessage(str(error)) from error
        if len(text.encode()) > PROPERTIES_SIZE_BYTES_MAX:
            raise InvalidMessage("properties are over 32767 bytes")
        return text
    tags = message.tags
    if not tags:
        return f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02"
    if not isinstance(tags, str):
        raise InvalidMessage(f"tags is one text, not {type(tags).__name__}")
    if "\x01" in tags or "\x02" in tags or len(tags) > 1000:
        raise InvalidMessage("tag holds a separator byte or is over 1000 characters")
    return f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02TAGS\x01{tags}\x02"


def _check_flag(flag: int) -> None:
    if not isinstance(flag, int) or not -FLAG_END <= flag < FLAG_END:
        raise InvalidMessage(f"flag is a number of 32 bits, not {flag!r}")


def _constant(text: str) -> bytes:
    """Return the text as a JSON string for use in a %-format."""
    return orjson.dumps(text).replace(b"%", b"%%")
