"""SQL92 subscriptions at a broker: checks, reads, long polling, retries."""

import asyncio
from typing import Any

import orjson
import pytest

from raftmq.broker.config import change_live
from raftmq.broker.consume import sql92
from raftmq.broker.consume.filtered_reads import (
    WAKE_ENTRIES_MAX,
    WORK_MAX,
    FilteredReads,
    records_in,
)
from raftmq.broker.consume.filters import (
    RECORD_WORK,
    Filter,
    RetryMatcher,
    Work,
    own_retries,
    subscription_from_json,
)
from raftmq.broker.consume.long_polling import WORK_MAX as TURN_WORK_MAX
from raftmq.broker.consume.long_polling import Held, HoldTable, kept_bytes
from raftmq.broker.consume.sql92 import compile_expression
from raftmq.broker.consume.sql92.parser import parse
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullHeader, PullResponseHeader
from raftmq.remoting.memory_limits import Allowance
from raftmq.store.record import MessageRecord, decode_record, encode_record, walk_records
from tests.broker.cluster import Group
from tests.broker.tables.test_tables import units
from tests.present import present
from tests.waiting import until


@pytest.fixture
async def group(tmp_path):
    async with Group(tmp_path, enablePropertyFilter="true") as one:
        yield one


def bodies(body):
    return [decode_record(body, at).body for at, _ in walk_records(body)]


def properties(**values):
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


async def pull(group, broker, expression, offset=0, topic="T", **header):
    header = {
        **{"flags": 0x4, "count": 32, "wait_ms": 10_000, "kind": "SQL92", "version": 0},
        **header,
    }
    ext = PullHeader(
        "cg",
        topic,
        0,
        offset,
        header["count"],
        header["flags"],
        0,
        header["wait_ms"],
        expression,
        header["version"],
        header["kind"],
    ).to_ext()
    return await group.ask(broker, RequestCode.PULL_MESSAGE, ext)


async def beat(group, broker, *subscriptions, client="c1", model="CLUSTERING"):
    reported = [
        {"topic": topic, "subString": text, "expressionType": kind, "subVersion": 1}
        for topic, kind, text in subscriptions
    ]
    consumer = {"groupName": "cg", "messageModel": model, "subscriptionDataSet": reported}
    body = orjson.dumps({"clientID": client, "consumerDataSet": [consumer]})
    return await group.ask(broker, RequestCode.HEART_BEAT, None, body)


async def check(group, broker, kind, text):
    subscription = {"topic": "T", "expressionType": kind, "subString": text}
    body = {
        "clientId": "c",
        "group": "cg",
        "namespace": "",
        "subscriptionData": subscription,
    }
    return await group.ask(broker, RequestCode.CHECK_CLIENT_CONFIG, None, orjson.dumps(body))


async def test_pull_returns_messages_that_match_its_sql92_expression(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    for number in range(10):
        await group.send(broker, "T", b"m%d" % number, properties=properties(n=number, TAGS="A"))
    result = await pull(group, broker, "n BETWEEN 3 AND 5 AND TAGS = 'A'")
    assert (result.code, bodies(result.body)) == (0, [b"m3", b"m4", b"m5"])
    header = PullResponseHeader.parse(result.ext)
    assert (header.next_offset, header.offset_min, header.offset_max) == (10, 0, 10)
    # What does not fit is found by the next pull.
    first = await pull(group, broker, "n > 1", count=2)
    assert (bodies(first.body), first.ext["nextBeginOffset"]) == ([b"m2", b"m3"], "4")
    second = await pull(group, broker, "n > 1", offset=4)
    assert bodies(second.body) == [b"m%d" % number for number in range(4, 10)]
    nothing = await pull(group, broker, "n = 100")
    assert (nothing.code, nothing.remark) == (20, "NO_MATCHED_MESSAGE")
    assert nothing.ext["nextBeginOffset"] == "10"
    end = await pull(group, broker, "n = 100", offset=10)
    assert (end.code, end.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    moved = await pull(group, broker, "n = 100", offset=11)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED


async def test_pull_with_a_filter_scans_a_limited_number_of_messages(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    await asyncio.gather(*(group.send(broker, "T", properties=properties(n=0)) for _ in range(900)))
    await group.send(broker, "T", b"last", properties=properties(n=1))
    first = await pull(group, broker, "n = 1")
    assert (first.code, first.ext["nextBeginOffset"]) == (20, "800")
    second = await pull(group, broker, "n = 1", offset=800)
    assert bodies(second.body) == [b"last"]


async def test_pull_with_a_filter_does_a_limited_amount_of_work(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    await asyncio.gather(*(group.send(broker, "T", properties=properties(n=0)) for _ in range(99)))
    await group.send(broker, "T", b"last", properties=properties(n=1))
    text = " OR ".join(f"n = {number}" for number in range(1, 1_000))
    judged = WORK_MAX // (RECORD_WORK + compile_expression(text).work({"n": "0"})) + 1
    first = await pull(group, broker, text)
    assert (first.code, first.ext["nextBeginOffset"]) == (20, str(judged))
    offset = pulls = 0
    while (result := await pull(group, broker, text, offset=offset)).code == 20:
        offset, pulls = int(result.ext["nextBeginOffset"]), pulls + 1
    assert (bodies(result.body), pulls) == ([b"last"], 99 // judged)


async def test_filtered_read_evaluates_at_least_one_message(group):
    class Heavy:
        evaluates = True

        def work(self, _properties):
            return 10 * WORK_MAX

        def matches(self, properties):
            return properties["n"] == "1"

    broker = await group.leading()
    await group.create_topic(broker, "T")
    for number in range(2):
        await group.send(broker, "T", b"m%d" % number, properties=properties(n=number))
    reads = FilteredReads(broker.store)
    first = reads.get_messages("T", 0, 0, 32, 1 << 20, Heavy(), Work(WORK_MAX))
    assert (first.status.name, first.next_offset) == ("NO_MATCHED_MESSAGE", 1)
    second = reads.get_messages("T", 0, 1, 32, 1 << 20, Heavy(), Work(WORK_MAX))
    assert (bodies(second.buffers[0]), second.next_offset) == ([b"m1"], 2)


async def test_long_polling_wakes_only_for_matching_messages(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    held = asyncio.ensure_future(pull(group, broker, "price > 10", flags=0x6))
    await until(lambda: broker.pulls.holds.count == 1)
    await group.send(broker, "T", b"cheap", properties=properties(price=3))
    await group.send(broker, "T", b"odd", properties=properties(price="a lot"))
    await group.send(broker, "T", b"none")
    assert broker.pulls.holds.count == 1
    await group.send(broker, "T", b"dear", properties=properties(price=30))
    assert bodies((await held).body) == [b"dear"]
    assert broker.pulls.holds.count == 0


async def test_sql92_subscription_is_taken_from_the_heartbeat(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    await group.create_topic(broker, "Bad")
    for number in range(4):
        await group.send(broker, "T", b"m%d" % number, properties=properties(n=number))
    reported = ("T", "SQL92", "n > 2"), ("Bad", "SQL92", "n >")
    assert (await beat(group, broker, *reported)).code == 0
    result = await pull(group, broker, "", flags=0, version=1)
    assert bodies(result.body) == [b"m3"]
    late = await pull(group, broker, "", flags=0, version=2)
    assert late.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    other = await pull(group, broker, "", flags=0, version=2, kind="TAG")
    assert other.code == ResponseCode.SUBSCRIPTION_NOT_LATEST, "it was by expression"
    bad = await pull(group, broker, "", topic="Bad", flags=0)
    assert bad.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "line 1, column 4: expected a property" in bad.remark
    # The same text as another type is a change that members hear of.
    changed = await beat(group, broker, ("T", "TAG", "n > 2"), reported[1])
    assert changed.ext["IS_SUB_CHANGE"] == "true"


async def test_tags_newer_than_the_heartbeat_are_filtered_by_the_client(group):
    """Java's client: see broker.consume.pull."""
    broker = await group.leading()
    await group.create_topic(broker, "T")
    for tag in ("A", "B"):
        await group.send(broker, "T", tag.encode(), properties=properties(TAGS=tag))
    await beat(group, broker, ("T", "TAG", "A"))
    known = await pull(group, broker, "", flags=0, version=1, kind="TAG")
    assert bodies(known.body) == [b"A"]
    newer = await pull(group, broker, "", flags=0, version=2, kind="TAG")
    assert bodies(newer.body) == [b"A", b"B"]
    expression = await pull(group, broker, "", flags=0, version=2)
    assert expression.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


class Consumer:
    """A consumer that is asked what it subscribes to (307)."""

    def __init__(self, group, answer):
        self.group, self.answer = group, answer
        self.asked = 0
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        self.client = RemotingClient({code: self.running_info})

    def running_info(self, _connection, request):
        assert (request.ext["consumerGroup"], request.ext["clientId"]) == ("cg", "c1")
        self.asked += 1
        return RemotingCommand.response_to(request, *self.answer)

    async def __aenter__(self):
        broker = await self.group.leading()
        reported = {"topic": "T", "subString": "n > 2", "expressionType": "SQL92", "subVersion": 1}
        consumer = {"groupName": "cg", "subscriptionDataSet": [reported]}
        body = orjson.dumps({"clientID": "c1", "consumerDataSet": [consumer]})
        command = RemotingCommand.request(RequestCode.HEART_BEAT, None, body)
        assert (await self.client.invoke(broker.address, command, 60_000)).code == 0
        return self

    async def pull(self, broker, version):
        header = PullHeader("cg", "T", 0, 0, 32, 0, 0, 0, "", version, "SQL92")
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
        return await self.client.invoke(broker.address, command, 60_000)

    async def __aexit__(self, *_):
        await self.client.close()


async def test_broker_requests_a_newer_expression_from_the_consumer(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    for number in range(4):
        await group.send(broker, "T", b"m%d" % number, properties=properties(n=number))
    # As fastjson writes it, with a map that is no JSON.
    reported = (
        b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"locked":false}},'
        b'"subscriptionSet":[{"topic":"T","subString":"n < 2","expressionType":"SQL92",'
        b'"subVersion":5},{"topic":"U","subString":"*","subVersion":5}]}'
    )
    async with Consumer(group, (0, None, None, reported)) as consumer:
        assert bodies((await consumer.pull(broker, 1)).body) == [b"m3"]
        early = await consumer.pull(broker, 5)
        assert early.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await until(lambda: broker.clients.subscription("cg", "T").version == 5)
        assert bodies((await consumer.pull(broker, 5)).body) == [b"m0", b"m1"]
        assert broker.clients.subscription("cg", "U") is None
        assert consumer.asked == 1
    await until(lambda: not broker.questions.pending_count)


@pytest.mark.parametrize(
    "answer",
    [
        (ResponseCode.SYSTEM_ERROR, "no"),
        (0, None, None, b"no JSON"),
        (0, None, None, b'{"subscriptionSet":[{"topic":7}]}'),
        (0, None, None, b'{"subscriptionSet":7}'),
        (0, None, None, b"{}"),
    ],
)
async def test_consumer_that_does_not_answer_keeps_its_old_subscription(group, answer, monkeypatch):
    monkeypatch.setattr("raftmq.broker.consume.subscription_refresh.AGAIN_S", 0)
    broker = await group.leading()
    await group.create_topic(broker, "T")
    async with Consumer(group, answer) as consumer:
        for requested in (1, 2):
            late = await consumer.pull(broker, 5)
            assert late.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
            await until(lambda: not broker.questions.pending_count)
            assert consumer.asked == requested
        assert broker.clients.subscription("cg", "T").version == 1


async def test_subscription_requests_are_limited_and_end_with_the_broker(group, monkeypatch):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    questions = broker.questions
    async with Consumer(group, None) as consumer:
        consumer.client.register(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda *_: None)
        monkeypatch.setattr("raftmq.broker.consume.subscription_refresh.REQUESTS_MAX", 0)
        assert (await consumer.pull(broker, 5)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        assert not questions.pending_count
        monkeypatch.setattr("raftmq.broker.consume.subscription_refresh.REQUESTS_MAX", 1)
        for _ in range(3):
            assert (await consumer.pull(broker, 5)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        assert questions.pending_count == 1
        await group.stop("n0")
        assert not questions.pending_count


async def test_group_without_permission_cannot_broadcast(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    config = {"groupName": "cg", "consumeBroadcastEnable": False}
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert (await group.ask(broker, code, None, orjson.dumps(config))).code == 0
    await beat(group, broker, ("T", "TAG", "*"), model="BROADCASTING")
    refused = await pull(group, broker, "", flags=0)
    assert refused.code == ResponseCode.NO_PERMISSION
    await beat(group, broker, ("T", "TAG", "*"))
    assert (await pull(group, broker, "", flags=0)).code == ResponseCode.PULL_NOT_FOUND


async def test_check_client_config_rejects_malformed_expressions(group):
    broker = await group.leading()
    assert (await check(group, broker, "SQL92", "a > 5 AND b IS NOT NULL")).code == 0
    assert (await check(group, broker, "TAG", "a || b")).code == 0
    for kind, text in (("SQL92", "a >"), ("SQL92", ""), ("XPATH", "//a")):
        refused = await check(group, broker, kind, text)
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, text
    await group.create_topic(broker, "T")
    refused = await pull(group, broker, "a = 'b")
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "line 1, column 5: the string that begins here has no end" in refused.remark


async def test_sql92_is_disabled_by_default(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        await beat(group, broker, ("T", "SQL92", "n > 2"))
        for answer in (
            await check(group, broker, "SQL92", "a > 5"),
            await pull(group, broker, "n > 2"),
            await pull(group, broker, "", flags=0),
        ):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark.startswith(
                "The broker does not support consumer to filter message by SQL92"
            )


async def test_retries_are_filtered_by_the_original_topics_expression_if_enabled(tmp_path):
    settings = {"enablePropertyFilter": "true", "filterSupportRetry": "true"}
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        retry = "%RETRY%cg"
        await beat(group, broker, ("T", "SQL92", "n > 2"), (retry, "TAG", "*"))
        await until(lambda: broker.state.topics.get(retry) is not None)
        for number in (1, 3):
            text = properties(n=number, RETRY_TOPIC="T")
            await group.send(broker, retry, b"m%d" % number, properties=text)
        assert bodies((await pull(group, broker, "", topic=retry, flags=0)).body) == [b"m3"]
        change_live(broker.config, {"filterSupportRetry": False})
        result = await pull(group, broker, "", topic=retry, flags=0)
        assert bodies(result.body) == [b"m1", b"m3"]


def test_retry_of_an_unknown_topic_passes_the_filter():
    reported = {"topic": "T", "subString": "n > 2", "expressionType": "SQL92"}
    matcher = RetryMatcher({"T": subscription_from_json(reported)}.get)
    assert matcher.matches({"RETRY_TOPIC": "U", "n": "1"})
    assert matcher.matches({"n": "1"})
    assert not matcher.matches({"RETRY_TOPIC": "T", "n": "1"})
    assert [matcher.work({"RETRY_TOPIC": topic}) for topic in "TU"] == [2, 0]


@pytest.mark.parametrize("topic", ["T", "L" * 200])  # a long name makes it a V2 record
@pytest.mark.parametrize("host", [("10.0.0.1", 1), ("::1", 1)])
def test_filter_properties_are_read_without_decoding_the_record(topic, host):
    flag = 0x30 if ":" in host[0] else 0
    record = MessageRecord(
        topic, b"body", b"a\x011\x02b\x01\xff\x02", 3, 0, 7, 0, flag, 1, host, 2, host, 0, 0
    )
    data = encode_record(record)
    assert [*records_in(data * 2)] == [
        (at, len(data), 7, {"a": "1", "b": "\ufffd"}) for at in (0, len(data))
    ]


def test_properties_of_an_arrival_are_read_once_for_all_filters():
    requested = []
    released: list[Any] = []

    def properties_of(units):
        requested.append(units)
        return [{"n": "1"}, {"n": "2"}]

    holds = HoldTable(10, Allowance(0), released.append, properties_of)
    for number in (1, 2, 3):
        expected = Filter(matcher=compile_expression(f"n = {number}"))
        holds.hold(Held(("T", 0), expected, 100, number))
    holds.arrived("T", 0, units(0, 0))
    assert (released, len(requested), holds.count) == ([1, 2], 1, 1)


class Costly:
    """Takes nothing, at a price."""

    evaluates = True

    def __init__(self, work, matches=False):
        self._work = work
        self._matches = matches
        self.judged = 0

    def work(self, _properties):
        return self._work

    def matches(self, _properties):
        self.judged += 1
        return self._matches


def holding(released, matchers, messages=1):
    """Return a table that holds a pull for each of the matchers."""
    holds = HoldTable(100, Allowance(0), released.append, lambda units: [{}] * messages)
    for number, matcher in enumerate(matchers):
        holds.hold(Held(("T", 0), Filter(matcher=matcher), 100, number))
    return holds


def test_held_pulls_beyond_the_work_of_a_turn_are_evaluated_in_later_turns():
    third = TURN_WORK_MAX // 3
    released: list[Any] = []
    matchers = [Costly(third) for _ in range(6)] + [Costly(third, matches=True)]
    holds = holding(released, matchers)
    holds.hold(Held(("T", 0), Filter(frozenset({7}), Costly(third)), 100, "other tag"))
    holds.hold(Held(("T", 0), Filter(), 100, "everything"))
    holds.arrived("T", 0, units(0))
    assert ([one.judged for one in matchers], released) == ([1, 1, 1, 0, 0, 0, 0], ["everything"])
    judged = []
    while holds.rest_ms(0) == 0:
        holds.turn(0)
        judged.append(sum(one.judged for one in matchers))
    assert (judged, released, holds.count) == ([6, 7, 7], ["everything", 6], 7)


def test_pull_for_its_own_retries_does_not_wait_for_costly_filters():
    topic = "%RETRY%a_b"
    released: list[Any] = []
    holds = HoldTable(9, Allowance(0), released.append, lambda units: [{"ORIGIN_GROUP": "a"}])
    holds.hold(Held((topic, 0), Filter(matcher=Costly(TURN_WORK_MAX)), 100, "filter"))
    for number in range(2):
        expected = own_retries(Filter(), topic, "a")
        holds.hold(Held((topic, 0), expected, 100 - number, number))
    holds.arrived(topic, 0, units(0))
    assert (released, holds.unchecked_count) == ([0, 1], 0)


def test_retry_filter_of_a_group_uses_no_more_memory_than_a_tag_filter():
    request = RemotingCommand(11, ext={"topic": "%RETRY%a_b"})
    filtered = Filter(matcher=compile_expression("n = 1"))
    for expected in (Filter(), Filter(frozenset(range(9))), filtered):
        own = own_retries(expected, "%RETRY%a_b", "a")
        assert own is not expected
        assert kept_bytes(request, own) == kept_bytes(request, expected)


def test_hundreds_of_ordinary_filters_are_evaluated_at_once():
    released: list[Any] = []
    holds = HoldTable(500, Allowance(0), released.append, lambda units: [{"price": "3"}] * 10)
    expected = Filter(matcher=compile_expression("region = 'eu' AND price > 5"))
    for number in range(400):
        holds.hold(Held(("T", 0), expected, 100, number))
    holds.arrived("T", 0, units(*range(10)))
    assert (holds.unchecked_count, released) == (0, [])


def test_held_pull_not_yet_evaluated_is_evaluated_for_later_arrivals():
    requested = []
    released: list[Any] = []

    def properties_of(units):
        requested.append(len(units) // 20)
        return [{}]

    holds = HoldTable(10, Allowance(0), released.append, properties_of)
    for number in range(2):
        holds.hold(Held(("T", 0), Filter(matcher=Costly(TURN_WORK_MAX)), 100, number, "a"))
    holds.arrived("T", 0, units(0))
    holds.arrived("T", 0, units(1, 2))  # now neither can be judged
    holds.turn(0)
    holds.turn(0)
    assert (requested, released, holds.unchecked_count) == ([1, 3, 3], [], 0)
    holds.arrived("T", 0, units(0))
    holds.arrived("T", 0, units(0))
    holds.closed("a")
    assert (holds.unchecked_count, holds.count) == (0, 0)


def test_held_pull_far_behind_runs_without_evaluation():
    released: list[Any] = []
    holds = holding(released, [Costly(TURN_WORK_MAX) for _ in range(3)])
    holds.arrived("T", 0, units(0))
    holds.arrived("T", 0, units(*range(800)))
    assert (released, holds.unchecked_count) == ([], 0)
    holds.turn(0)
    assert released == [1, 2, 0]


def test_filter_too_costly_for_one_turn_releases_its_pull():
    released: list[Any] = []
    holds = holding(released, [Costly(TURN_WORK_MAX // 2) for _ in range(3)], messages=9)
    holds.arrived("T", 0, units(0))
    assert released == []
    while holds.count:
        holds.turn(0)
    assert released == [0, 1, 2]


def test_released_pulls_run_while_work_remains():
    """The filter work of their reads counts, whether a message or a time-out released them."""
    released = []

    def release(pull):
        released.append(pull)
        holds.work.left -= TURN_WORK_MAX // 2

    holds = HoldTable(100, Allowance(0), release, lambda units: [{}])
    for number in range(6):
        matcher = Costly(1, matches=True) if number < 3 else Costly(1)
        holds.hold(Held(("T", 0), Filter(matcher=matcher), 10, number))
    holds.hold(Held(("T", 1), Filter(), 20, "no matcher"))
    holds.arrived("T", 0, units(0))
    assert released == [0, 1]
    holds.turn(20)
    assert released == [0, 1, 2, 3, "no matcher"]
    holds.turn(20)
    assert (released[5:], holds.rest_ms(20)) == ([4, 5], 0)
    holds.turn(20)
    assert holds.rest_ms(20) == float("inf")


async def test_many_costly_pulls_run_one_after_another(group):
    """So many reads hold the loop for seconds, if their times are over at the same time."""
    broker = await group.leading()
    await group.create_topic(broker, "T")
    text = " OR ".join(f"n = {number}" for number in range(1, 1_000))
    held = [asyncio.ensure_future(pull(group, broker, text, flags=0x6)) for _ in range(9)]
    await until(lambda: broker.pulls.holds.count == 9)
    await asyncio.gather(*(group.send(broker, "T", properties=properties(n=0)) for _ in range(30)))
    broker.pulls.holds.turn(0)
    broker.pulls.holds.release_all()
    assert broker.pulls.holds.count >= 7
    assert {answer.code for answer in await asyncio.gather(*held)} == {20}


async def test_unreadable_arrival_releases_held_pulls(group):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    await group.send(broker, "T", properties=properties(n=1))
    queue = broker.store.queues.queue("T", 0)
    reads = FilteredReads(broker.store)
    unit = queue.entries(0, 1)
    assert [one["n"] for one in reads.properties_of(unit) or ()] == ["1"]
    assert len(present(reads.properties_of(unit * WAKE_ENTRIES_MAX))) == WAKE_ENTRIES_MAX
    assert reads.properties_of(unit * (WAKE_ENTRIES_MAX + 1)) is None
    beyond = broker.store.commitlog.max_offset.to_bytes(8, "big") + unit[8:]
    assert reads.properties_of(beyond) is None
    released: list[Any] = []
    holds = HoldTable(10, Allowance(0), released.append, lambda units: None)
    holds.hold(Held(("T", 0), Filter(matcher=compile_expression("n = 5")), 100, "woken"))
    holds.arrived("T", 0, unit)
    assert released == ["woken"]


def test_sql92_expression_of_a_heartbeat_is_compiled_at_first_use(monkeypatch):
    """A heartbeat may bring as many as fit into it, and each takes its time."""
    parsed = []

    def noted(text):
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(sql92, "parse", noted)
    text = "a > 1 AND b = 'only here'"
    reported = {"topic": "T", "subString": text, "expressionType": "SQL92"}
    subscription = subscription_from_json(reported)
    broken = subscription_from_json(reported | {"subString": "a > AND 'only here'"})
    assert not parsed
    assert subscription.matcher is subscription.matcher is not None
    assert parsed == [text]
    assert not subscription.problem
    assert broken.matcher is None
    assert "parse the consumer's subscription failed" in broken.problem
