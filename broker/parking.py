"""Messages that are stored somewhere else first: delayed ones, and halves of transactions.

A send whose properties or flags say so takes the slow way (broker.sendrequest.Special), and what
comes of it goes through `park`: a message in, the message that is stored instead out. Its topic is
one of the broker's own (`internal_topics`), the place it was sent to stands in REAL_TOPIC and
REAL_QID, as in Apache's stores. What a broker stores itself (a retry, the message that a
transaction becomes) is parked by the same functions before it is given to `SendPath.store`.

A delayed message waits in queue level - 1 of SCHEDULE_TOPIC_XXXX, whose consume-queue units hold
the time of delivery instead of a tags code (broker.cut and store.dispatch); broker.delay delivers.
A transactional message with a delay is delayed when it is committed, not before. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.errors import Refused
from broker.sendrequest import MESSAGE_ILLEGAL, TRANSACTION_BITS, Outgoing
from broker.topics import PERM_READ, PERM_WRITE, TopicConfig
from broker.transactions.conversion import (
    HALF_TOPIC,
    OP_TOPIC,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRAN_MSG,
    half_properties,
)
from store.dispatch import SCHEDULE_TOPIC
from store.properties import DELAY, decode_properties

WAIT = "WAIT"
_NUMBER = re.compile(r"\s*[+-]?\d{1,9}\s*")


def internal_topics(levels_ms: Sequence[int]) -> list[TopicConfig]:
    """The broker's own topics: in no table, the same on all replicas."""
    counts = {SCHEDULE_TOPIC: len(levels_ms), HALF_TOPIC: 1, OP_TOPIC: 1}
    return [TopicConfig(name, n, n, PERM_READ | PERM_WRITE) for name, n in counts.items()]


def park(message: Outgoing, levels_ms: Sequence[int]) -> Outgoing:
    """What is stored of a message that a client sends; the message itself if that is nothing
    else. Its topic and queue are chosen and there. Raises Refused."""
    properties = decode_properties(message.properties)
    if properties.get(TRAN_MSG, "").lower() == "true":
        return half_message(message, properties)
    if message.sys_flag & TRANSACTION_BITS:
        raise Refused(
            MESSAGE_ILLEGAL,
            f"sysFlag {message.sys_flag} speaks of a transaction, and property {TRAN_MSG} does "
            "not; the message was not stored",
        )
    return delayed(message, properties, levels_ms)


def half_message(message: Outgoing, properties: dict[str, str]) -> Outgoing:
    """The half of a transactional message: of `message`, which was meant for its topic and queue
    and has these properties. Raises Refused."""
    return replace(
        message,
        topic=HALF_TOPIC,
        queue_id=0,
        properties=joined(half_properties(properties, message.topic, message.queue_id)),
        sys_flag=message.sys_flag & ~TRANSACTION_BITS,
    )


def delayed(message: Outgoing, properties: dict[str, str], levels_ms: Sequence[int]) -> Outgoing:
    """The message as it waits for its delivery, if its property DELAY names a level; one above
    the last counts as the last. Raises Refused."""
    text = properties.get(DELAY, "0")
    if _NUMBER.fullmatch(text) is None:
        raise Refused(
            MESSAGE_ILLEGAL, f"property {DELAY}={text} is no number; the message was not stored"
        )
    level = min(int(text), len(levels_ms))
    if level <= 0:
        return message
    return replace(
        message,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=joined(
            properties
            | {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
        ),
    )


def delivered(message: Outgoing) -> Outgoing:
    """A delayed message as it goes to where it was sent to. Its properties only become fewer: what
    could be parked can be delivered. Raises ValueError if it does not say where."""
    properties = decode_properties(message.properties)
    topic, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdecimal():
        raise ValueError(f"REAL_TOPIC={topic!r}, REAL_QID={queue_id!r}")
    properties.pop(DELAY, None)
    if WAIT in properties:
        properties[WAIT] = "false"
    return replace(
        message,
        topic=topic,
        queue_id=int(queue_id),
        properties=joined(properties),
        anyhow=True,
    )


def joined(properties: Mapping[str, str]) -> bytes:
    """What `decode_properties` was given, with a pair more or less. Its length is checked where it
    becomes a record."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()
