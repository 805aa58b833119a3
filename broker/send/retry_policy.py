"""Retries and dead letters for messages that failed to be consumed.

A consumer returns the message (CONSUMER_SEND_MSG_BACK, broker.delayed.send_back). If that fails, it
sends the message to its group's retry topic. After the nth failure the message waits on delay level
2 + n. It becomes a dead letter in `%DLQ%group` after the group's maximum of retries. The properties
are Apache's. RETRY_TOPIC is the original topic, under which consumers receive it; ORIGIN_MESSAGE_ID
is its original offsetMsgId.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from raftmq.remoting.fields import integer_or
from raftmq.remoting.pop_headers import FIRST_POP_TIME, ORIGIN_GROUP
from raftmq.store.properties import DELAY, WAIT, decode_properties, joined
from raftmq.store.record import MessageRecord, offset_message_id

from ..errors import Refused
from ..messages.send_request import Outgoing, as_stored
from ..tables.groups import GroupTable, SubscriptionGroup
from ..tables.topics import DLQ_PREFIX, PERM_READ, PERM_WRITE, RETRY_PREFIX, TopicConfig
from .topic_redirect import delayed

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
FIRST_LEVEL = 3  # after the first failure
DLQ_QUEUE_COUNT = 1
GROUP_NOT_EXIST = 26


def dead_letter_topic(group: str) -> TopicConfig:
    return TopicConfig(DLQ_PREFIX + group, DLQ_QUEUE_COUNT, DLQ_QUEUE_COUNT, PERM_READ | PERM_WRITE)


def record_origin(properties: dict[str, str], topic: str, origin: str = "") -> None:
    """Set RETRY_TOPIC to `origin`, or to `topic`, before a retry. A value set by an earlier retry
    is kept. In any topic that is not for retries, a sender copied the property from a message; it
    is overwritten."""
    if RETRY_TOPIC not in properties or not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        properties[RETRY_TOPIC] = origin or topic


def is_exhausted(record: MessageRecord, delay_level: int, times_max: int) -> bool:
    """Return True if a message becomes a dead letter. A negative `delay_level` forces it."""
    return delay_level < 0 or record.reconsume_times >= times_max


def given_back(
    record: MessageRecord,
    group: str,
    queue_count: int,
    delay_level: int,
    times_max: int,
    levels_ms: Sequence[int],
) -> Outgoing:
    """Return the retry or dead letter of a message that a consumer of `group` returned. With
    `delay_level` 0 the level grows with the failures. A retry is delayed for a queue of the group's
    retry topic, which has `queue_count` queues."""
    message = as_stored(record)
    properties = decode_properties(record.properties)
    origin = properties.get(ORIGIN_MESSAGE_ID, "").strip() or offset_message_id(
        record.store_host, record.physical_offset
    )
    record_origin(properties, record.topic)
    properties |= {ORIGIN_MESSAGE_ID: origin, WAIT: "false"}
    _name_group(properties, group)
    dead = is_exhausted(record, delay_level, times_max)
    if dead:
        properties |= {
            DELAY: "0",
            DLQ_ORIGIN_TOPIC: properties[RETRY_TOPIC],
            DLQ_ORIGIN_MESSAGE_ID: origin,
        }
    else:
        properties[DELAY] = str(delay_level or FIRST_LEVEL + record.reconsume_times)
    message = replace(
        message,
        topic=(DLQ_PREFIX if dead else RETRY_PREFIX) + group,
        queue_id=0 if dead else record.physical_offset % queue_count,
        properties=joined(properties),
        reconsume=record.reconsume_times + 1,
        prepared_offset=0,  # no half message of this copy
    )
    return message if dead else delayed(message, properties, levels_ms)


def group_of(retry_topic: str, groups: GroupTable, *, may_be_made: bool) -> SubscriptionGroup:
    """Return the group of a retry topic, by default if it may be created. Raises Refused."""
    name = retry_topic.removeprefix(RETRY_PREFIX)
    group = groups.get(name)
    if group is None and not may_be_made:
        raise Refused(GROUP_NOT_EXIST, f"subscription group [{name}] does not exist")
    return group or SubscriptionGroup(name)


def retry_or_dead_letter(
    ext: Mapping[str, str], group: SubscriptionGroup, holds_locks: Callable[[str], bool]
) -> Mapping[str, str]:
    """Return a send to the group's retry topic as it is stored, as a dead letter after too many
    retries. Uses V2 names. Raises HeaderError.

    An orderly consumer retries locally, and returns a message by a send only after the last retry.
    So if the group holds queue locks (`holds_locks(group)`), a send with the consumer's maximum is
    a dead letter. Only consumers set the maximum."""
    times = integer_or(ext, "j", 0)
    times_max = integer_or(ext, "l", group.retry_times_max)
    ext = _of_group(ext, group.name)
    given_up = "l" in ext and holds_locks(group.name)
    if times <= times_max and not given_up:
        return ext
    properties = decode_properties(ext.get("i") or "")
    properties[DELAY] = "-1"  # Apache's mark of dead letters
    text = joined(properties).decode()
    return {**ext, "b": DLQ_PREFIX + group.name, "e": "0", "i": text}


def _of_group(ext: Mapping[str, str], group: str) -> Mapping[str, str]:
    """Return the send, changed if its properties claim a pop retry of another group."""
    text = ext.get("i") or ""
    if ORIGIN_GROUP not in text and FIRST_POP_TIME not in text:
        return ext
    properties = decode_properties(text)
    before = dict(properties)
    _name_group(properties, group)
    return ext if properties == before else {**ext, "i": joined(properties).decode()}


def _name_group(properties: dict[str, str], group: str) -> None:
    """Prevent an ordinary retry from looking like a pop retry of another group (consume.filters).
    Dead letters of that group may be the source."""
    if ORIGIN_GROUP in properties:
        properties[ORIGIN_GROUP] = group
    else:
        properties.pop(FIRST_POP_TIME, None)
