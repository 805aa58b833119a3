"""The sender's promises of order per key, a bounded window, and recorded outcomes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import orjson
import pytest

from raftmq.chaos.checks.suite import check_all
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.history.events import Outcome
from raftmq.chaos.history.files import HistoryWriter, read_history
from raftmq.chaos.workloads import log
from raftmq.chaos.workloads.log import (
    BACKLOG_PER_WINDOW,
    Commits,
    Consumption,
    Item,
    KeyedSender,
    random_items,
)
from raftmq.client import (
    InvalidMessage,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    SendFailed,
    SendOutcomeUnknown,
    SendResult,
    SendStatus,
)
from raftmq.store.properties import fields_sum
from tests.waiting import until

QUEUES = [MessageQueue("T", "b", number) for number in range(4)]


class StandInProducer:
    """Answers each send in a later turn of the loop, in random order, by `fate`."""

    def __init__(self, seed: int = 1, fate=None) -> None:
        self.rng = random.Random(seed)
        self.fate = fate or (lambda message: "ok")
        self.in_flight: dict[str, str] = {}  # unique key → order
        self.most = 0
        self.ends = [0, 0, 0, 0]
        self.bodies: list[bytes] = []
        self.status = SendStatus.OK

    def send_nowait(self, message: Message, callback, timeout_ms: int, queue: MessageQueue):
        fate = self.fate(message)
        if fate == "refuse":
            raise InvalidMessage("too long")
        order = message.properties["order"]
        assert not order or order not in self.in_flight.values(), "two of one key at once"
        assert message.unique_key is not None
        self.in_flight[message.unique_key] = order
        self.most = max(self.most, len(self.in_flight))
        delay = self.rng.random() * 0.003
        loop = asyncio.get_running_loop()
        loop.call_later(delay, self.answer, message, callback, queue, fate)
        return message.unique_key

    def answer(self, message: Message, callback, queue: MessageQueue, fate: str) -> None:
        assert message.unique_key is not None
        del self.in_flight[message.unique_key]
        if fate == "fail":
            return callback(None, SendFailed(14, "no leader", 2))
        if fate == "unknown":
            return callback(None, SendOutcomeUnknown(1, "silence", 3))
        offset = self.ends[queue.queue_id]
        self.ends[queue.queue_id] += 1
        self.bodies.append(message.body)
        result = SendResult(self.status, message.unique_key, f"M{offset}", queue, offset, 1)
        return callback(result, None)


def sender_of(producer: StandInProducer, writer: HistoryWriter, **options: Any) -> KeyedSender:
    return KeyedSender(cast(Producer, producer), writer, "p", QUEUES, **options)


def items(count: int, keys: int, rng: random.Random) -> Iterator[Item]:
    for number in range(count):
        order = f"k{rng.randrange(keys)}" if number % 7 else ""
        yield Item("T", b"%d" % number, f"key-{number}", order, "tag", {"order": order})


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[HistoryWriter]:
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        yield history


async def test_send_is_recorded_before_it_is_sent(writer: HistoryWriter, tmp_path: Path) -> None:
    sent: dict[str | None, Message] = {}

    def fate(message: Message) -> str:
        sent[message.unique_key] = message
        return ("ok", "fail", "unknown")[len(sent) % 3]

    await sender_of(StandInProducer(fate=fate), writer).run(items(20, 3, random.Random(3)))
    writer.flush()
    lines = [orjson.loads(line) for line in (tmp_path / "h.jsonl").read_bytes().splitlines()]
    invoked = [line for line in lines if line["type"] == "invoke" and line["f"] == "send"]
    assert len(invoked) == len(sent) == 20
    for line in invoked:
        message = sent[line["id"]]
        given = message.properties | {"KEYS": str(message.keys), "TAGS": str(message.tags)}
        assert line["crc"] == crc32(message.body) & 0x7FFFFFFF
        assert line["fields"] == fields_sum(0, given)
        assert line["born"] == message.born_timestamp_ms


@pytest.mark.parametrize("rate", [None, 20_000.0])
@pytest.mark.parametrize(("keys", "window"), [(1, 4), (3, 8), (500, 1), (500, 32)])
async def test_order_per_key_within_the_window(
    writer: HistoryWriter, keys: int, window: int, rate: float | None
) -> None:
    producer = StandInProducer()
    sender = sender_of(producer, writer, window=window, rate_per_s=rate)
    tally = await sender.run(items(200, keys, random.Random(3)))
    assert (tally.invoked, tally.ok + tally.shed, tally.decided) == (200, 200, 200)
    assert rate is not None or tally.shed == 0
    assert producer.most <= window
    writer.flush()
    history = read_history(writer.path)
    assert sum(send.shed for send in history.sends) == tally.shed
    checks = {check.name: check for check in check_all(history)}
    assert checks["order per key"].verdict is Verdict.PASS
    assert {send.key for send in history.sends} == {f"key-{n}" for n in range(200)}
    assert len({send.id for send in history.sends}) == 200
    for order in {send.order for send in history.sends if send.order}:
        sequences = [send.seq for send in history.sends if send.order == order]
        assert sequences == list(range(len(sequences)))


async def test_sender_that_follows_the_route_keeps_the_order_in_each_queue(
    writer: HistoryWriter,
) -> None:
    sender = sender_of(StandInProducer(), writer, window=8, follows=True)
    run = asyncio.create_task(sender.run(items(200, 5, random.Random(3))))
    await until(lambda: sender.tally.ok >= 50, pause_s=0)
    sender.use(QUEUES[:1])
    await run
    writer.flush()
    history = read_history(writer.path)
    checks = {check.name: check for check in check_all(history)}
    assert checks["order per key"].verdict is Verdict.PASS
    assert {send.queue for send in history.sends[-100:]} == {0}
    assert len({send.order for send in history.sends}) > 1 + 5  # of several queues


async def test_every_send_outcome_is_counted_recorded_and_reported(writer: HistoryWriter) -> None:
    def fate(message: Message) -> str:
        return {0: "ok", 1: "fail", 2: "unknown"}[int(message.body) % 3]

    reported: list[Outcome] = []
    sender = sender_of(StandInProducer(fate=fate), writer, window=8, on_outcome=reported.append)
    tally = await sender.run(items(30, 4, random.Random(3)))
    assert (tally.ok, tally.fail, tally.unknown) == (10, 10, 10)
    writer.flush()
    sends = read_history(writer.path).sends
    assert sorted(o.value for o in reported) == sorted(send.outcome.value for send in sends)
    by_outcome = {send.outcome: send for send in sends}
    assert by_outcome[Outcome.FAIL].attempts == 2
    assert "silence" in by_outcome[Outcome.UNKNOWN].error
    assert by_outcome[Outcome.OK].msg_id.startswith("M")


async def test_read_ahead_of_a_busy_key_is_limited(writer: HistoryWriter) -> None:
    taken = 0

    def endless() -> Iterator[Item]:
        nonlocal taken
        while True:
            taken += 1
            yield Item("T", b"x", "key", "only", "", {"order": "only"})

    producer = StandInProducer()
    sender = sender_of(producer, writer, window=2)
    run = asyncio.create_task(sender.run(endless()))
    await asyncio.sleep(0)
    assert taken == 1 + 2 * BACKLOG_PER_WINDOW
    sender.stop()
    tally = await run
    assert tally.ok == taken  # read items are sent


@pytest.mark.parametrize("rate", [None, 3_000.0])
async def test_stop_ends_an_endless_load(writer: HistoryWriter, rate: float | None) -> None:
    producer = StandInProducer()
    sender = sender_of(producer, writer, window=16, rate_per_s=rate)
    endless = (item for item in items(10**9, 50, random.Random(3)))
    run = asyncio.create_task(sender.run(endless))
    await until(lambda: sender.tally.ok)
    sender.stop()
    tally = await run
    assert tally.invoked == tally.ok > 0


@pytest.mark.parametrize("rate", [None, 2_000.0])
async def test_held_load_waits_and_sheds_nothing(writer: HistoryWriter, rate: float | None) -> None:
    window = 1 + 300 // BACKLOG_PER_WINDOW  # a busy machine does not make it shed either
    sender = sender_of(StandInProducer(), writer, window=window, rate_per_s=rate)
    run = asyncio.create_task(sender.run(items(300, 500, random.Random(3))))
    await until(lambda: sender.tally.ok >= 20, pause_s=0)
    async with asyncio.timeout(60):
        sender.hold()
        await until(lambda: not (sender._in_flight or sender._backlog), pause_s=0.001)
        ok = sender.tally.ok
        await asyncio.sleep(0.2)  # 400 more would be due
        assert sender.tally.ok == sender.tally.invoked == ok < 300
        sender.go_on()
        tally = await run
    assert (tally.ok, tally.shed) == (300, 0)


async def test_held_load_can_be_stopped(writer: HistoryWriter) -> None:
    sender = sender_of(StandInProducer(), writer, window=4)
    sender.hold()
    run = asyncio.create_task(sender.run(items(300, 500, random.Random(3))))
    await asyncio.sleep(0)
    assert sender.tally.invoked == 0
    sender.stop()
    assert (await run).invoked == 0


async def test_open_loop_keeps_to_its_rate(writer: HistoryWriter) -> None:
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    sender = sender_of(StandInProducer(), writer, rate_per_s=1000)
    await sender.run(items(101, 50, random.Random(3)))
    assert loop.time() - begin_s >= 0.1  # slower is the machine's business, faster is wrong


async def test_open_loop_latency_counts_from_when_a_send_was_due(writer: HistoryWriter) -> None:
    """One slot, answers far slower than the rate; waiting items were due long before."""
    producer = StandInProducer()
    sender = sender_of(producer, writer, window=1, rate_per_s=10_000)
    tally = await sender.run(items(17, 500, random.Random(3)))
    assert (tally.ok, tally.shed) == (17, 0)
    writer.flush()
    sends = read_history(writer.path).sends
    dues = [send.due_ns for send in sends]
    assert {due - dues[0] for due in dues} == {number * 100_000 for number in range(17)}
    assert all(send.due_ns <= send.invoked_ns < send.done_ns for send in sends)
    waited = max(send.invoked_ns - send.due_ns for send in sends)
    assert waited > max(send.done_ns - send.invoked_ns for send in sends[:1])


async def test_sends_due_beyond_the_backlog_are_shed_and_reported(writer: HistoryWriter) -> None:
    reported: list[Outcome] = []
    all_due = asyncio.Event()

    def tell(outcome: Outcome) -> None:
        reported.append(outcome)
        if len(reported) == 98 - 2 * BACKLOG_PER_WINDOW:
            all_due.set()

    stuck: list = []
    producer = StandInProducer()
    producer.send_nowait = lambda *sent: stuck.append(sent)  # type: ignore[method-assign]
    sender = sender_of(producer, writer, window=2, rate_per_s=1_000_000, on_outcome=tell)
    run = asyncio.create_task(sender.run(items(100, 500, random.Random(3))))
    await all_due.wait()
    assert len(stuck) == 2
    assert sender.tally.shed == 98 - 2 * BACKLOG_PER_WINDOW
    assert reported == [Outcome.FAIL] * sender.tally.shed
    while stuck:
        message, callback, _, queue = stuck.pop(0)
        result = SendResult(SendStatus.OK, message.unique_key, "M", queue, 0, 1)
        callback(result, None)
    tally = await run
    assert (tally.ok, tally.decided) == (2 + 2 * BACKLOG_PER_WINDOW, 100)
    writer.flush()
    shed = [send for send in read_history(writer.path).sends if send.shed]
    assert len(shed) == tally.shed
    assert {(send.outcome, send.attempts) for send in shed} == {(Outcome.FAIL, 0)}
    assert "waiting already" in shed[0].error
    assert all(send.due_ns for send in shed)


async def test_warning_status_of_a_send_is_recorded(writer: HistoryWriter) -> None:
    producer = StandInProducer()
    producer.status = SendStatus.FLUSH_SLAVE_TIMEOUT
    sender = sender_of(producer, writer, window=4)
    tally = await sender.run(items(5, 5, random.Random(3)))
    assert (tally.ok, tally.weak) == (5, 5)
    writer.flush()
    (status,) = {send.status for send in read_history(writer.path).sends}
    assert status == "FLUSH_SLAVE_TIMEOUT"
    assert not any(send.promised for send in read_history(writer.path).sends)


async def test_message_rejected_by_the_client_ends_the_run(writer: HistoryWriter) -> None:
    producer = StandInProducer(fate=lambda m: "refuse" if m.body == b"20" else "ok")
    sender = sender_of(producer, writer, window=4)
    with pytest.raises(InvalidMessage):
        await sender.run(items(100, 5, random.Random(3)))
    invoked = sender.tally.invoked
    assert invoked < 100  # the progress of the other keys depends on timing
    await asyncio.sleep(0.02)
    assert sender.tally.fail == 1
    assert sender.tally.invoked == invoked, "nothing is started behind the failure"


@pytest.mark.parametrize("window", [0, 16_385])
async def test_window_out_of_range_is_rejected(writer: HistoryWriter, window: int) -> None:
    with pytest.raises(ValueError, match="1 to 16384"):
        sender_of(StandInProducer(), writer, window=window)


def test_items_repeat_with_their_seed() -> None:
    first, second = (
        list(islice(random_items("T", "p", 9, 64, random.Random(5)), 20)) for _ in "ab"
    )
    assert first == second
    assert {len(item.body) for item in first} == {64}
    assert all(item.properties["__SHARDINGKEY"] == item.order for item in first)


class StandInMessage:
    def __init__(self, queue_id: int, queue_offset: int) -> None:
        self.topic, self.queue_id, self.queue_offset = "T", queue_id, queue_offset
        self.broker_name = "b"
        self.msg_id = f"U{queue_offset}"


def message(queue_id: int, queue_offset: int) -> MessageExt:
    return cast(MessageExt, StandInMessage(queue_id, queue_offset))


def test_consumption_is_recorded_and_counted_by_position(writer: HistoryWriter) -> None:
    consumption = Consumption(writer, "G", orderly=True)
    listen = consumption.listener("consumer-0")
    listen([message(1, 5), message(1, 6)])
    listen([message(1, 6)])
    commits = Commits(writer)
    commits.committing("consumer-0", "G")(QUEUES[1], 7)
    commits.committing("consumer-0", "G")(QUEUES[2], 3)
    commits.committer("consumer-0", "G")(QUEUES[1], 7)
    writer.flush()
    history = read_history(writer.path)
    assert (consumption.distinct, consumption.deliveries) == (2, 3)
    assert [c.ids for c in history.consumes] == [("U5", "U6"), ("U6",)]
    assert {(c.broker, c.group, c.orderly) for c in history.consumes} == {("b", "G", True)}
    (commit,) = history.commits
    assert (commit.broker, commit.queue, commit.offset) == ("b", 1, 7)
    assert commit.invoked_ns < commit.t_ns
    (unanswered,) = history.unanswered
    assert (unanswered.queue, unanswered.offset, unanswered.t_ns) == (2, 3, 0)


def test_unanswered_commits_are_limited(
    writer: HistoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COMMITS_OPEN_MAX", 3)
    commits = Commits(writer)
    for offset in range(5):
        commits.committing("consumer-0", "G")(QUEUES[1], offset)
    assert [offset for _, _, offset in commits._open] == [2, 3, 4]
    commits.committer("consumer-0", "G")(QUEUES[1], 0)  # forgotten, so the answer is recorded alone
    writer.flush()
    assert read_history(writer.path).commits[0].offset == 0
