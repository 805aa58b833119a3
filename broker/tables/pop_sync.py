"""Copies consumer offsets and popped messages from a classic master to its slaves: `tell` makes the
body of its answer (request 43), `take` loads it. Pure.

Every pop moves the group's offset. So a slave that had the offsets alone would lose what is in
flight once it is the master. The answer has the table of pops as of the same moment, under a key
that Apache's slaves leave alone.

A table that does not fit one answer is left out. Then offsets are told as if nothing had been
popped from the first message in flight on: all from there on comes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from raftmq.remoting.codec import FRAME_SIZE_BYTES_MAX

from .offsets import OffsetTable
from .pops import PopTable

KEY = "popTable"
ANSWER_BYTES_MAX = FRAME_SIZE_BYTES_MAX - (64 << 10)  # the header has room


def tell(
    offsets: OffsetTable,
    pops: PopTable,
    more: Mapping[str, object],
    bytes_max: int = ANSWER_BYTES_MAX,
) -> bytes:
    """Return the answer's body, of copies made at the same moment, with `more` keys; the copy of
    the offsets may be changed."""
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


def take(
    offsets: OffsetTable,
    pops: PopTable,
    value: Mapping[str, Any],
    refused: dict[str, str] | None = None,
) -> None:
    """Take the master's offsets, and its pops in place of one's own. Where it tells nothing of pops
    (an Apache broker, an older one) nothing is in flight; the groups' modes stay. Nothing is
    changed when that raises. `refused`: see `entries_of`."""
    told = PopTable()
    told.load(value.get(KEY) or {**pops.to_json(), "queues": []}, pops.applied_index)
    offsets.merge(value, refused)
    pops.replace_by(told)
