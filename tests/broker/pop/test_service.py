"""Pop consumption over the wire: who gets what, when it comes again, and over failovers."""

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from raftmq.broker.consume.filtered_reads import WORK_MAX
from raftmq.broker.consume.filters import RECORD_WORK, Filter
from raftmq.broker.consume.sql92 import compile_expression
from raftmq.broker.errors import OutcomeUnknown, Refused
from raftmq.broker.messages.send_request import Outgoing
from raftmq.broker.pop import requests, revive
from raftmq.broker.pop.selection import ALL, RETRIES_FIRST, STOPS_MAX, Pop, PopSelector
from raftmq.broker.send.callbacks import Completion
from raftmq.broker.tables.pops import pop_command
from raftmq.broker.tables.state import reset_offsets
from raftmq.client.admin.bodies import consume_stats
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import MessageQueue, dumps, loads_object
from raftmq.remoting.headers import PullHeader
from raftmq.remoting.pop_headers import INIT_MAX, PopHeader
from raftmq.store.record import decode_record, walk_records
from tests.broker.cluster import Group
from tests.broker.delayed.test_delay_group import PATIENT
from tests.broker.pop.consumer import Popper
from tests.broker.replication.ha.pair import Classic
from tests.broker.send.test_frame_builder import batch_body, fields
from tests.ops.scrape import Scrape
from tests.waiting import until

SHORT_MS = 400
FAR_MS = 1 << 50  # a wall clock past all deadlines


def bodies(messages):
    return sorted(int(one.body) for one in messages)


async def filled(group, broker, count, queues=4, topic="T"):
    await group.create_topic(broker, topic, queues)
    for number in range(count):
        await group.send(broker, topic, b"%d" % number, queue=number % queues)


async def drained(popper, broker, **options):
    """Pop until nothing is left."""
    result = []
    while more := await popper.pop(broker, **options):
        result += more
    return result


class HeldCommands:
    """Holds the commands that a broker proposes until `release`."""

    def __init__(self, broker):
        self.engine = broker.engine
        self.held = []
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(self.engine, "propose_command", self.hold)

    def hold(self, payload):
        self.held.append((payload, asyncio.get_running_loop().create_future()))
        return self.held[-1][1]

    def stop(self):
        """Let later commands pass."""
        self.patch.undo()

    async def release(self):
        self.stop()
        for payload, outcome in self.held:
            outcome.set_result(await self.engine.propose_command(payload))


def changes_of(steps, monkeypatch):
    """Return the list of the changes that wait for a command from now on, or waited."""
    changes, add = [], steps.add

    def recorded(change, done):
        add(change, done)
        changes.append(change)

    monkeypatch.setattr(steps, "add", recorded)
    return changes


@pytest.fixture
async def one(tmp_path):
    async with Group(tmp_path, 1, enablePropertyFilter=True) as group:
        yield group, await group.leading(), Popper(group)


async def test_popped_message_goes_to_one_consumer_until_acknowledged(one):
    group, broker, popper = one
    await filled(group, broker, 20)
    first = await popper.pop(broker, count=7)
    rest = await drained(popper, broker)
    assert len(first) == 7
    assert bodies(first + rest) == list(range(20))
    table = broker.state.pops
    assert table.in_flight("T", "cg") == 20
    for message in first:
        assert await popper.ack(broker, message) == 0
        assert await popper.ack(broker, message) == 0  # repeated: its answer may be lost
    assert table.in_flight("T", "cg") == 13
    assert await popper.batch_ack(broker, rest) == 0
    assert (table.in_flight("T", "cg"), table.batch_count) == (0, 0)
    assert await popper.pop(broker) == []
    other = Popper(group, "other")
    assert bodies(await drained(other, broker)) == list(range(20))


async def test_unacknowledged_message_is_redelivered_after_its_invisible_time(one):
    group, broker, popper = one
    await filled(group, broker, 8)
    popped_s = time.time()
    messages = await drained(popper, broker, invisible_ms=SHORT_MS)
    kept = [message for message in messages if int(message.body) % 2]
    for message in kept:
        assert await popper.ack(broker, message) == 0
    again: list[Any] = []
    while len(again) < 4:
        again += await popper.pop(broker, poll_ms=30_000)
    assert time.time() - popped_s >= SHORT_MS / 1000
    assert bodies(again) == [0, 2, 4, 6]
    assert {message.topic for message in again} == {"%RETRY%cg_T"}
    assert {message.times for message in again} == {1}
    assert {message.properties["RETRY_TOPIC"] for message in again} == {"T"}
    lost = next(message for message in messages if message not in kept)
    assert await popper.ack(broker, lost) == ResponseCode.NO_MESSAGE
    for message in again:
        assert await popper.ack(broker, message) == 0
    assert await popper.pop(broker) == []
    assert broker.state.pops.batch_count == 0


async def test_unreadable_popped_message_does_not_block_redelivery_of_others(one, monkeypatch):
    """It, too, comes once it can be read."""
    group, broker, popper = one
    await filled(group, broker, 4, 1)
    real = broker.store.reads.get_messages
    failures: list[Any] = []

    def read(topic, queue, offset, count_max, *args, **options):
        if (offset, count_max) == (1, 1) and len(failures) < 3:
            failures.append(offset)
            raise OSError("planted")
        return real(topic, queue, offset, count_max, *args, **options)

    monkeypatch.setattr(revive, "RETRY_MS", 50)
    messages = await popper.pop(broker, count=4, invisible_ms=SHORT_MS)
    monkeypatch.setattr(broker.store.reads, "get_messages", read)
    assert bodies(messages) == [0, 1, 2, 3]
    again: list[Any] = []
    while len(again) < 4:
        again += await popper.pop(broker, poll_ms=30_000)
    assert bodies(again[:3]) == [0, 2, 3]
    assert (bodies(again[3:]), len(failures)) == ([1], 3)
    assert broker.store.queues.end_of("%RETRY%cg_T", 0) == 4


async def pulls_as_java(group, broker, store):
    """Return what a new group gets that begins as Java's clients do (14, and 30 after a 22)."""
    result = await group.committed(broker, "T", 0)
    await store()
    if result.code == ResponseCode.QUERY_NOT_FOUND:
        ext = {"topic": "T", "queueId": "0"}
        result = await group.ask(broker, RequestCode.GET_MAX_OFFSET, ext)
    await store()
    answer = await group.pull(broker, "T", int(result.ext["offset"]))
    return [decode_record(answer.body, at).body for at, _ in walk_records(answer.body)]


async def pops_as_the_proxy(group, broker, store):
    """Return what a new group gets that pops until there is nothing, as gRPC's consumers do."""
    popper, result = Popper(group), []
    for _ in range(3):
        result += [message.body for message in await popper.pop(broker, init_mode=INIT_MAX)]
        await store()
    result += [message.body for message in await drained(popper, broker, init_mode=INIT_MAX)]
    return result


@pytest.mark.parametrize("begins", [pulls_as_java, pops_as_the_proxy])
@pytest.mark.parametrize("queue", ["without a file", "emptied", "full"])
@pytest.mark.parametrize("moment", range(3))
async def test_new_pop_group_gets_messages_that_arrive_in_an_empty_queue(
    tmp_path, begins, queue, moment
):
    """However it asks, whenever that is stored, and as much as it is: nothing here is hot."""
    moments = iter(range(9))

    async def store():
        if next(moments) == moment:
            for body in (b"first", b"second"):
                await group.send(broker, "T", body)

    async with Group(tmp_path, 1, accessMessageInMemoryMaxRatio=0) as group:
        broker = await group.leading()
        await filled(group, broker, 0 if queue == "without a file" else 3, 1)
        if queue == "emptied":
            assert (await group.ask(broker, RequestCode.EMPTY_TOPIC, {"topic": "T"})).code == 0
        result = await begins(group, broker, store)
    stored = moment < (2 if begins is pulls_as_java else 3)
    if queue != "full":
        assert result == ([b"first", b"second"] if stored else [])
    elif begins is pulls_as_java:  # LAST_OFFSET begins behind what is there when it asks
        assert result == ([b"first", b"second"] if moment == 1 else [])
    else:  # at the last message, as Apache's brokers do
        assert result == [b"2", b"first", b"second"]


@pytest.mark.parametrize("broken", ["again", "check"])
async def test_unstorable_retry_does_not_block_redelivery_of_others(one, monkeypatch, broken):
    """It, too, comes once it can be stored."""
    group, broker, popper = one
    await filled(group, broker, 4, 1)
    position = broker.sends if broken == "check" else revive
    real = getattr(position, broken)
    failures: list[Any] = []

    def fails(message, *rest):
        if message.body == b"1" and len(failures) < 3:
            failures.append(message)
            if broken == "check":
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "planted")
            raise ValueError("planted")
        return real(message, *rest)

    monkeypatch.setattr(revive, "RETRY_MS", 50)
    monkeypatch.setattr(position, broken, fails)
    await popper.pop(broker, count=4, invisible_ms=SHORT_MS)
    again: list[Any] = []
    while len(again) < 4:
        again += await popper.pop(broker, poll_ms=30_000)
    assert (bodies(again[:3]), bodies(again[3:])) == ([0, 2, 3], [1])
    assert len(failures) == 3


async def test_popped_messages_with_a_failed_revive_can_be_acknowledged(one, monkeypatch):
    group, broker, popper = one
    await filled(group, broker, 2, 1)
    await group.create_topic(broker, "%RETRY%cg_T", 1)
    tried = []

    def fails(*frame):
        tried.append(frame)
        raise RuntimeError("planted")

    monkeypatch.setattr(broker.sends, "store", fails)
    messages = await popper.pop(broker, invisible_ms=50)
    await until(lambda: tried)
    for message in messages:
        assert await popper.ack(broker, message) == 0
    assert broker.state.pops.batch_count == 0


async def test_message_under_acknowledgement_is_not_redelivered(one, monkeypatch):
    group, broker, popper = one
    await filled(group, broker, 1, 1)
    await group.create_topic(broker, "%RETRY%cg_T", 1)
    (message,) = await popper.pop(broker)
    reviver, stored, commands = broker.popping.reviver, [], HeldCommands(broker)
    acknowledged = asyncio.create_task(popper.ack(broker, message))
    await until(lambda: commands.held)
    with monkeypatch.context() as later:
        later.setattr(group, "stopped_ms", FAR_MS)
        later.setattr(broker.sends, "store", lambda *frame: stored.append(frame))
        reviver.tick()
    assert stored == []
    await commands.release()
    assert await acknowledged == 0
    assert broker.state.pops.batch_count == 0


async def test_revive_waits_for_the_outcome_of_the_previous_frame(one, monkeypatch):
    group, broker, popper = one
    await filled(group, broker, 1, 1)
    await group.create_topic(broker, "%RETRY%cg_T", 1)
    assert len(await popper.pop(broker)) == 1
    reviver, stored, proposed = broker.popping.reviver, [], []
    with monkeypatch.context() as later:
        later.setattr(group, "stopped_ms", FAR_MS)
        later.setattr(broker.sends, "store", lambda *frame: stored.append(frame))
        later.setattr(broker.log, "propose_then", lambda *one: proposed.append(one))
        reviver.tick()
        ((_, _, ended),) = stored
        ended(OutcomeUnknown("the leader changed"))
        reviver.tick()
        ((command, settled),) = proposed
        assert (command, len(stored)) == (pop_command(()), 1)
        settled(None)  # the frame is lost: nothing of it has been applied
        reviver.tick()
        assert len(stored) == 2


@pytest.mark.parametrize("value", ["b\x01c", "v" * 32_650, "v" * 32_600])
async def test_popped_message_with_full_properties_is_redelivered_and_acked(one, value):
    """Nothing is added to properties that have no room: neither origin nor handle."""
    group, broker, popper = one
    await group.create_topic(broker, "T", 1)
    assert (await group.send(broker, "T", b"0", properties=f"A\x01{value}\x02")).code == 0
    for times in range(3):
        invisible_ms = 50 if times < 2 else 60_000
        (message,) = await popper.pop(broker, invisible_ms=invisible_ms, poll_ms=30_000)
        assert (message.times, message.properties["A"]) == (times, value)
    assert await popper.ack(broker, message) == 0
    assert broker.state.pops.batch_count == 0


async def test_popped_message_beyond_the_retry_limit_becomes_a_dead_letter(one):
    group, broker, popper = one
    await filled(group, broker, 1, 1)
    body = dumps({"groupName": "cg", "retryMaxTimes": 1})
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert (await group.ask(broker, code, {}, body)).code == 0
    for times in range(2):
        (message,) = await popper.pop(broker, invisible_ms=50, poll_ms=30_000)
        assert message.times == times
    await until(lambda: broker.popping.reviver.dead_count == 1)
    answer = await group.pull(broker, "%DLQ%cg", 0)
    assert answer.code == 0
    assert b"DLQ_ORIGIN_TOPIC\x01T" in answer.body
    assert await popper.pop(broker) == []


async def test_popped_messages_in_flight_are_in_stats_and_metrics(one):
    group, broker, popper = one
    await filled(group, broker, 12, 2)
    messages = await popper.pop(broker, count=5, queue=0)
    assert await popper.batch_ack(broker, messages[:2]) == 0
    answer = await group.ask(broker, RequestCode.GET_CONSUME_STATS, {"consumerGroup": "cg"})
    stats = consume_stats(loads_object(answer.body))
    at = stats.queues[MessageQueue("T", "group-a", 0)]
    assert (at.broker_offset, at.pull_offset, at.consumer_offset, at.behind) == (6, 5, 2, 4)
    scrape = Scrape(broker.metrics.render()[0].decode())
    assert scrape.sum("rocketmq_pop_in_flight_messages", group="cg", topic="T") == 3
    assert scrape.sum("rocketmq_consumer_lag_messages", group="cg", topic="T") == 4  # of queue 0
    for what, count in (("popped", 5), ("acknowledged", 2), ("come-again", 0)):
        assert scrape.sum("rocketmq_pop_messages_total", what=what) == count


async def test_change_of_invisible_time_voids_the_old_receipt_handle(one):
    group, broker, popper = one
    await filled(group, broker, 2, 1)
    first, second = await popper.pop(broker, invisible_ms=60_000)
    soon = await popper.change(broker, first, 200)
    late = await popper.change(broker, second, 120_000)
    assert late.handle.invisible_ms == 120_000
    assert await popper.ack(broker, first) == ResponseCode.NO_MESSAGE
    (again,) = await popper.pop(broker, poll_ms=30_000)
    assert again.body == first.body
    assert await popper.ack(broker, soon) == ResponseCode.NO_MESSAGE
    assert await popper.change(broker, soon, 1_000) == ResponseCode.NO_MESSAGE
    for _ in range(2):  # the answer of the first may be lost
        assert await popper.ack(broker, late) == 0
    assert await popper.ack(broker, again) == 0
    assert broker.state.pops.batch_count == 0


async def test_receipt_handles_of_one_message_differ_within_a_millisecond(one):
    """A consumer with an older one cannot end what another consumer has now."""
    group, broker, popper = one
    await filled(group, broker, 1, 1)
    group.stopped_ms = broker.context.wall_ms()
    (first,) = await popper.pop(broker)
    changed = await popper.change(broker, first, 60_000)
    assert await popper.ack(broker, first) == ResponseCode.NO_MESSAGE
    await broker.log.propose(reset_offsets([("T", "cg", 0, 0)]))
    (again,) = await popper.pop(broker)
    for stale in (first, changed):
        assert await popper.ack(broker, stale) == ResponseCode.NO_MESSAGE
    assert await popper.ack(broker, again) == 0


async def test_pop_waits_for_a_message_that_matches_its_filter(one):
    group, broker, popper = one
    await group.create_topic(broker, "T", 2)
    waiting = asyncio.create_task(
        popper.pop(broker, poll_ms=30_000, expression="a||b", init_mode=1)
    )
    await until(lambda: broker.popping.pops.waiting.count == 1)
    info = {"consumerGroup": "cg", "topic": "T", "queueId": "-1"}
    answer = await group.ask(broker, RequestCode.POLLING_INFO, info)
    assert answer.ext["pollingNum"] == "1"
    await group.send(broker, "T", b"0", properties="TAGS\x01c\x02")
    await group.send(broker, "T", b"1", properties="TAGS\x01b\x02", queue=1)
    assert bodies(await waiting) == [1]
    assert await popper.pop(broker, expression="a||b") == []
    answer = await popper.answer(broker, poll_ms=100)
    assert answer.code == ResponseCode.POLLING_TIMEOUT


async def test_pop_skips_messages_that_do_not_match_its_filter(one):
    group, broker, popper = one
    await group.create_topic(broker, "T", 1)
    for lot in range(20):  # more than one read looks at
        items = [(b"x", b"TAGS\x01c\x02", 0) for _ in range(100)]
        ext = fields(properties="", e="0", m="true", b="T")
        code = RequestCode.SEND_BATCH_MESSAGE
        assert (await group.ask(broker, code, ext, batch_body(*items))).code == 0, lot
    await group.send(broker, "T", b"1", properties="TAGS\x01a\x02")
    assert bodies(await popper.pop(broker, expression="a", poll_ms=30_000)) == [1]
    assert broker.popping.pops.waiting.count == 0


async def test_deadlines_of_acknowledged_messages_are_removed(one, monkeypatch):
    monkeypatch.setattr(revive, "SPARE_MAX", 4)
    group, broker, popper = one
    await filled(group, broker, 40, 1)
    kept = await popper.pop(broker, count=2, invisible_ms=20_000)
    for _ in range(30):
        (message,) = await popper.pop(broker, count=1)
        assert await popper.ack(broker, message) == 0
    reviver = broker.popping.reviver
    assert len(reviver.deadlines) <= 8
    group.ahead_ms["n0"] = 25_000  # their time is over
    again: list[Any] = []
    while len(again) < 2:
        result = await popper.pop(broker, poll_ms=30_000)
        again += [message for message in result if message.times]
    assert bodies(again) == bodies(kept)


LONG = " OR ".join(f"n = {number}" for number in range(1, 1_000))


async def with_unwanted(group, broker, popper, monkeypatch, queues=4, unwanted=30):
    """Put into each queue messages that LONG does not take, then one that it takes, and into the
    retries one. Return a list that gets the queues that each attempt looks at, and its work."""
    await group.create_topic(broker, "T", queues)
    await group.create_topic(broker, f"%RETRY%{popper.name}_T", 1)
    for queue in range(queues):
        for n in [0] * unwanted + [1]:
            await group.send(broker, "T", b"%d" % queue, queue=queue, properties=f"n\x01{n}\x02")
    attempts = []
    attempt = PopSelector.attempt

    def noted(selector, pop):
        made = attempt(selector, pop)
        attempts.append(
            ([one.queue_key[2] for one in made.selected if one.before < one.after], made.work)
        )
        return made

    monkeypatch.setattr(PopSelector, "attempt", noted)
    return attempts


async def test_pop_filter_work_is_limited_over_all_queues(one, monkeypatch):
    group, broker, popper = one
    attempts = await with_unwanted(group, broker, popper, monkeypatch)
    options = {"expression_type": "SQL92", "expression": LONG}
    assert bodies(await drained(popper, broker, **options)) == [0, 1, 2, 3]
    message = RECORD_WORK + compile_expression(LONG).work({})
    assert all(work.left > -message for _, work in attempts)
    assert sum(WORK_MAX - work.left for _, work in attempts) == 4 * 31 * message


async def test_pop_continues_at_the_queue_where_the_last_one_stopped(one, monkeypatch):
    """The first queues may have enough for ever: nothing is taken from them here. And the turns
    of two groups that alternate begin at every other queue."""
    group, broker, popper = one
    attempts = await with_unwanted(group, broker, popper, monkeypatch)
    header = PopHeader("cg", "T", -1, 32, 60_000, 0)
    pop = Pop(header, Filter(matcher=compile_expression(LONG)))
    selector = broker.popping.pops.selector
    for _ in range(8):
        selector.attempt(pop)
        selector.attempt(Pop(PopHeader("other", "T", -1, 32, 60_000, 0), ALL))
    positions = [one for one, _ in attempts[::2]]
    first = [queues[0] for queues in positions]
    gaps = {(later - earlier) % 4 for earlier, later in pairwise(first)}
    assert (gaps, {len(queues) for queues in positions}) == ({1}, {1})


async def test_retries_are_popped_after_the_filter_used_its_work(one, monkeypatch):
    group, broker, popper = one
    await with_unwanted(group, broker, popper, monkeypatch)
    stored = Completion()
    retry = Outgoing("%RETRY%cg_T", 0, b"9", b"n\x010\x02ORIGIN_GROUP\x01cg\x02", 1, bytes(8))
    broker.sends.store([replace(retry, force=True)], b"", stored)
    broker.sends.wake()
    await stored.stored()
    options = {"expression_type": "SQL92", "expression": LONG}
    assert 9 in bodies(await popper.pop(broker, **options))


async def test_pop_stop_positions_are_limited(one):
    selector = one[1].popping.pops.selector
    for number in range(STOPS_MAX + 1):
        selector._record_stop(("T", f"g{number}"), [number, 0])
    assert (len(selector._stops), ("T", "g0") in selector._stops) == (STOPS_MAX, False)
    selector._record_stop(("T", "g1"), [])
    assert len(selector._stops) == STOPS_MAX - 1


async def test_pop_selects_messages_by_an_expression(one):
    group, broker, popper = one
    await group.create_topic(broker, "T", 1)
    for number in range(6):
        await group.send(broker, "T", b"%d" % number, properties=f"n\x01{number}\x02")
    options = {"expression_type": "SQL92", "expression": "n > 3 OR n = 1"}
    result = await drained(popper, broker, **options)
    assert bodies(result) == [1, 4, 5]
    assert await popper.batch_ack(broker, result) == 0
    answer = await popper.answer(broker, expression_type="SQL92", expression="n >")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_orderly_pop_gets_messages_after_all_previous_are_acknowledged(one):
    group, broker, popper = one
    await filled(group, broker, 9, 1)
    options = {"order": True, "invisible_ms": 5_000, "count": 3}
    first = await popper.pop(broker, **options)
    assert bodies(first) == [0, 1, 2]
    assert await popper.pop(broker, **options) == []
    assert await popper.ack(broker, first[1]) == 0
    assert broker.state.offsets.get("T", "cg", 0) == 0
    waiting = asyncio.create_task(popper.pop(broker, poll_ms=30_000, **options))
    await until(lambda: broker.popping.pops.waiting.count == 1)
    assert await popper.batch_ack(broker, [first[0], first[2]]) == 0
    second = await waiting
    assert bodies(second) == [3, 4, 5]
    assert broker.state.offsets.get("T", "cg", 0) == 3
    assert await popper.ack(broker, second[1]) == 0
    for message in (second[0], second[2]):
        assert (await popper.change(broker, message, 200)).handle.pop_ms == message.handle.pop_ms
    again = await popper.pop(broker, poll_ms=30_000, **options)
    assert [(one.body, one.times) for one in again] == [(b"3", 1), (b"4", 1), (b"5", 1)]
    assert await popper.ack(broker, second[2]) == ResponseCode.NO_MESSAGE
    assert await popper.batch_ack(broker, again) == 0
    assert bodies(await popper.pop(broker, **options)) == [6, 7, 8]


async def test_concurrent_acknowledgements_advance_an_orderly_group_past_both(one, monkeypatch):
    group, broker, popper = one
    await filled(group, broker, 3, 1)
    messages = await popper.pop(broker, count=2, order=True)
    changes, commands = changes_of(broker.popping.steps, monkeypatch), HeldCommands(broker)
    acks = [asyncio.create_task(popper.ack(broker, one)) for one in messages]
    await until(lambda: len(changes) == 2)
    await commands.release()
    assert await asyncio.gather(*acks) == [0, 0]
    assert broker.state.offsets.get("T", "cg", 0) == 2


IN_ORDER = [  # acknowledged of 0, 1 and 2; asked for; redelivered, with how often before
    ((), 3, {0: 1, 1: 1, 2: 1}),
    ((0, 2), 3, {1: 1, 2: 1, 3: 0}),
    ((1, 2), 5, {0: 1, 1: 1, 2: 1, 3: 0, 4: 0}),
    ((0,), 1, {1: 1}),
]


async def test_in_order_redelivery_begins_at_the_first_unacknowledged_message(tmp_path):
    """As at Apache's broker: the messages behind it are redelivered as well, acknowledged or not,
    and new messages are added. The next leader does the same."""
    async with Group(tmp_path, 3, **PATIENT) as group:
        broker = await group.leading()
        await filled(group, broker, 6, 1)
        poppers = [Popper(group, f"g{number}") for number in range(len(IN_ORDER))]
        popped = [await popper.pop(broker, count=3, order=True) for popper in poppers]
        for popper, first, (acked, _, _) in zip(poppers, popped, IN_ORDER, strict=True):
            for number in acked:
                assert await popper.ack(broker, first[number]) == 0
        await group.kill(await group.leader())
        broker = await group.leading()
        group.ahead_ms = dict.fromkeys(group.names, 61_000)
        for popper, first, (acked, count, again) in zip(poppers, popped, IN_ORDER, strict=True):
            result = await popper.pop(broker, count=count, order=True)
            assert {int(one.body): one.times for one in result} == again
            assert broker.state.offsets.get("T", popper.name, 0) == min(again)
            late = [one for number, one in enumerate(first) if number not in acked]
            assert {await popper.ack(broker, one) for one in late} == {ResponseCode.NO_MESSAGE}
            assert await popper.pop(broker, order=True) == [], "the queue is closed again"
            assert await popper.batch_ack(broker, result) == 0
            rest = [one.times for one in await popper.pop(broker, count=6, order=True)]
            assert rest == [0] * (5 - max(again))


async def test_in_order_a_queue_opens_as_soon_as_its_last_message_is_visible(one):
    group, broker, popper = one
    await filled(group, broker, 4, 1)
    first = await popper.pop(broker, count=3, order=True)
    assert await popper.ack(broker, first[0]) == 0
    await popper.change(broker, first[1], 200)
    assert await popper.ack(broker, first[2]) == 0, "until now it closed the queue for a minute"
    result = await popper.pop(broker, count=3, order=True, poll_ms=30_000)
    assert [(one.body, one.times) for one in result] == [(b"1", 1), (b"2", 1), (b"3", 0)]


async def test_orderly_pop_redelivers_nothing_while_its_ack_is_in_flight(one):
    group, broker, popper = one
    await filled(group, broker, 4, 1)
    messages = await popper.pop(broker, count=2, order=True, invisible_ms=0)
    commands = HeldCommands(broker)
    ack = asyncio.create_task(popper.batch_ack(broker, messages))
    await until(lambda: commands.held)
    waiting = asyncio.create_task(popper.pop(broker, order=True, poll_ms=30_000))
    await until(lambda: broker.popping.pops.waiting.count == 1)
    await commands.release()
    assert await ack == 0
    assert bodies(await waiting) == [2, 3]


async def test_orderly_pop_does_not_skip_a_message_beyond_the_answer_size(tmp_path):
    """Of the bytes of one answer."""
    async with Group(tmp_path, 1, maxTransferBytesOnMessageInMemory=1_500) as group:
        broker, popper = await group.leading(), Popper(group)
        await group.create_topic(broker, "T", 1)
        for number in range(3):
            await group.send(broker, "T", b"%d" % number + b" " * 800)
        assert len(await popper.pop(broker, order=True, invisible_ms=100)) == 1
        (again,) = await popper.pop(broker, order=True, poll_ms=30_000)
        assert (int(again.body), again.times) == (0, 1)
        for number in (1, 2):
            assert await popper.ack(broker, again) == 0
            (again,) = await popper.pop(broker, order=True)
            assert int(again.body) == number


async def test_repeated_orderly_attempt_gets_the_same_messages(one):
    group, broker, popper = one
    await filled(group, broker, 6, 1)
    options = {"order": True, "count": 2}
    first = await popper.pop(broker, attempt_id="a", **options)
    again = await popper.pop(broker, attempt_id="a", **options)
    assert bodies(first) == bodies(again) == [0, 1]
    assert {message.times for message in again} == {0}, "it is the same delivery"
    assert await popper.pop(broker, attempt_id="b", **options) == []
    assert await popper.ack(broker, first[0]) == ResponseCode.NO_MESSAGE
    assert await popper.batch_ack(broker, again) == 0
    assert bodies(await popper.pop(broker, attempt_id="b", **options)) == [2, 3]


async def test_group_can_stop_consuming_in_order(one):
    group, broker, popper = one
    await filled(group, broker, 5, 1)
    await popper.pop(broker, order=True, count=3, invisible_ms=100)
    await asyncio.sleep(0.15)
    await popper.pop(broker, order=True, count=1, invisible_ms=100)
    result: list[Any] = []
    while len(set(bodies(result))) < 5:
        result += await popper.pop(broker, poll_ms=30_000)
    assert await popper.batch_ack(broker, result) in (0, ResponseCode.NO_MESSAGE)


async def test_message_deleted_by_retention_is_not_pending_in_order(tmp_path):
    """Also while nothing new is stored."""
    settings = {
        "mappedFileSizeCommitLog": 256 * 1024,
        "maxMessageSize": 64 * 1024,
        "fileReservedTime": 0,
        "deleteWhen": ";".join(map(str, range(24))),
        "durations": {"snapshot": 50, "retention": 50},
    }
    async with Group(tmp_path, 1, **settings) as group:
        broker, popper = await group.leading(), Popper(group)
        await filled(group, broker, 6, 1)
        options = {"order": True, "invisible_ms": 100}
        assert len(await popper.pop(broker, count=4, **options)) == 4
        queue = broker.store.queues.queue("T", 0)
        await group.create_topic(broker, "Other", 1)
        while queue.min_offset < 6:
            assert (await group.send(broker, "Other", bytes(60_000))).code == 0
        table = broker.state.pops.get(("T", "cg", 0))
        assert table.in_flight == 4
        await until(lambda: broker.context.wall_ms() > table.order_batch.ends_ms)
        assert await popper.pop(broker, **options) == []
        assert (table.in_flight, broker.state.offsets.get("T", "cg", 0)) == (0, 6)
        await group.send(broker, "T", b"new")
        (new,) = await popper.pop(broker, poll_ms=30_000, **options)
        assert (new.body, new.times) == (b"new", 0)
        assert await popper.ack(broker, new) == 0
        assert (table.in_flight, broker.state.offsets.get("T", "cg", 0)) == (0, 7)


async def test_peek_and_notification_change_nothing(one):
    group, broker, popper = one
    await filled(group, broker, 3, 1)
    where = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "maxMsgNums": "2"}
    for _ in range(2):
        answer = await group.ask(broker, RequestCode.PEEK_MESSAGE, where)
        assert bodies(popper.messages(answer)) == [0, 1]
        answer = await group.ask(broker, RequestCode.NOTIFICATION, where | {"pollTime": "0"})
        assert answer.ext["hasMsg"] == "true"
    assert broker.state.pops.batch_count == 0
    messages = await drained(popper, broker)
    answer = await group.ask(broker, RequestCode.NOTIFICATION, where | {"pollTime": "100"})
    assert answer.ext["hasMsg"] == "false"
    assert await popper.batch_ack(broker, messages) == 0


async def test_notification_is_evaluated_once_more_at_its_time_out(one):
    """One message wakes one question only; the answer to the other is what holds by then."""
    group, broker, popper = one
    await group.create_topic(broker, "T", 1)

    async def ask(attempt, poll_ms):
        where = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "order": "true"}
        requested = where | {"attemptId": attempt, "pollTime": str(poll_ms)}
        return (await group.ask(broker, RequestCode.NOTIFICATION, requested)).ext["hasMsg"]

    questions = [asyncio.create_task(ask(attempt, 400)) for attempt in "aab"]
    await until(lambda: broker.popping.pops.waiting.count == 3)
    await group.send(broker, "T", b"1")
    assert len(await popper.pop(broker, order=True, attempt_id="a")) == 1
    assert await asyncio.gather(*questions) == ["true", "true", "false"]
    assert [await ask("a", 0), await ask("b", 0)] == ["true", "false"]


async def test_offset_reset_moves_a_pop_group_and_voids_messages_in_flight(one):
    group, broker, popper = one
    await filled(group, broker, 10, 1)
    messages = await popper.pop(broker, count=10)
    ext = {"topic": "T", "group": "cg", "timestamp": "0", "isForce": "true"}
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    assert (await group.ask(broker, code, ext)).code == 0
    assert await popper.ack(broker, messages[0]) == ResponseCode.NO_MESSAGE
    again = await popper.pop(broker, count=10)
    assert bodies(again) == list(range(10))
    assert await popper.batch_ack(broker, again) == 0
    assert broker.state.offsets.get("T", "cg", 0) == 10
    assert not broker.state.offsets.resets


@pytest.mark.parametrize("popped_before", [True, False])
@pytest.mark.parametrize("count", [3, 9, 10])
async def test_offset_reset_between_pops_and_their_commands_takes_effect(
    one, monkeypatch, popped_before, count
):
    """Even if they are the group's first, and one was decided after it on top of one before it."""
    group, broker, popper = one
    await filled(group, broker, 10, 1)
    await group.commit(broker, "T", 0, 5 - popped_before)
    if popped_before:
        assert bodies(await popper.pop(broker, count=1)) == [4]
    changes, commands = changes_of(broker.popping.steps, monkeypatch), HeldCommands(broker)
    first = asyncio.ensure_future(popper.pop(broker, count=3))
    await until(lambda: commands.held)
    commands.stop()
    await broker.log.propose(reset_offsets([("T", "cg", 0, 0)]))
    second = asyncio.ensure_future(popper.pop(broker, count=1))
    await until(lambda: len(changes) == 2)
    await commands.release()
    result = bodies(await first) + bodies(await second)
    assert result == ([] if popped_before else [5, 6, 7, 8])
    again = await drained(popper, broker, count=count)
    assert bodies(again) == list(range(10))
    assert broker.state.offsets.get("T", "cg", 0) == 10
    assert not broker.state.offsets.resets


async def test_redelivery_of_more_than_a_segment_completes(tmp_path):
    settings = {"mappedFileSizeCommitLog": 196_608, "maxMessageSize": 32_768}
    async with Group(tmp_path, 1, **settings) as group:
        broker, popper = await group.leading(), Popper(group)
        await group.create_topic(broker, "T", 1)
        for number in range(10):
            await group.send(broker, "T", (b"%d" % number).ljust(30_000), queue=0)
        first: list[Any] = []
        again: list[Any] = []
        while len(first) < 10:
            first += await popper.pop(broker, invisible_ms=1_000)
        async with asyncio.timeout(60):
            while {one.body for one in again if one.times} != {one.body for one in first}:
                again += await popper.pop(broker)


async def test_group_can_switch_between_pull_and_pop(one):
    group, broker, popper = one
    await filled(group, broker, 6, 1)
    assert (await group.commit(broker, "T", 0, 2)).code == 0
    await until(lambda: broker.state.offsets.get("T", "cg", 0) == 2)
    messages = await popper.pop(broker, count=2)
    assert bodies(messages) == [2, 3]
    assert await popper.batch_ack(broker, messages) == 0
    answer = await group.committed(broker, "T", 0)
    assert answer.ext["offset"] == "4"
    assert (await group.commit(broker, "T", 0, 5)).code == 0
    await until(lambda: broker.state.offsets.get("T", "cg", 0) == 5)
    assert bodies(await popper.pop(broker)) == [5]


async def test_pop_limits_are_enforced_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "BATCHES_MAX", 3)
    async with Group(tmp_path, 1, popInflightMessageThreshold=4) as group:
        broker = await group.leading()
        popper = Popper(group)
        await filled(group, broker, 12, 1)
        first = await popper.pop(broker, count=4)
        assert await popper.pop(broker) == []
        assert await popper.batch_ack(broker, first) == 0
        for _ in range(3):
            assert len(await popper.pop(broker, count=1)) == 1
        answer = await popper.answer(broker)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        for options in (
            {"count": 33},
            {"count": 0},
            {"invisible_ms": -1},
            {"queue": 1},
            {"attempt_id": "x" * 256},
            {"renewed_by": "x" * 256},
        ):
            answer = await popper.answer(broker, **options)
            assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_BUSY)
        answer = await Popper(group, "cg", "missing").answer(broker)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "offset": "0"}
        answer = await group.ask(broker, RequestCode.ACK_MESSAGE, ext | {"extraInfo": "x y"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        for body in (b"", b"{}", b'{"acks":[{"c":"g"}]}', b'{"acks":7}'):
            answer = await group.ask(broker, RequestCode.BATCH_ACK_MESSAGE, {}, body)
            assert answer.code != 0


async def test_pop_modes_are_stored_and_queues_are_shared(one):
    group, broker, _ = one
    await filled(group, broker, 1, 3)
    client = {
        "clientID": "c1",
        "producerDataSet": [],
        "consumerDataSet": [
            {"groupName": "cg", "messageModel": "CLUSTERING", "subscriptionDataSet": []}
        ],
    }
    assert (await group.ask(broker, RequestCode.HEART_BEAT, {}, dumps(client))).code == 0
    body = {
        "topic": "T",
        "consumerGroup": "cg",
        "clientId": "c1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }

    async def assigned():
        answer = await group.ask(broker, RequestCode.QUERY_ASSIGNMENT, {}, dumps(body))
        result = loads_object(answer.body)["messageQueueAssignments"]
        return [(one["mode"], one["messageQueue"]["queueId"]) for one in result]

    assert await assigned() == [("PULL", 0), ("PULL", 1), ("PULL", 2)]
    wish = {"topic": "T", "consumerGroup": "cg", "mode": "POP", "popShareQueueNum": 0}
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    assert (await group.ask(broker, code, {}, dumps(wish))).code == 0
    assert await assigned() == [("POP", -1)]
    answer = await group.ask(broker, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert loads_object(answer.body)["messageRequestModeMap"]["T"]["cg"] == wish
    for wrong in ({"mode": "PUSH"}, {"topic": "%RETRY%cg"}, {"popShareQueueNum": "2"}):
        assert (await group.ask(broker, code, {}, dumps(wish | wrong))).code != 0


async def test_pop_over_failovers_loses_none_and_redelivers_no_acknowledged(tmp_path):
    async with Group(tmp_path, 3, {"snapshot": 200}, **PATIENT) as group:
        popper = Popper(group)
        await filled(group, await group.leading(), 60)
        done, seen = set(), []
        for _ in range(3):
            name = await group.leader()
            leader = group.brokers[name]
            messages = await popper.pop(leader, count=16)
            seen += messages
            await group.kill(name)
            leader = await group.leading()
            for message in messages[::2]:  # a handle is good under any leader
                assert await popper.ack(leader, message) == 0
                done.add(int(message.body))
            await group.start(name)
        leader = await group.leading()
        for message in seen:
            if int(message.body) not in done:
                await popper.change(leader, message, 0)
        again: list[Any] = []
        while done | set(bodies(again)) != set(range(60)):
            again += await popper.pop(leader, poll_ms=30_000)
        assert not done & set(bodies(again))
        assert len(again) == len(set(bodies(again)))
        assert await popper.batch_ack(leader, again) == 0
        tables = [broker.state.pops for broker in group.brokers.values()]
        await until(lambda: all(table.to_json() == tables[0].to_json() for table in tables))
        assert tables[0].batch_count == 0


async def test_classic_master_keeps_popped_messages_over_a_restart(tmp_path):
    async with Classic(tmp_path, 1) as group:
        popper = Popper(group)
        await group.followed()
        await filled(group, group.master, 10)
        messages = await popper.pop(group.master, count=10, invisible_ms=60_000)
        slave = group.slave.address
        assert (await popper.answer(group.brokers["slave1"])).code != 0, slave
        assert await popper.batch_ack(group.master, messages[:5]) == 0
        soon = [await popper.change(group.master, one, 300) for one in messages[5:8]]
        await group.stop("master")
        await group.start("master")
        assert await popper.ack(group.master, messages[8]) == 0
        again: list[Any] = []
        while len(again) < 3:
            again += await popper.pop(group.master, poll_ms=30_000)
        assert bodies(again) == bodies(soon)
        assert await popper.batch_ack(group.master, [*again, messages[9]]) == 0
        assert group.master.state.pops.batch_count == 0
        assert await popper.pop(group.master) == []


async def test_groups_with_the_same_retry_topic_name_get_their_own_retries(tmp_path):
    async with Group(tmp_path, 1, **PATIENT) as group:
        leader = await group.leading()
        for topic in ("eu_payments", "payments"):
            await group.create_topic(leader, topic)
        mine, others = (
            Popper(group, "orders", "eu_payments"),
            Popper(group, "orders_eu", "payments"),
        )
        await group.send(leader, "eu_payments", b"1")
        assert len(await mine.pop(leader, invisible_ms=300)) == 1
        shared = "%RETRY%orders_eu_payments"
        await until(lambda: leader.store.queues.end_of(shared, 0) == 1)
        for _ in range(RETRIES_FIRST):
            assert await others.pop(leader) == []
        (again,) = await mine.pop(leader)
        assert (again.topic, again.body) == (shared, b"1")
        # Nor does a group whose own retry topic that is.
        pull = PullHeader("orders_eu_payments", shared, 0, 0, 32, 0x4, 0, 0, "*", 0)
        answer = await group.ask(leader, RequestCode.PULL_MESSAGE, pull.to_ext())
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "1")
