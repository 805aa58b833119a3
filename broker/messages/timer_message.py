"""Forms of a timer message, as sent, waiting, and delivered.

A send sets the delivery time by one of three properties. The first in this order applies, and a
delay level (DELAY) precedes them all:

    TIMER_DELAY_SEC   seconds from when the broker has it
    TIMER_DELAY_MS    milliseconds from then
    TIMER_DELIVER_MS  a time, in ms since the epoch

The message waits in the only queue of rmq_sys_wheel_timer. REAL_TOPIC and REAL_QID name its target.
TIMER_OUT_MS is its slot, the millisecond before its time; it is due when the slot is over, so never
early. Its ConsumeQueue entry holds TIMER_OUT_MS instead of a tags code
(store.dispatch.timer_code).

A message with TIMER_DEL_UNIQKEY recalls the message with that UNIQ_KEY, topic and slot. It waits in
the same way and is dropped when due. Names, layout and rules are those of Apache's 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from raftmq.remoting.recall_handle import RecallHandle
from raftmq.store.dispatch import TIMER_DEL_UNIQKEY, TIMER_OUT_MS, TIMER_TOPIC
from raftmq.store.properties import TAGS, UNIQ_KEY, decode_properties, joined

from ..errors import busy, illegal, rejected
from ..tables.topics import RETRY_PREFIX
from .half_message import PRODUCER_GROUP, REAL_QUEUE_ID, REAL_TOPIC
from .send_request import Outgoing, fitting

TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
DELAY_PROPERTIES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
RECALL_TAG = "_RECALL_TAG_"
_NUMBER = re.compile(r"[+-]?\d{1,18}")


@dataclass(slots=True)
class Timing:
    """Limits that decide on timer messages. `waiting()` counts those in broker.delayed.timers."""

    enabled: bool
    delay_ms_max: int
    count_max: int
    wall_ms: Callable[[], int]
    waiting: Callable[[], int]

    def deliver_ms(self, properties: dict[str, str]) -> int | None:
        """Return the delivery time of these properties, or None for now. Raises Refused."""
        name = next((name for name in DELAY_PROPERTIES if name in properties), None)
        if name is None or TIMER_OUT_MS in properties:  # already delivered once
            return None
        if not self.enabled:
            raise rejected(
                f"property {name}: this broker does not offer timer messages (timerWheelEnable="
                "false); the message was not stored"
            )
        text = properties[name]
        if _NUMBER.fullmatch(text) is None:
            raise illegal(f"property {name}={text} is no number; the message was not stored")
        now_ms, number = self.wall_ms(), int(text)
        if name == TIMER_DELAY_SEC:
            number *= 1_000
        deliver_ms = number if name == TIMER_DELIVER_MS else now_ms + number
        if deliver_ms <= now_ms:
            if TIMER_DEL_UNIQKEY in properties:
                raise illegal("the time of a message to be recalled is over")
            return None
        if deliver_ms - now_ms > self.delay_ms_max:
            raise illegal(
                f"property {name}={text}: a timer message waits for {self.delay_ms_max} ms at most "
                "(timerMaxDelaySec); the message was not stored"
            )
        return deliver_ms


def timed(message: Outgoing, properties: dict[str, str], timing: Timing) -> Outgoing:
    """Return the message as it waits, or unchanged if it is due now. Raises Refused."""
    deliver_ms = timing.deliver_ms(properties)
    if deliver_ms is None:
        return message
    waiting = timing.waiting()
    if waiting >= timing.count_max:
        raise busy(f"{waiting} timer messages wait already (timerMessagesMax)", retriable=True)
    fields = {
        TIMER_OUT_MS: str(deliver_ms - 1),
        REAL_TOPIC: message.topic,
        REAL_QUEUE_ID: str(message.queue_id),
    }
    return replace(message, topic=TIMER_TOPIC, queue_id=0, properties=joined(properties | fields))


def waiting_until(message: Outgoing, deliver_ms: int) -> Outgoing | None:
    """Return a message of a delay level as a timer message, or None if its properties become too
    long."""
    properties = decode_properties(message.properties) | {TIMER_OUT_MS: str(deliver_ms - 1)}
    stored = fitting(properties, b"")
    return replace(message, topic=TIMER_TOPIC, queue_id=0, properties=stored) if stored else None


def rolled(message: Outgoing) -> Outgoing:
    """Return a waiting message for storing it again. Its count is omitted if it does not fit."""
    properties = decode_properties(message.properties)
    times = properties.get(TIMER_ROLL_TIMES, "0")
    properties[TIMER_ROLL_TIMES] = str(int(times) + 1 if times.isdecimal() else 1)
    return replace(message, properties=fitting(properties, message.properties))


class Key(NamedTuple):
    """The message that a recall names, within a slot."""

    topic: str
    unique_key: str


def recalls(message: Outgoing) -> Key | None:
    """Return the key that a waiting message recalls, or None."""
    properties = decode_properties(message.properties)
    unique_key = properties.get(TIMER_DEL_UNIQKEY)
    return (unique_key and Key(properties.get(REAL_TOPIC, ""), unique_key)) or None


def key_of(message: Outgoing) -> Key:
    properties = decode_properties(message.properties)
    return Key(properties.get(REAL_TOPIC, ""), properties.get(UNIQ_KEY, ""))


def handle_of(redirected: Outgoing, broker_name: str) -> str:
    if redirected.topic != TIMER_TOPIC:
        return ""
    properties = decode_properties(redirected.properties)
    topic = properties[REAL_TOPIC]
    if topic.startswith(RETRY_PREFIX) or UNIQ_KEY not in properties:
        return ""
    deliver_ms = int(properties[TIMER_OUT_MS]) + 1
    return RecallHandle(topic, broker_name, deliver_ms, properties[UNIQ_KEY]).encode()


def recall_message(handle: RecallHandle, group: str, born_ms: int, born_host: bytes) -> Outgoing:
    properties = {
        TAGS: RECALL_TAG,
        TIMER_DEL_UNIQKEY: handle.unique_key,
        UNIQ_KEY: handle.unique_key,
        TIMER_DELIVER_MS: str(handle.deliver_ms),
        PRODUCER_GROUP: group,
    }
    return Outgoing(handle.topic, 0, b"0", joined(properties), born_ms, born_host)
