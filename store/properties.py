"""The properties string of a record, and the hash of its TAGS.

    name 0x01 value 0x02 name 0x01 value 0x02 ...

The last 0x02 may be missing. Pairs with an empty name or value are dropped on read; of two pairs
with the same name the later counts. Text is UTF-8; invalid bytes are replaced as by Java's decoder.
At most 32,767 bytes (a signed int16 counts them).

A ConsumeQueue entry has the tag as Java's String.hashCode of the whole TAGS value, widened to 64
bits with its sign. Java hashes UTF-16 units, so a character outside the basic plane counts as its
two surrogates. Pure, without I/O.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from zlib import crc32

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
PROPERTIES_SIZE_BYTES_MAX = 32_767  # int16
LONG_TEXT = 256  # characters

TAGS = "TAGS"
KEYS = "KEYS"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
WAIT = "WAIT"  # "false": the sender does not wait for disk or slave (classic mode)
# Properties that clients and brokers add to an application's.
ADDED_PROPERTIES = frozenset(
    "UNIQ_KEY WAIT MSG_REGION TRACE_ON CLUSTER IDEMPOTENT EXTEND_UNIQ_INFO INSTANCE_ID "
    "DELAY TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_OUT_MS TIMER_ROLL_LABEL "
    "TIMER_ROLL_TIMES REAL_TOPIC REAL_QID RETRY_TOPIC ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC "
    "DLQ_ORIGIN_MESSAGE_ID ORIGIN_GROUP 1ST_POP_TIME POP_CK RECONSUME_TIME MAX_RECONSUME_TIMES "
    "PGROUP TRAN_MSG __transactionId__ TRAN_PREPARED_QUEUE_OFFSET TRAN_FIRST_STORED_MS "
    "TRANSACTION_CHECK_TIMES "
    "CORRELATION_ID REPLY_TO_CLIENT TTL MIN_OFFSET MAX_OFFSET CONSUME_START_TIME".split()
)
FIELDS_SUM_MAX = 0x7FFFFFFF


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the stored form, with the closing 0x02. Raises ValueError for an empty name or value,
    a separator inside a name or value, or more than 32,767 bytes."""
    parts = []
    for name, value in properties.items():
        if not name or not value:
            raise ValueError(f"a property needs a name and a value: {name!r}={value!r}")
        for text in (name, value):
            if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
                raise ValueError(f"a separator inside a property: {name!r}={value!r}")
        parts.append(f"{name}\x01{value}\x02")
    data = "".join(parts).encode()
    if len(data) > PROPERTIES_SIZE_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes of properties, the limit is 32767")
    return data


def fields_sum(flag: int, properties: Mapping[str, str]) -> int:
    """Return 31 bits of an application's flag and properties, the order-independent sum of the flag
    and of the CRC-32 of each property as `name 0x01 value`, KEYS and TAGS included. Properties
    added by clients and brokers do not count."""
    given = (pair for pair in properties.items() if pair[0] not in ADDED_PROPERTIES)
    sums = (crc32(f"{name}\x01{value}".encode()) for name, value in given)
    return (flag + sum(sums)) & FIELDS_SUM_MAX


def joined(properties: Mapping[str, str]) -> bytes:
    """Return the stored form of changed properties, without checks."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()


def decode_properties(data: bytes | bytearray | memoryview | str) -> dict[str, str]:
    """Return every pair with a name and a value, in stored order. Never raises."""
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    properties: dict[str, str] = {}
    for pair in text.split(PROPERTY_SEPARATOR):
        name, separator, value = pair.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:  # a further 0x01 belongs to the value, as in Java
            properties[name] = value
    return properties


def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode: s[0]*31^(n-1) + ... + s[n-1], a signed int32."""
    if len(text) > LONG_TEXT:
        with contextlib.suppress(ModuleNotFoundError):  # clients without numpy
            return _long_hash(text)
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (value * 31 + unit) & 0xFFFFFFFF
    else:
        units = memoryview(text.encode("utf-16-le", "surrogatepass"))
        for i in range(0, len(units), 2):
            value = (value * 31 + (units[i] | units[i + 1] << 8)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _long_hash(text: str) -> int:
    """Return the hash of a long text; numpy takes a fiftieth of the time."""
    import numpy as np

    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.uint32)
    powers = np.full(len(units), 31, np.uint32)
    powers[-1] = 1
    powers = np.multiply.accumulate(powers[::-1])[::-1]
    return int((units * powers).sum(dtype=np.uint32).astype(np.int32))


def tags_code(tags: str | bytes | None) -> int:
    """Return the tags code of a ConsumeQueue entry, the signed hash of `tags`; 0 for none."""
    if not tags:
        return 0
    return java_string_hash(tags if isinstance(tags, str) else str(tags, "utf-8", "replace"))
