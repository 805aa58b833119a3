"""Messages that are due reach a consumer soon, once all or a majority of brokers are healed. Pure.

Due is a message from its acknowledgement on, or its commit's; one that waits when its time is over;
one that was given back when its delay is. What was due before is from the healing on. Judged from
the history. What never came is the harness's to find.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from raftmq.chaos.history.deferred_events import COMMIT

WITHIN_S = 10.0  # twice the consumers' rebalance interval; the slowest sound worlds take 3 s
ORDERLY_WITHIN_S = 60.0 + WITHIN_S  # the lock of a consumer whose farewell was lost ends by itself
AGAIN_S = 1.0  # the first delay level (load.SETTINGS)
NS_PER_S = 1_000_000_000

Record = Mapping[str, Any]


def late(records: Iterable[Record], healed_ns: int, more_s: float = 0.0) -> list[str]:
    """Return in words what was delivered later than WITHIN_S after it was due. `more_s`: so much
    longer may anything take."""
    result: list[str] = []
    due_ns: dict[str, int] = {}
    for moment_ns, name, within_s in sorted(_moments(records), key=itemgetter(0)):
        if within_s is None:
            due_ns[name] = max(moment_ns, healed_ns)
        elif (since_ns := due_ns.pop(name, moment_ns)) < moment_ns - (within_s + more_s) * NS_PER_S:
            result.append(f"{name} came {(moment_ns - since_ns) / NS_PER_S:.1f} s late")
    return result


def _moments(records: Iterable[Record]) -> Iterator[tuple[int, str, float | None]]:
    """Yield (ns, id, None) when a message is due; (ns, id, how late it may be) when it comes."""
    sends: dict[int, str] = {}
    come: set[str] = set()  # a message may come before its send is answered
    for record in records:
        kind, what, t_ns = record["type"], record.get("f"), record.get("t_ns", 0)
        if what == "send":
            if kind == "invoke":
                sends[record["op"]] = record["id"]
            elif kind == "ok" and sends[record["op"]] not in come:
                yield t_ns, sends[record["op"]], None
        elif what == "post" and kind == "ok" and record["work"] != "transactions":
            if record["id"] not in come:
                yield t_ns + record["delay_ms"] * 1_000_000, record["id"], None
        elif what == "decide" and kind == "ok" and record["decision"] == COMMIT:
            if record["id"] not in come:
                yield t_ns, record["id"], None
        elif what == "give_back" and kind == "ok":
            again_s = 0.0 if record["dead"] else AGAIN_S
            yield t_ns + int(again_s * NS_PER_S), record["id"], None
        elif kind == "ok" and what in ("consume", "deliver", "pop"):
            for name in record.get("ids", (record.get("id"),)):
                come.add(name)
                yield t_ns, name, ORDERLY_WITHIN_S if record.get("orderly") else WITHIN_S
