"""The history of a run (JSON Lines, docs/history.md) as tables.

Each line is an event. A send is an invoke and at most one outcome with the same `op`. A send
without an outcome counts as unknown, with any number of attempts. A history with an invalid line,
or without its end, is refused: its gaps would accuse brokers.
"""

import mmap
import re
from pathlib import Path

import pyarrow as pa

from ..engine import columns as F
from ..engine.columns import Column
from ..engine.frames import CORRUPT, Engine, Frame

END = re.compile(rb'"f":\s*"end"')
CRC_BITS = 0x7FFFFFFF  # brokers store 31 bits
_FIELDS = {
    pa.string(): "type f p broker id topic order msg_id group status",
    pa.int64(): "op t_ns seq crc fields born offset first last",
    pa.int32(): "queue attempts",
    pa.bool_(): "complete once",
    pa.list_(pa.int64()): "offsets",
    pa.list_(pa.string()): "ids",
}
EVENT_SCHEMA = pa.schema(
    [
        *((name, kind) for kind, names in _FIELDS.items() for name in names.split()),
        (CORRUPT, pa.string()),
    ]
)
OUTCOMES = ("ok", "fail", "unknown")
SEND_OK = "SEND_OK"
# Outcomes that the audit adds: WEAK for acknowledgements with less than SEND_OK
# (FLUSH_DISK_TIMEOUT, …), and ELSEWHERE for acknowledgements of a broker group that is not audited.
WEAK, ELSEWHERE = "weak", "elsewhere"


class HistoryUnfit(Exception):
    """The history cannot support a verdict; the text gives the reason."""


def read_events(engine: Engine, path: str) -> Frame:
    """Read every event of the file as EVENT_SCHEMA; invalid lines have CORRUPT set."""
    return engine.lines(path, EVENT_SCHEMA)


def no_events(engine: Engine) -> Frame:
    return engine.table([], EVENT_SCHEMA)


def refuse_interrupted(path: str) -> None:
    """Raise HistoryUnfit unless the history has its event `end`. Without it the writer was killed,
    and what is missing would look like messages that nobody sent. Raises OSError."""
    if not Path(path).stat().st_size:
        raise HistoryUnfit(f"the history {path} is empty")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if END.search(content):
            return
        number = content[:].count(b"\n")
    raise HistoryUnfit(
        f"the history {path} has no event `end` after line {number}: the run was interrupted, and"
        " all later events are missing"
    )


def refuse_invalid(events: Frame, path: str) -> None:
    """Raise HistoryUnfit if a line is no event."""
    rows = events.where(F.col(CORRUPT).isNotNull()).limit(1).collect()
    if rows:
        raise HistoryUnfit(f"the history {invalid_line(path, rows[0][CORRUPT])} is no event")


def invalid_line(path: str, text: str) -> str:
    """Return path, number and start of the line of a file that has this text."""
    with open(path, "rb") as lines:
        numbers = (number for number, line in enumerate(lines, 1) if line.strip() == text.encode())
        return f"{path}:{next(numbers, 0)}: {text[:200]!r}"


def of_group(group: str | None) -> Column:
    """Select the events of this broker group. Events of other groups name a different broker."""
    broker = F.coalesce("broker", F.lit(""))
    return F.lit(True) if group is None else broker.isin("", group)


def sends(events: Frame, group: str | None = None) -> Frame:
    """Return a row per send of any topic, as seen by `group` (None if there is only one).

    Columns: op, id (binary, see `binary_id`), id_text, topic, order, seq, crc, fields, born,
    outcome (also WEAK, ELSEWHERE), attempts (null for any number), ack_queue, ack_offset,
    ack_position (null if the message id has none), invokes and outcomes (1 and at most 1 in a valid
    history).
    """
    invoke = F.col("type") == "invoke"
    outcome = F.col("type").isin(*OUTCOMES)

    def at_invoke(name: str) -> Column:
        return F.max(F.when(invoke, F.col(name))).alias(name)

    def at_outcome(name: str, alias: str) -> Column:
        return F.max(F.when(outcome, F.col(name))).alias(alias)

    rows = (
        events.where(F.col("f") == "send")
        .groupBy("op")
        .agg(
            *map(at_invoke, ("id", "topic", "order", "seq", "crc", "fields", "born", "once")),
            at_outcome("type", "outcome"),
            at_outcome("attempts", "attempts"),
            at_outcome("queue", "ack_queue"),
            at_outcome("offset", "ack_offset"),
            at_outcome("msg_id", "msg_id"),
            at_outcome("status", "status"),
            at_outcome("broker", "broker"),
            F.count(F.when(invoke, 1)).alias("invokes"),
            F.count(F.when(outcome, 1)).alias("outcomes"),
        )
    )
    acknowledged = F.col("outcome") == "ok"
    known_attempts = F.when(acknowledged, F.coalesce("attempts", F.lit(1)))
    # An idempotent send (`once`) may be stored only once, however often it was tried.
    one = F.when(F.col("attempts").isNotNull(), F.least("attempts", F.lit(1)))
    judged = (
        F.when(acknowledged & ~of_group(group), ELSEWHERE)
        .when(acknowledged & (F.coalesce("status", F.lit(SEND_OK)) != SEND_OK), WEAK)
        .otherwise(F.coalesce("outcome", F.lit("unknown")))
    )
    return (
        rows.withColumn("attempts", known_attempts.otherwise(F.col("attempts")))
        .withColumn("attempts", F.when(F.col("once"), one).otherwise(F.col("attempts")))
        .withColumn("outcome", judged)
        .withColumn("crc", F.col("crc").bitwiseAND(CRC_BITS))
        .withColumn("id_text", F.col("id"))
        .withColumn("id", binary_id("id"))
        .withColumn("ack_position", _position_in_message_id("msg_id"))
        .drop("msg_id", "status", "broker", "once")
    )


def binary_id(name: str) -> Column:
    """Return a UNIQ_KEY as binary, which groups faster; null without a key. Hex digits are decoded,
    other text becomes UTF-8."""
    column = F.col(name)
    decoded = F.when(column.rlike("^([0-9A-F]{2})+$"), F.unhex(column))
    return F.when(F.length(column) > 0, decoded.otherwise(column.cast("binary")))


def _position_in_message_id(name: str) -> Column:
    """Return the position at the end of an offsetMsgId; null for other ids, such as lists."""
    column = F.col(name)
    digits = F.conv(F.substring(column, -16, 16), 16, 10).cast("long")
    return F.when(column.rlike("^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})$"), digits)
