"""Redirects delayed, timer and half messages to internal topics.

If its properties or flags require it, a send uses the general path
(broker.messages.send_request.Special). `redirect` returns the message to store in an internal topic
(`internal_topics`). Its properties REAL_TOPIC and REAL_QID name the target, as in Apache's stores.
The broker's own messages (retries, committed transactions) are redirected before `SendPath.store`.

A delayed message waits in queue level - 1 of SCHEDULE_TOPIC_XXXX, with the delivery time in its
ConsumeQueue entry instead of a tags code (broker.send.frame_builder, store.dispatch). A timer
message waits in rmq_sys_wheel_timer. A transactional message is redirected again when it is
committed; its delay starts then. Retries and their dead letters are never half messages, although
clients before 4.6.1 keep the property TRAN_MSG.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raftmq.remoting.names import OPERATOR_LOG_TOPIC
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_OUT_MS, TIMER_TOPIC, timer_code
from raftmq.store.properties import DELAY, TAGS, decode_properties, joined, tags_code

from ..errors import illegal
from ..messages.half_message import (
    HALF_TOPIC,
    OP_TOPIC,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRAN_MSG,
    half_properties,
)
from ..messages.send_request import TRANSACTION_BITS, Outgoing, check_properties_size
from ..messages.timer_message import DELAY_PROPERTIES, Timing, handle_of, timed
from ..tables.topics import PERM_READ, PERM_WRITE, TopicConfig

if TYPE_CHECKING:
    from ..config import BrokerConfig

TIMER_OUT_BYTES = len(f"{TIMER_OUT_MS}\x01\x02") + 19  # of a signed int64
_NUMBER = re.compile(r"\s*[+-]?\d{1,9}\s*")


@dataclass(frozen=True, slots=True)
class Redirects:
    """Settings that decide where a message waits."""

    levels_ms: Sequence[int]
    timing: Timing
    broker_name: str

    @classmethod
    def of(
        cls, config: BrokerConfig, wall_ms: Callable[[], int], timers_waiting: Callable[[], int]
    ) -> Redirects:
        timing = Timing(
            config.timer_wheel_enable,
            config.timer_max_delay_sec * 1_000,
            config.timer_messages_max,
            wall_ms,
            timers_waiting,
        )
        return cls(config.delay_levels_ms, timing, config.broker_name)

    def handle(self, redirected: Outgoing) -> str:
        """Return the recall handle of a timer message, or ""."""
        return handle_of(redirected, self.broker_name)


def internal_topics(levels_ms: Sequence[int]) -> list[TopicConfig]:
    """Return the broker's own topics, which are in no table and equal on all replicas."""
    counts = dict.fromkeys((TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, OPERATOR_LOG_TOPIC), 1)
    counts[SCHEDULE_TOPIC] = len(levels_ms)
    return [TopicConfig(name, n, n, PERM_READ | PERM_WRITE) for name, n in counts.items()]


def entry_code(message: Outgoing) -> int:
    """Return the tags code of the ConsumeQueue entry; a delay level's is replaced later."""
    properties = decode_properties(message.properties)
    if message.topic == TIMER_TOPIC:
        return timer_code(properties)
    return tags_code(properties.get(TAGS))


def redirect(message: Outgoing, redirects: Redirects) -> Outgoing:
    """Return the message to store; its topic and queue exist. Raises Refused."""
    properties = decode_properties(message.properties)
    if properties.get(TRAN_MSG, "").lower() == "true":
        if message.reconsume > 0 and _level(properties) != 0:  # a retry of a client before 4.6.1
            message = replace(message, sys_flag=message.sys_flag & ~TRANSACTION_BITS)
            return delayed_or_timed(message, properties, redirects)
        deliver_ms = redirects.timing.deliver_ms(properties)  # rejected now, not at commit
        half = half_message(message, properties)
        if deliver_ms is not None:
            check_properties_size(len(half.properties) + TIMER_OUT_BYTES)
        return half
    if message.sys_flag & TRANSACTION_BITS:
        raise illegal(
            f"sysFlag {message.sys_flag} speaks of a transaction, and property {TRAN_MSG} does "
            "not; the message was not stored"
        )
    return delayed_or_timed(message, properties, redirects)


def delayed_or_timed(
    message: Outgoing, properties: dict[str, str], redirects: Redirects
) -> Outgoing:
    """Return the message as it waits for its level or time, if any. Raises Refused."""
    redirected = delayed(message, properties, redirects.levels_ms)
    return redirected if redirected is not message else timed(message, properties, redirects.timing)


def half_message(message: Outgoing, properties: dict[str, str]) -> Outgoing:
    """Return the half of a transactional `message` with these properties. Raises Refused."""
    return replace(
        message,
        topic=HALF_TOPIC,
        queue_id=0,
        properties=joined(half_properties(properties, message.topic, message.queue_id)),
        sys_flag=message.sys_flag & ~TRANSACTION_BITS,
    )


def delayed(message: Outgoing, properties: dict[str, str], levels_ms: Sequence[int]) -> Outgoing:
    """Return the message as it waits for DELAY's level, capped, if any. Raises Refused."""
    level = min(_level(properties), len(levels_ms))
    if level <= 0:
        return message
    return replace(
        message,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=joined(
            {name: value for name, value in properties.items() if name not in DELAY_PROPERTIES}
            | {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
        ),
    )


def _level(properties: dict[str, str]) -> int:
    text = properties.get(DELAY, "0")
    if _NUMBER.fullmatch(text) is None:
        raise illegal(f"property {DELAY}={text} is no number; the message was not stored")
    return int(text)


def delivered(message: Outgoing) -> Outgoing:
    """Return a delayed or timer message for its target. It keeps its properties as in Apache's
    broker, so it fits a record again. Raises ValueError if it names no target."""
    properties = decode_properties(message.properties)
    topic, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdecimal():
        raise ValueError(f"REAL_TOPIC={topic!r}, REAL_QID={queue_id!r}")
    return replace(message, topic=topic, queue_id=int(queue_id), force=True)
