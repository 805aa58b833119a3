"""Forms of a transactional message, with op records and checks.

Property names and topics are Apache's, so that both can open a classic store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from raftmq.store.properties import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
    joined,
)
from raftmq.store.record import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    MessageRecord,
    encode_record,
    pack_host,
)

from ..errors import illegal, rejected
from .send_request import PROPERTIES_SIZE_MAX, Outgoing, as_stored, fitting

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"  # its offsets in both topics mark the ended halves

TRAN_MSG = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
ROOT = "TRAN_PREPARED_QUEUE_OFFSET"
FIRST_STORED = "TRAN_FIRST_STORED_MS"  # when the root was stored
OURS = (ROOT, FIRST_STORED)  # of a half stored again; not used by Apache
NOT_SENT = frozenset((*OURS, CHECK_TIMES))  # dropped from clients' properties
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
IMMUNITY_S_MAX = 86_400
OP_TAG = "d"
_OP_HALVES_MAX = 10_000  # an op record of Apache's 5.x names many


class Root(NamedTuple):
    """A transaction, identified by the first offset of its half and its constant fields."""

    offset: int
    topic: str  # the target
    group: str  # the producer group
    unique_key: str


@dataclass(frozen=True, slots=True)
class Half:
    """A stored half message."""

    offset: int
    root: Root
    position: int  # in the CommitLog
    due_ms: int  # time of the next check
    checks: int  # number of checks


def half_properties(properties: Mapping[str, str], topic: str, queue_id: int) -> dict[str, str]:
    """Return a half's properties. `queue_id` is the queue chosen for it. Raises Refused.

    A client that copies messages, such as a bridge, may send the properties of a rewritten half.
    They are removed, so that this half is not confused with it."""
    if not properties.get(PRODUCER_GROUP):
        raise illegal(f"a transactional message without {PRODUCER_GROUP}, its producer group")
    return {
        **{name: value for name, value in properties.items() if name not in NOT_SENT},
        TRANSACTION_ID: properties[UNIQ_KEY],
        REAL_TOPIC: topic,
        REAL_QUEUE_ID: str(queue_id),
    }


def half_of(record: MessageRecord, time_out_ms: int, interval_ms: int, now_ms: int) -> Half:
    """Return the Half of a stored record. The first check is due `time_out_ms` after its store
    time, or later if the sender set it; the next after `interval_ms`. Clients' clocks are not used.
    A store time ahead of `now_ms`, from a leader with a fast clock, counts as `now_ms`."""
    properties = decode_properties(record.properties)
    checks = _number(properties.get(CHECK_TIMES), 0)
    immunity_s = min(_number(properties.get(IMMUNITY), 0), IMMUNITY_S_MAX)
    wait_ms = interval_ms if ROOT in properties else max(time_out_ms, 1000 * immunity_s)
    return Half(
        record.queue_offset,
        root_of(record),
        record.physical_offset,
        min(record.store_timestamp_ms, now_ms) + wait_ms,
        checks,
    )


def root_of(half: MessageRecord) -> Root:
    properties = decode_properties(half.properties)
    return Root(
        _number(properties.get(ROOT), half.queue_offset),
        properties.get(REAL_TOPIC, ""),
        properties.get(PRODUCER_GROUP, ""),
        properties.get(UNIQ_KEY, ""),
    )


def committed(half: MessageRecord) -> Outgoing:
    """Return the committed message of a half. Raises Refused for a half without a topic.

    It keeps Apache's properties, because clients recognize transactional messages by TRAN_MSG."""
    properties = decode_properties(half.properties)
    topic, queue_id = _real(properties)
    for name in OURS:
        properties.pop(name, None)
    return replace(
        as_stored(half),
        topic=topic,
        queue_id=queue_id,
        properties=fitting(properties, half.properties),
        sys_flag=half.sys_flag & ~SYS_TRANSACTION_MASK | SYS_TRANSACTION_COMMIT,
        prepared_offset=half.physical_offset,
    )


def op_record(half_offset: int, half: MessageRecord, now_ms: int, key: str = "") -> Outgoing:
    """Return the op record that ends the half at this queue offset. `key` is the UNIQ_KEY of an
    expired half that is committed."""
    keys = {KEYS: key} if key else {}
    return Outgoing(
        OP_TOPIC,
        0,
        str(half_offset).encode(),
        encode_properties({TAGS: OP_TAG, **keys}),
        now_ms,
        pack_host(half.store_host),
    )


def ended_halves(op: MessageRecord) -> list[int]:
    """Return the halves of an op record, a single number (4.x and ours), or a list `12,13,` (5.x).
    Ignores invalid numbers."""
    texts = op.body.decode("ascii", "replace").split(",")[:_OP_HALVES_MAX]
    return [int(text) for text in texts if text.isdecimal()]


def stored_again(half: MessageRecord, root: int, checks: int) -> Outgoing | None:
    """Return the half for storing it again, or None if the count does not fit its properties."""
    properties = decode_properties(half.properties)
    properties[CHECK_TIMES] = str(checks)
    properties[ROOT] = str(root)
    properties.setdefault(FIRST_STORED, str(half.store_timestamp_ms))
    stored = joined(properties)
    if len(stored) > PROPERTIES_SIZE_MAX:
        return None
    return replace(as_stored(half), properties=stored)


def given_up(half: MessageRecord) -> Outgoing:
    return replace(as_stored(half), topic=GIVEN_UP_TOPIC)


def first_stored_ms(half: MessageRecord) -> int:
    properties = decode_properties(half.properties)
    return _number(properties.get(FIRST_STORED), half.store_timestamp_ms)


def check_body(half: MessageRecord) -> bytes:
    """Return the body of a check (39), the half as a record of its real topic. Raises Refused."""
    properties = decode_properties(half.properties)
    topic, queue_id = _real(properties)
    for name in OURS:
        properties.pop(name, None)
    if WAIT in properties:
        properties[WAIT] = "false"
    stored = fitting(properties, half.properties)
    return encode_record(replace(half, topic=topic, queue_id=queue_id, properties=stored))


def _real(properties: Mapping[str, str]) -> tuple[str, int]:
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdecimal():
        raise rejected("the half message does not say where it belongs")
    return topic, int(queue_id)


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else otherwise
