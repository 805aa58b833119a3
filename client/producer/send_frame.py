"""Encoding of send requests, single, batch and signed, the hot path of a producer.

The JSON header of SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320) is a %-format of bytes. The
constant fields of a topic's messages are prepared once per (topic, broker group).

The signed text of a V2 header is its values in the order of their short names, a to n. `AccessKey`
and `SecurityToken` sort first and are constant. A signed template prepares the constant start and
end, and fills in the values that differ between messages.

A batch is a request for a single topic. Its size is that of its items, properties included. A
broker's limits are its maxMessageSize, 4 MiB by default, and COUNT_MAX messages. Pure, without I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from raftmq.remoting.acl.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    Credentials,
    signature,
)
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
    """The constant header fields for a producer group, topic and broker group."""

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
        # The same for flags of 0, the usual case.
        self._plain_format = (
            self._format.replace(b'"f":"%d"', b'"f":"0"')
            .replace(b'"h":"%d"', b'"h":"0"')
            .replace(b'},"flag":%d,', b'},"flag":0,')
        )

    def frame(self, item: OutgoingSend, queue_id: int, opaque: int, rpc_flag: int = 0) -> bytes:
        """Return the complete frame. `rpc_flag` 2 is one-way."""
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
    """An encoded send, with the same UNIQ_KEY and body in every attempt."""

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
    """Encode a message. Raises InvalidMessage. `suffix` has the library's own encoded properties
    (`properties_text`), appended to the message's."""
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
    """Encode messages of a topic as a batch. Raises InvalidMessage. Bodies are not compressed,
    because the flag would apply to the whole batch."""
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
    # Apache's broker appends these to every item's properties, and the last value of a name counts.
    # A UNIQ_KEY here would replace that of all items.
    json = orjson.dumps(properties_text({"WAIT": wait}))
    return OutgoingSend(SEND_BATCH_MESSAGE, body, ",".join(unique_keys), json, 0, 0, born_ms)


def encoded_properties(message: Message, unique_key: str) -> str:
    """Return the properties string, without a dict for a plain message (at most a tag). Raises
    InvalidMessage."""
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


class SignedTemplate:
    """A template whose frames are signed."""

    __slots__ = ("_after_properties", "_before_queue", "_extra", "_plain", "_secret")

    def __init__(
        self,
        credentials: Credentials,
        producer_group: str,
        topic: str,
        broker_name: str,
        code: int,
    ) -> None:
        self._plain = SendTemplate(producer_group, topic, broker_name, code)
        fields = {ACCESS_KEY: credentials.access_key}
        if credentials.security_token:
            fields[SECURITY_TOKEN] = credentials.security_token
        batch = "true" if code == SEND_BATCH_MESSAGE else "false"
        own = "".join(fields.values())
        self._before_queue = f"{own}{producer_group}{topic}TBW1024".encode()
        self._after_properties = f"0false{batch}{broker_name}".encode()
        self._extra = orjson.dumps(fields)[1:-1]
        self._secret = credentials.secret_key

    def frame(self, item: OutgoingSend, queue_id: int, opaque: int, rpc_flag: int = 0) -> bytes:
        changing = b"%d%d%d%d" % (queue_id, item.sys_flag, item.born_ms, item.flag)
        properties = orjson.loads(item.properties_json).encode()
        text = b"".join(
            (self._before_queue, changing, properties, self._after_properties, item.body)
        )
        plain = self._plain.frame(item, queue_id, opaque, rpc_flag)
        _, plain_size = FRAME_PREFIX.unpack_from(plain)
        start = FRAME_PREFIX.size
        header = plain[start : start + plain_size]
        # The first extFields opens right after the code, before any text of a user.
        at = header.index(_OPENING) + len(_OPENING)
        added = b'%s,"%s":"%s",' % (self._extra, _NAME, signature(self._secret, text).encode())
        size = plain_size + len(added)
        prefix = FRAME_PREFIX.pack(4 + size + len(item.body), size)
        return b"".join((prefix, header[:at], added, header[at:], item.body))


Template = SendTemplate | SignedTemplate
_OPENING = b'"extFields":{'
_NAME = SIGNATURE.encode()


def template_for(
    credentials: Credentials | None, producer_group: str, topic: str, broker_name: str, code: int
) -> Template:
    """Return the template for sends, signed if there are `credentials`."""
    if credentials is None:
        return SendTemplate(producer_group, topic, broker_name, code)
    return SignedTemplate(credentials, producer_group, topic, broker_name, code)


SPLIT_SIZE_BYTES = 1024 * 1024
COUNT_MAX = 8_192  # brokers reject larger batches
_ITEM_BYTES = 22  # five int32 and an int16 around body and properties
_KEY = "0" * 32


def batch_item_size(message: Message) -> int:
    """Return the message's size in a batch. Raises InvalidMessage."""
    properties = encoded_properties(message, message.unique_key or _KEY)
    return _ITEM_BYTES + len(message.body) + len(properties.encode())


def split_batch(
    messages: Sequence[Message], size_bytes_max: int = SPLIT_SIZE_BYTES
) -> Iterator[list[Message]]:
    """Split messages into batches of at most `size_bytes_max`, in order. Raises InvalidMessage for
    a larger message, or for a limit above 4 MiB."""
    if size_bytes_max > BODY_SIZE_BYTES_MAX:
        raise InvalidMessage(f"batches of {size_bytes_max} bytes are over {BODY_SIZE_BYTES_MAX}")
    batch: list[Message] = []
    batch_bytes = 0
    for message in messages:
        size = batch_item_size(message)
        if size > size_bytes_max:
            raise InvalidMessage(f"a message of {size} bytes is over {size_bytes_max}")
        if batch and (batch_bytes + size > size_bytes_max or len(batch) >= COUNT_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += size
    if batch:
        yield batch
