"""The fast path from a send's frame to its record, for sends like earlier ones.

Most sends differ from an earlier send only in body, UNIQ_KEY and time. Only these are parsed;
everything else is looked up. Any other send uses the general path (`SendPath.admit`,
broker.messages.send_request), which fills these caches. Both paths build the same record
(tests/broker/send/test_fast_path.py).

Measured on a leader, frame to waiting list: 2.4 microseconds per send instead of 4.5.
"""

from __future__ import annotations

from typing import Annotated
from zlib import crc32

from msgspec import Meta, Struct, field
from msgspec.json import Decoder

from raftmq.remoting.codec import INT32_MAX, INT32_MIN
from raftmq.remoting.errors import HeaderError

from ..errors import Refused
from ..messages.send_request import Record, SendRules, SendTopic, born_ms_of

# Java's clients and ours write the code first.
PLAIN_START = b'{"code":310,'


class PlainFields(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """The header fields of SEND_MESSAGE_V2, in the order of most clients, which is decoded faster.
    Those with a comment are used. The rest are declared so that their type is checked; any unknown
    field disables the fast path."""

    a: str = ""
    b: str  # topic
    c: str = ""
    d: str = ""
    e: str  # queue id
    f: str  # sysFlag
    g: str  # bornTimestamp
    h: str  # flag
    i: str = ""  # properties
    j: str | None = None  # reconsumeTimes
    k: str = ""
    l: str = ""  # noqa: E741
    m: str = ""
    n: str = ""
    access_key: str = field(default="", name="AccessKey")
    signature: str = field(default="", name="Signature")
    security_token: str = field(default="", name="SecurityToken")


Int32 = Annotated[int, Meta(ge=INT32_MIN, le=INT32_MAX)]


class PlainSend(Struct, gc=False, kw_only=True):
    """The header of a SEND_MESSAGE_V2, with the checks of `remoting.codec.decode_command`."""

    code: Int32
    fields: PlainFields = field(name="extFields")
    flag: Int32
    opaque: Int32
    version: Int32 = 0
    remark: None = None  # a request with a remark uses the general path


# Decode a PlainSend. Raises msgspec.MsgspecError, RecursionError or ValueError.
decode_plain = Decoder(PlainSend).decode


def plain_record(
    fields: PlainFields, body: bytes, topic: SendTopic, born_host: bytes, rules: SendRules
) -> tuple[Record, str] | None:
    """Return the record and the client's message id, or None if the send needs the general path.
    `born_host` is an IPv4 address."""
    queue = topic.chosen.get(fields.e)
    numbers = rules.numbers.get((fields.f, fields.h, fields.j))
    born_ms = rules.born_times.get(fields.g)
    text = fields.i
    at = text.find("UNIQ_KEY\x01")
    end = text.find("\x02", at + 9) if at == 0 or (at > 0 and text[at - 1] == "\x02") else -1
    ending = rules.endings.get(text[:at] + text[end:] if at else text[end:])
    body_size = len(body)
    if (
        queue is None
        or numbers is None
        or ending is None
        or end < 0
        or not 0 < body_size <= rules.message_size_max
    ):
        return None
    if born_ms is None:  # the first send of a millisecond
        try:
            born_ms = born_ms_of(fields.g, rules)
        except (Refused, HeaderError):
            return None
    stored = text.encode() + ending[0]
    name_prefix = topic.name_prefixes.get(len(stored))
    if name_prefix is None:
        return None
    tail = name_prefix + stored
    sys_flag, flag, reconsume = numbers
    record = (
        queue,
        rules.head_size_v4 + body_size + len(tail),
        rules.head_v4,
        crc32(body) & 0x7FFFFFFF,
        flag,
        sys_flag,
        born_ms,
        born_host,
        reconsume,
        body,
        tail,
        ending[1],
    )
    return record, text[at + 9 : end]
