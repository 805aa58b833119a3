"""The next step for a message whose consumption failed: a retry later, or a dead letter. Pure.

A consumer gives it back (CONSUMER_SEND_MSG_BACK, broker.delayed.send_back) or, if that fails, sends
it to its group's retry topic itself. A message that failed for the nth time waits on delay level 2
+ n, and becomes a dead letter in `%DLQ%group` once it was retried as often as the group allows. The
properties are Apache's: RETRY_TOPIC is the topic it was originally sent to, where consumers see it
again, ORIGIN_MESSAGE_ID the offsetMsgId that it had there.
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
FIRST_LEVEL = 3  # for a message that failed for the first time
DLQ_QUEUE_COUNT = 1
GROUP_NOT_EXIST = 26


def dead_letter_topic(group: str) -> TopicConfig:
    return TopicConfig(DLQ_PREFIX + group, DLQ_QUEUE_COUNT, DLQ_QUEUE_COUNT, PERM_READ | PERM_WRITE)


def record_origin(properties: dict[str, str], topic: str, origin: str = "") -> None:
    """Note in RETRY_TOPIC where a message of `topic` that is to be retried was sent to: `origin`,
    by default the topic. What another retry noted stays; in a topic that is none, the property
    came with the sender's others, from a message that he copied."""
    if RETRY_TOPIC not in properties or not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        properties[RETRY_TOPIC] = origin or topic


def is_exhausted(record: MessageRecord, delay_level: int, times_max: int) -> bool:
    """Return whether a message given back is a dead letter; a negative `delay_level` demands it."""
    return delay_level < 0 or record.reconsume_times >= times_max


def given_back(
    record: MessageRecord,
    group: str,
    queue_count: int,
    delay_level: int,
    times_max: int,
    levels_ms: Sequence[int],
) -> Outgoing:
    """Return the message to store for one that a consumer of `group` gives back. `delay_level` 0:
    the level grows with the failures. A retry waits in the delayed messages' topic for one of the
    `queue_count` queues of the group's retry topic."""
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
        prepared_offset=0,  # of its half, if it was transactional: this copy came of none
    )
    return message if dead else delayed(message, properties, levels_ms)


def group_of(retry_topic: str, groups: GroupTable, *, may_be_made: bool) -> SubscriptionGroup:
    """Return the group of a retry topic; a missing one that may be created is a default one. Raises
    Refused."""
    name = retry_topic.removeprefix(RETRY_PREFIX)
    group = groups.get(name)
    if group is None and not may_be_made:
        raise Refused(GROUP_NOT_EXIST, f"subscription group [{name}] does not exist")
    return group or SubscriptionGroup(name)


def retry_or_dead_letter(
    ext: Mapping[str, str], group: SubscriptionGroup, holds_locks: Callable[[str], bool]
) -> Mapping[str, str]:
    """Return a send to the group's retry topic as it is stored: itself, or a dead letter if it was
    retried too often. V2 names; raises HeaderError.

    A consumer in order retries where it is, and sends what it gives up, when its times are no more
    than the most: so, if the group holds locks (`holds_locks(group)`), what says the most is a dead
    letter. Others than consumers do not say it."""
    times = integer_or(ext, "j", 0)
    times_max = integer_or(ext, "l", group.retry_times_max)
    ext = _of_group(ext, group.name)
    given_up = "l" in ext and holds_locks(group.name)
    if times <= times_max and not given_up:
        return ext
    properties = decode_properties(ext.get("i") or "")
    properties[DELAY] = "-1"  # Apache's mark of what was given up
    text = joined(properties).decode()
    return {**ext, "b": DLQ_PREFIX + group.name, "e": "0", "i": text}


def _of_group(ext: Mapping[str, str], group: str) -> Mapping[str, str]:
    """Return the send, or another one if it says that it is the retry of another group's pop."""
    text = ext.get("i") or ""
    if ORIGIN_GROUP not in text and FIRST_POP_TIME not in text:
        return ext
    properties = decode_properties(text)
    before = dict(properties)
    _name_group(properties, group)
    return ext if properties == before else {**ext, "i": joined(properties).decode()}


def _name_group(properties: dict[str, str], group: str) -> None:
    """Have an ordinary retry not pass for that of another group's pop (ownretries): it may come
    from that group's dead letters."""
    if ORIGIN_GROUP in properties:
        properties[ORIGIN_GROUP] = group
    else:
        properties.pop(FIRST_POP_TIME, None)
