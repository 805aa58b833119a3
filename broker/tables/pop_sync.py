"""Consumer offsets and pops in a classic master's answer to its slaves (43).

Every pop moves the group's offset. A slave with the offsets alone would lose the messages in flight
once it is the master. So the answer has a consistent copy of the pop table, under a key that
Apache's slaves ignore.

A table too large for an answer is left out. The offsets are then lowered to the first message in
flight, and everything from there on is redelivered. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from raftmq.remoting.codec import FRAME_SIZE_BYTES_MAX

from .offsets import OffsetTable
from .pops import PopTable

KEY = "popTable"
ANSWER_BYTES_MAX = FRAME_SIZE_BYTES_MAX - (64 << 10)  # leaves space for the header


def encode(
    offsets: OffsetTable,
    pops: PopTable,
    more: Mapping[str, object],
    bytes_max: int = ANSWER_BYTES_MAX,
) -> bytes:
    """Return the answer's body from consistent copies, with `more` keys. The copy of the offsets
    may be changed."""
    table = pops.to_json()
    body = orjson.dumps({**offsets.to_json(), **more, KEY: table})
    if len(body) <= bytes_max:
        return body
    for (topic, group, queue_id), queue in pops.all_queues():
        first = queue.first_unfinished
        known = offsets.get(topic, group, queue_id)
        if first is not None and (known is None or first < known):
            offsets.offsets.setdefault((topic, group), {})[queue_id] = first
    return orjson.dumps({**offsets.to_json(), **more, KEY: {**table, "queues": []}})


def apply_answer(
    offsets: OffsetTable,
    pops: PopTable,
    value: Mapping[str, Any],
    refused: dict[str, str] | None = None,
) -> None:
    """Apply the master's offsets, and replace the pops. Without pops in the answer (an Apache
    broker) nothing is in flight; the groups' modes stay. All or nothing. `refused` is as in
    `entries_of`."""
    copy = PopTable()
    copy.load(value.get(KEY) or {**pops.to_json(), "queues": []}, pops.applied_index)
    offsets.merge(value, refused)
    pops.replace_by(copy)
