"""The suite, at once and record by record, on random runs with random damage."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raftmq.chaos.checks.suite import Suite, check_all
from raftmq.chaos.checks.verdict import Check, Verdict, merge
from raftmq.chaos.history.events import HistoryError
from tests.chaos.builder import HistoryBuilder, clean
from tests.chaos.checks.judging import (
    BROKER_MADE,
    LOST,
    METADATA,
    OFFSETS,
    PHANTOMS,
    POSITIONS,
    QUEUE_ORDER,
    REPLICAS,
    suite_of,
)

SEEDS = range(25)


def random_run(rng: random.Random, count: int = 120) -> HistoryBuilder:
    """A correct run with many events, such as retries, unknown sends and take-overs."""
    builder = HistoryBuilder()
    stored: list[list[str]] = [[], []]
    done = [0, 0]
    builder.leader("n0", 1, "broker-a")
    for number in range(count):
        queue = rng.randrange(2)
        name, order = f"m{number}", f"k{queue}"
        fate = rng.random()
        if fate < 0.1:
            op = builder.invoke(name, order=order, seq=number)
            kept = rng.random() < 0.5
            if kept:
                stored[queue].append(name)
            builder.add("unknown", "send", "producer-0", op, error="", attempts=1)
        elif fate < 0.15:
            builder.ended(name, "fail")
        else:
            attempts = rng.choice((1, 1, 1, 2))
            if attempts == 2 and rng.random() < 0.5:
                stored[queue].append(name)
            stored[queue].append(name)
            position = len(stored[queue]) - 1
            builder.sent(name, queue, position, order=order, seq=number, attempts=attempts)
        if rng.random() < 0.3:
            again = rng.random() < 0.2 and done[queue] > 0
            start = done[queue] - again
            batch = [(at, stored[queue][at]) for at in range(start, len(stored[queue]))]
            builder.consumed(queue, *batch)
            done[queue] = len(stored[queue])
            if rng.random() < 0.5:
                builder.committed(queue, done[queue])
                builder.fetched(queue, done[queue])
        if number % 10 == 0:
            builder.wrote(number + 1, rng.choice(("ok", "ok", "unknown")))
            builder.read(number + 1)
    for queue in range(2):
        rest = [(at, stored[queue][at]) for at in range(done[queue], len(stored[queue]))]
        if rest:
            builder.consumed(queue, *rest)
        builder.committed(queue, len(stored[queue]))
    builder.drained()
    builder.replicas(n0="ab", n1="ab")
    return builder


@pytest.mark.parametrize("seed", SEEDS)
def test_random_runs_pass_the_suite(seed: int) -> None:
    builder = random_run(random.Random(seed))
    suite = suite_of(builder.records)
    assert [c for c in suite.results() if c.verdict is not Verdict.PASS] == []
    assert suite.results() == check_all(builder.build())


def forget_a_delivery(records: list[dict[str, Any]], rng: random.Random) -> str:
    acked = {r["op"] for r in records if r.get("f") == "send" and r["type"] == "ok"}
    ids = {r["id"] for r in records if r.get("f") == "send" and r.get("op") in acked and "id" in r}
    victim = rng.choice(sorted(ids))
    for record in records:
        if record.get("f") == "consume" and victim in record["ids"]:
            kept = [p for p in zip(record["offsets"], record["ids"], strict=True) if p[1] != victim]
            record["offsets"], record["ids"] = [p[0] for p in kept], [p[1] for p in kept]
    return LOST


def rename_a_delivery(records: list[dict[str, Any]], rng: random.Random) -> str:
    batch = rng.choice([r for r in records if r.get("f") == "consume"])
    batch["ids"][rng.randrange(len(batch["ids"]))] = "ghost"
    return PHANTOMS


def move_an_acknowledgement(records: list[dict[str, Any]], rng: random.Random) -> str:
    once = [r for r in records if r.get("f") == "send" and r["type"] == "ok" and r["attempts"] == 1]
    rng.choice(once)["offset"] += 10_000
    return POSITIONS


def deliver_again_elsewhere(records: list[dict[str, Any]], rng: random.Random) -> str:
    once = [r for r in records if r.get("f") == "send" and r["type"] == "ok" and r["attempts"] == 1]
    op = rng.choice(once)["op"]
    name = next(r["id"] for r in records if r.get("op") == op and "id" in r)
    last = next(r for r in reversed(records) if r.get("f") == "consume")
    last["offsets"].append(9_999)
    last["ids"].append(name)
    return BROKER_MADE


def lower_a_fetch(records: list[dict[str, Any]], rng: random.Random) -> str:
    rng.choice([r for r in records if r.get("f") == "fetch"])["offset"] -= 1
    return OFFSETS


def lower_a_version(records: list[dict[str, Any]], rng: random.Random) -> str:
    reads = [r for r in records if r.get("f") == "meta_read" and r["type"] == "ok"]
    rng.choice(reads[1:])["version"] = None
    return METADATA


def change_a_replica(records: list[dict[str, Any]], rng: random.Random) -> str:
    compared = next(r for r in records if r.get("f") == "replicas")
    compared["parts"]["n1"]["512"] = "z"
    return REPLICAS


def answer_from_a_forgotten_end(records: list[dict[str, Any]], rng: random.Random) -> str:
    """An acknowledgement with an offset that an earlier message of the queue had."""
    oks = [r for r in records if r.get("f") == "send" and r["type"] == "ok" and r["queue"] == 0]
    later = rng.choice(oks[5:])
    later["offset"] = rng.choice(oks[: oks.index(later)])["offset"]
    return QUEUE_ORDER


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "mutate",
    [
        forget_a_delivery,
        rename_a_delivery,
        move_an_acknowledgement,
        deliver_again_elsewhere,
        lower_a_fetch,
        lower_a_version,
        change_a_replica,
        answer_from_a_forgotten_end,
    ],
)
def test_random_mutation_is_found_by_the_suite(mutate: Any, seed: int) -> None:
    rng = random.Random(seed)
    builder = random_run(rng)
    name = mutate(builder.records, rng)
    by_name = {c.name: c for c in suite_of(builder.records).results()}
    assert by_name[name].verdict is Verdict.FAIL, (seed, by_name[name])


def test_suite_results_may_be_read_at_any_time() -> None:
    builder = random_run(random.Random(5))
    suite = Suite()
    seen: set[Verdict] = set()
    for record in builder.records:
        suite.feed(record)
        seen.add(suite.verdict())
    assert seen == {Verdict.UNKNOWN, Verdict.PASS}  # never a false alarm on the way
    assert suite.results() == suite_of(builder.records).results()


def test_checks_keep_their_names_and_order() -> None:
    names = Suite().names()
    assert len(set(names)) == len(names) == 37
    result = [check.name for check in suite_of(random_run(random.Random(1)).records).results()]
    assert result == [name for name in names if name in result]


def test_metadata_only_run_has_no_message_checks() -> None:
    builder = HistoryBuilder()
    builder.wrote(1)
    builder.read(1)
    suite = suite_of(builder.records)
    assert METADATA in {check.name for check in suite.results()}
    assert suite.verdict() is Verdict.PASS
    builder.sent("a", 0, 0)  # but a run with a send is
    assert suite_of(builder.records).verdict() is Verdict.UNKNOWN


def test_verdicts_merge_fail_over_unknown_over_pass() -> None:
    def of(*verdicts: Verdict) -> Verdict:
        return merge(Check("", verdict, 0, "") for verdict in verdicts)

    assert of() is Verdict.UNKNOWN
    assert of(Verdict.PASS) is Verdict.PASS
    assert of(Verdict.PASS, Verdict.UNKNOWN) is Verdict.UNKNOWN
    assert of(Verdict.UNKNOWN, Verdict.FAIL, Verdict.PASS) is Verdict.FAIL


def test_suite_has_its_meta_line() -> None:
    assert suite_of(clean().records).meta["version"] == 1
    with pytest.raises(HistoryError, match="meta line"):
        _ = Suite().meta
