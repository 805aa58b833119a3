"""The control's comparison of a history (docs/history.md) with what a group holds.

Operations are taken one after another: the planted histories have none that overlap.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.audit.control import Judge, Record

Event = dict[str, Any]


def compare(judge: Judge) -> None:
    invokes: dict[int, Event] = {}
    outcomes: dict[int, list[Event]] = defaultdict(list)
    for line in judge.lines:
        if line.get("f") == "send" and line["type"] == "invoke":
            invokes[line["op"]] = line
        elif line.get("f") == "send":
            outcomes[line["op"]].append(line)
    topics = {line["topic"] for line in invokes.values()}
    stored: dict[str, list[Record]] = defaultdict(list)
    for record in judge.visible:
        if record.topic in topics:
            stored[record.id].append(record)
    sent = {line["id"]: line for line in invokes.values()}
    judge.say("phantom", *(id for id in stored if id not in sent))
    for op in invokes.keys() | outcomes.keys():
        if op not in invokes or len(outcomes[op]) > 1:
            judge.say("history_operations", str(op))
    for op, invoke in invokes.items():
        end = (outcomes[op] or [{"type": "unknown"}])[0]
        _send(judge, invoke, end, stored[invoke["id"]])
    _order(judge, sent, outcomes, stored)
    _consumers(judge, stored)
    _registers(judge)


def _send(judge: Judge, invoke: Event, end: Event, copies: list[Record]) -> None:
    id, acknowledged = invoke["id"], end["type"] == "ok"
    if acknowledged and not copies:
        judge.say("missing", id)
    if end["type"] == "fail" and copies:
        judge.say("failed_stored", id)
    if len(copies) > end.get("attempts", len(copies)):
        judge.say("duplicate_broker", id)
    for record in copies:
        content = None if record.content is None else judge.crc(record.content)
        given = {"crc": content, "fields": record.fields, "born": record.born_ms}
        if any(name in invoke and invoke[name] != value for name, value in given.items()):
            judge.say("altered", id)
    if acknowledged and copies:
        positions = {(r.queue, r.offset, f"{r.position:016X}") for r in copies}
        told = end.get("msg_id", "")[-16:]
        if not any((end["queue"], end["offset"], told or at) == (queue, offset, at)
                   for queue, offset, at in positions):  # fmt: skip
            judge.say("misplaced", id)


def _order(
    judge: Judge,
    sent: dict[str, Event],
    outcomes: dict[int, list[Event]],
    stored: dict[str, list[Record]],
) -> None:
    last: dict[str, int] = {}
    for id, copies in sorted(
        stored.items(), key=lambda item: item[1][0].position if item[1] else 0
    ):
        invoke = sent.get(id)
        if not copies or not invoke or not invoke["order"]:
            continue
        if [end["type"] for end in outcomes[invoke["op"]]] != ["ok"]:
            continue
        if invoke["seq"] <= last.get(invoke["order"], -1):
            judge.say("order", id)
        last[invoke["order"]] = max(invoke["seq"], last.get(invoke["order"], -1))


def _consumers(judge: Judge, stored: dict[str, list[Record]]) -> None:
    there = {(r.topic, r.queue, r.offset): r.id for rows in stored.values() for r in rows}
    consumed: set[tuple[str, int, int]] = set()
    drained = set()
    for line in judge.lines:
        if line.get("f") == "consume":
            for offset, id in zip(line["offsets"], line["ids"], strict=True):
                key = (line["topic"], line["queue"], offset)
                consumed.add(key)
                if there.get(key) != id:
                    judge.say("consumed_not_stored", f"'offset': {offset}")
        elif line.get("f") == "drain" and line["complete"]:
            drained.add(line["topic"])
        elif line.get("f") == "commit":
            end = judge.ends.get((line["topic"], line["queue"]), 0)
            if line["offset"] > end:
                judge.say("committed_beyond", str(line["offset"]))
    judge.say("not_consumed", *(str(k) for k in there if k[0] in drained and k not in consumed))


def _registers(judge: Judge) -> None:
    """The last value of each offset and of each object, the leaders of each term, the logs."""
    offsets: dict[tuple[str, int], int] = {}
    versions: dict[str, int] = {}
    leaders: dict[int, set[str]] = defaultdict(set)
    for line in judge.lines:
        kind, done = line.get("f"), line["type"] == "ok"
        if kind in ("commit", "fetch") and done:
            key = line["topic"], line["queue"]
            before = offsets.setdefault(key, line["offset"])
            if kind == "fetch" and line["offset"] != before:
                judge.say("linearizable_consumer_offsets", f"{key[0]}-{key[1]}")
            elif line["offset"] < before:
                judge.say("consumer_offsets_going_back", str(key))
            offsets[key] = line["offset"] if kind == "commit" else before
        elif kind == "meta_write" and done:
            versions[line["name"]] = line["version"]
        elif kind == "meta_read" and done and versions.get(line["name"]) != line["version"]:
            judge.say("linearizable_metadata", f"topic {line['name']}")
        elif kind == "leader":
            leaders[line["term"]].add(line["node"])
        elif kind == "log_line":
            judge.say("failures_in_server_logs", line["line"])
    for term, nodes in leaders.items():
        if len(nodes) > 1:
            judge.say("two_leaders_in_one_term", f"term {term}: {', '.join(sorted(nodes))}")
