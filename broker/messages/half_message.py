"""The forms of a transactional message: send, half message, message, op record and check. Pure.

Property names and topics are Apache's, so that a store of classic mode can be opened by either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from raftmq.remoting.codes import ResponseCode
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

from ..errors import Refused
from .send_request import (
    PROPERTIES_SIZE_MAX,
    Outgoing,
    as_stored,
    fitting,
)

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"  # its offsets in the two topics tell which halves have ended for good

TRAN_MSG = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
ROOT = "TRAN_PREPARED_QUEUE_OFFSET"
FIRST_STORED = "TRAN_FIRST_STORED_MS"  # when the root was stored
OURS = (ROOT, FIRST_STORED)  # of a half that was stored again; Apache has others, or none
NOT_SENT = frozenset((*OURS, CHECK_TIMES))  # what clients send under these names is dropped
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
IMMUNITY_S_MAX = 86_400
OP_TAG = "d"
_OP_HALVES_MAX = 10_000  # one op record of Apache's 5.x names many


class Root(NamedTuple):
    """A transaction: where its half was first stored, and what stays the same in all of them."""

    offset: int
    topic: str  # that it is for
    group: str  # the producer group
    unique_key: str


@dataclass(frozen=True, slots=True)
class Half:
    """One stored half message."""

    offset: int
    root: Root
    position: int  # in the CommitLog
    due_ms: int  # when it is to be checked next
    checks: int  # how often it was checked


def half_properties(properties: Mapping[str, str], topic: str, queue_id: int) -> dict[str, str]:
    """Return a half's properties. `queue_id`: the queue chosen for it. Raises Refused.

    A client that copies a message, as bridges do, may send what a broker noted in a half when it
    was stored again. This half was not: it would be taken for that other one."""
    if not properties.get(PRODUCER_GROUP):
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a transactional message without {PRODUCER_GROUP}, its producer group",
        )
    return {
        **{name: value for name, value in properties.items() if name not in NOT_SENT},
        TRANSACTION_ID: properties[UNIQ_KEY],
        REAL_TOPIC: topic,
        REAL_QUEUE_ID: str(queue_id),
    }


def half_of(record: MessageRecord, time_out_ms: int, interval_ms: int, now_ms: int) -> Half:
    """Return the Half for a stored record. It is due `time_out_ms` after it was stored, or as much
    later as its sender wishes; after a check, `interval_ms` after that. Times are the brokers' (a
    record's store time): clients' clocks are not used. Store times may be ahead of `now_ms`, this
    leader's time, for as long as an earlier leader's clock was; it waits no longer for that."""
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
    """Return the transaction that a half belongs to."""
    properties = decode_properties(half.properties)
    return Root(
        _number(properties.get(ROOT), half.queue_offset),
        properties.get(REAL_TOPIC, ""),
        properties.get(PRODUCER_GROUP, ""),
        properties.get(UNIQ_KEY, ""),
    )


def committed(half: MessageRecord) -> Outgoing:
    """Return the message that a half becomes. Raises Refused for a half that names no topic.

    It keeps Apache's properties, as with Apache's broker: by TRAN_MSG clients know that it was
    transactional."""
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
    """Return the op record that marks the half at this queue offset as ended. `key`: its UNIQ_KEY,
    if the op is to be found by it: that of a half which was given up and is committed."""
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
    """Return the halves that an op record names: one (4.x, and here), or a list `12,13,` (5.x).
    Parts that are no number are ignored."""
    texts = op.body.decode("ascii", "replace").split(",")[:_OP_HALVES_MAX]
    return [int(text) for text in texts if text.isdecimal()]


def stored_again(half: MessageRecord, root: int, checks: int) -> Outgoing | None:
    """Return the half as it is stored again at the end of its queue; None if its properties have no
    room for what is noted then."""
    properties = decode_properties(half.properties)
    properties[CHECK_TIMES] = str(checks)
    properties[ROOT] = str(root)
    properties.setdefault(FIRST_STORED, str(half.store_timestamp_ms))
    stored = joined(properties)
    if len(stored) > PROPERTIES_SIZE_MAX:
        return None
    return replace(as_stored(half), properties=stored)


def given_up(half: MessageRecord) -> Outgoing:
    """Return the half for the topic of those that nobody ended."""
    return replace(as_stored(half), topic=GIVEN_UP_TOPIC)


def first_stored_ms(half: MessageRecord) -> int:
    """Return when the half's root was stored, in ms."""
    properties = decode_properties(half.properties)
    return _number(properties.get(FIRST_STORED), half.store_timestamp_ms)


def check_body(half: MessageRecord) -> bytes:
    """Return the body of a check (39): the half as a record of its real topic. Raises Refused."""
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
        raise Refused(ResponseCode.SYSTEM_ERROR, "the half message does not say where it belongs")
    return topic, int(queue_id)


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else otherwise
