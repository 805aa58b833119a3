"""Requests of tools: bodies, and the limits of what is kept and answered."""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from raftmq.broker.admin import progress, stats
from raftmq.broker.admin.stats import GroupRates
from raftmq.broker.consume import offset_resets as resets
from raftmq.broker.consume.offset_resets import ResetMarks, Wait
from raftmq.broker.errors import Refused
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.state import BrokerState, commit_offsets, reset_offsets
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import MessageQueue, dumps, loads_object
from tests.ops.scrape import Scrape
from tests.waiting import until

DAY_S = 86_400


async def asked(group, broker, code, /, **ext):
    response = await group.ask(broker, code, ext)
    return response.code, loads_object(response.body or b"{}")


async def test_admin_request_bodies_are_answered(group):
    broker = await group.leading()
    await group.create_topic(broker, "T", 2)
    for number in range(5):
        await group.send(broker, "T", b"m%d" % number)
    body = orjson.dumps({"groupName": "cg"})
    await group.ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    assert (await group.commit(broker, "T", 0, 3)).code == 0
    first, second = (MessageQueue("T", "group-a", number) for number in (0, 1))

    code, result = await asked(group, broker, RequestCode.GET_TOPIC_STATS_INFO, topic="T")
    assert (code, result["offsetTable"][second]["maxOffset"]) == (0, 0)
    assert result["offsetTable"][first]["maxOffset"] == 5
    newest_ms = result["offsetTable"][first]["lastUpdateTimestamp"]
    assert newest_ms > 0

    code, result = await asked(group, broker, RequestCode.GET_CONSUME_STATS, consumerGroup="cg")
    at = result["offsetTable"][first]
    assert (at["brokerOffset"], at["consumerOffset"]) == (5, 3)
    assert 0 < at["lastTimestamp"] <= newest_ms
    code, _ = await asked(group, broker, RequestCode.GET_CONSUME_STATS, consumerGroup="nobody")
    assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    code, result = await asked(group, broker, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert (code, result["totalDiff"]) == (0, 2)
    code, result = await asked(group, broker, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")
    assert result == {"groupList": ["cg"]}
    code, result = await asked(group, broker, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="cg")
    assert result["topicList"] == ["T"]
    code, result = await asked(
        group, broker, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="cg"
    )
    assert [span["messageQueue"]["queueId"] for span in result["consumeTimeSpanSet"]] == [0, 1]
    code, result = await asked(
        group, broker, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T"
    )
    assert {name: window["sum"] for name, window in result.items()} == {
        "statsDay": 5,
        "statsHour": 5,
        "statsMinute": 5,
    }
    code, _ = await asked(
        group, broker, RequestCode.VIEW_BROKER_STATS_DATA, statsName="NO", statsKey="T"
    )
    assert code == ResponseCode.SYSTEM_ERROR


async def test_lag_of_a_broadcasting_group_is_not_reported(group):
    broker = await group.leading()
    await group.create_topic(broker, "T", 2)
    await group.send(broker, "T", b"m")
    subscription = {"topic": "T", "subString": "*", "subVersion": 1}
    member = {"groupName": "all", "subscriptionDataSet": [subscription]}
    for model, lag, queues in (("CLUSTERING", 1, 2), ("BROADCASTING", 0, 0)):
        consumers = [{**member, "messageModel": model}]
        body = orjson.dumps(
            {"clientID": model, "producerDataSet": [], "consumerDataSet": consumers}
        )
        assert (await group.ask(broker, RequestCode.HEART_BEAT, None, body)).code == 0
        await until(lambda: "all" in broker.state.groups.entries)
        code, result = await asked(
            group, broker, RequestCode.GET_CONSUME_STATS, consumerGroup="all"
        )
        assert code == 0 and sum(of.topic == "T" for of in result["offsetTable"]) == queues
        _, result = await asked(
            group, broker, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"
        )
        assert result["totalDiff"] == lag


async def test_consume_delay_is_the_age_of_the_groups_next_message(group):
    broker = await group.leading()
    await group.create_topic(broker, "T", 1)

    async def span() -> tuple[int, int, int]:
        code = RequestCode.QUERY_CONSUME_TIME_SPAN
        _, result = await asked(group, broker, code, topic="T", group="cg")
        (one,) = result["consumeTimeSpanSet"]
        return one["consumeTimeStamp"], one["delayTime"], one["minTimeStamp"]

    assert await span() == (0, 0, 0)
    stored: list[Any] = []
    for _ in range(4):
        await group.send(broker, "T")
        number = len(stored)
        stored.append(progress.stored_ms(broker.store, "T", 0, number))
        await asyncio.sleep(0.02)
    broker.store.queues.queue("T", 0).correct_min(broker.store.queues.queue("T", 0).entry(1)[0])
    for offset, consumed, waiting in ((0, 1, 1), (1, 1, 1), (2, 1, 2), (3, 2, 3), (4, 3, None)):
        await group.commit(broker, "T", 0, offset)
        before_ms = broker.context.wall_ms()
        consumed_ms, delay_ms, min_ms = await span()
        assert (consumed_ms, min_ms) == (stored[consumed], stored[1])
        if waiting is None:
            assert delay_ms == 0
        else:
            assert before_ms <= stored[waiting] + delay_ms <= broker.context.wall_ms()


@pytest.mark.parametrize(("subscribed", "lag"), [(["U"], 0), (["T", "U"], 15), ([], 15)])
async def test_topic_that_an_online_group_unsubscribed_has_no_lag(group, subscribed, lag):
    broker = await group.leading()
    await group.create_topic(broker, "T", 1)
    await group.create_topic(broker, "U", 1)
    for _ in range(20):
        await group.send(broker, "T")
    await group.commit(broker, "T", 0, 5)
    subscriptions = [{"topic": t, "subString": "*", "subVersion": 1} for t in subscribed]
    member = {"groupName": "cg", "messageModel": "CLUSTERING"}
    consumers = [{**member, "subscriptionDataSet": subscriptions}]
    body = orjson.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": consumers})
    assert (await group.ask(broker, RequestCode.HEART_BEAT, None, body)).code == 0
    for ext in ({}, {"topic": "T"}):
        code, result = await asked(
            group, broker, RequestCode.GET_CONSUME_STATS, consumerGroup="cg", **ext
        )
        ends = [at["brokerOffset"] for of, at in result["offsetTable"].items() if of.topic == "T"]
        assert (code, ends) == (0, [20] if lag else [])
    _, result = await asked(group, broker, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert result["totalDiff"] == lag
    scrape = Scrape(broker.metrics.render()[0].decode())
    lags = [value for name, _, value in scrape.samples if name == "rocketmq_consumer_lag_messages"]
    assert lags == ([lag] if lag else [])
    assert scrape.sum("rocketmq_consumer_lag_omitted") == 0


class Pairs(dict):
    """Offsets by (topic, group) that count how often all are looked at."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


async def test_progress_of_many_groups_yields_to_the_event_loop(monkeypatch):
    """Their topics are found in one pass, and others have the loop all the time."""

    async def barrier():
        pass

    async def written(value):  # without a thread, during which there are turns anyway
        return dumps(value)

    monkeypatch.setattr(progress, "_written", written)
    state, count = BrokerState(), 200
    names = [f"g{number:03}" for number in range(count)]
    state.topics.entries["T"] = TopicConfig("T", 1, 1)
    state.groups.entries.update((name, SubscriptionGroup(name)) for name in names)
    pairs = state.offsets.offsets = Pairs({("T", name): {0: 7} for name in names})
    store = SimpleNamespace(queues=SimpleNamespace(queue=lambda *_: None), commitlog=None)
    log, config = SimpleNamespace(barrier=barrier), SimpleNamespace(broker_name="b")
    context: Any = SimpleNamespace(state=state, store=store, log=log, config=config, address="x")
    clients: Any = SimpleNamespace(consumers={}, has_left=lambda *_: False)
    rates = GroupRates(state, lambda: 0)
    nobody: Any = None
    queries = progress.ProgressQueries(context, clients, rates)
    request = RemotingCommand.request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    answer = asyncio.ensure_future(queries.broker_consume_stats(nobody, request))
    turns = 0
    while not answer.done():
        turns += 1
        await asyncio.sleep(0)
    result = loads_object((await answer).body)
    assert len(result["consumeStatsList"]) == count and result["totalDiff"] == -7 * count
    assert pairs.passes == 1
    # A step for each pair, each group, each topic in a group, and its queue.
    assert turns >= 4 * count // progress.STEPS_PER_TURN


async def test_queue_entries_are_answered_up_to_a_limit(group, monkeypatch):
    monkeypatch.setattr(progress, "ENTRIES_MAX", 3)
    broker = await group.leading()
    await group.create_topic(broker, "T", 1)
    for _ in range(5):
        await group.send(broker, "T")
    for index, count, expected in (("0", "9", 3), ("4", "9", 1), ("5", "9", 0), ("0", "-1", 0)):
        code, result = await asked(
            group,
            broker,
            RequestCode.QUERY_CONSUME_QUEUE,
            topic="T",
            queueId="0",
            index=index,
            count=count,
        )
        assert (code, len(result["queueData"])) == (0, expected)
        assert (result["minQueueIndex"], result["maxQueueIndex"]) == (0, 5)


async def test_configuration_update_is_applied_completely_or_not_at_all(group):
    broker = await group.leading()
    code = RequestCode.UPDATE_BROKER_CONFIG
    assert (await group.ask(broker, code, None, b"metricsSeriesMax=7\n")).code == 0
    assert broker.config.metrics_series_max == 7
    for body, says in (
        (b"metricsSeriesMax=8\nlistenPort=1\n", "listenPort: not while"),
        (b"metricsSeriesMax=-1\n", "at least 0"),
        (b"metricSeriesMax=8\n", "did you mean metricsSeriesMax"),
        (b"\xff", "decode"),
    ):
        response = await group.ask(broker, code, None, body)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert says in response.remark
        assert broker.config.metrics_series_max == 7


async def test_request_to_an_offline_consumer_is_rejected(group):
    broker = await group.leading()
    ext = {"consumerGroup": "cg", "clientId": "c", "group": "cg", "topic": "T"}
    for code in (
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    ):
        response = await group.ask(broker, code, ext)
        assert response.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_group_rates_are_limited_in_pairs(monkeypatch):
    monkeypatch.setattr(stats, "PAIRS_MAX", 1)
    now = [0]
    state = BrokerState()
    rates = GroupRates(state, lambda: now[0])
    for minute in range(5):
        now[0] = minute * 60_000
        offset = 600 * minute
        state.apply(minute + 1, 0, commit_offsets([("T", "g", 0, offset), ("U", "h", 0, offset)]))
        rates.sample()
    assert rates.stats("T", "g")["statsMinute"] == {"sum": 600, "tps": 10.0, "avgpt": 0.0}
    assert rates.stats("T", "g")["statsDay"]["sum"] == 2400
    assert rates.stats("U", "h")["statsDay"]["sum"] == 0  # one too many
    state.offsets.delete_group("g")
    now[0] += DAY_S * 1000
    rates.sample()
    rates.sample()
    assert rates.stats("T", "g")["statsDay"]["sum"] == 0
    assert rates.stats("U", "h")["statsMinute"]["sum"] == 0


def test_group_rates_count_the_advance_of_committed_offsets():
    now, state = [0], BrokerState()
    rates, index = GroupRates(state, lambda: now[0]), iter(range(1, 99))

    def took(change) -> int:
        now[0] += 5_000
        state.apply(next(index), 0, change)
        seen = rates.stats("T", "g")["statsMinute"]["sum"]
        now[0] += 5_000
        rates.sample()
        assert rates.stats("T", "g")["statsMinute"]["sum"] == seen
        return seen

    assert took(commit_offsets([("T", "g", 0, 1_000_000)])) == 0
    assert took(commit_offsets([("T", "g", 0, 1_000_010)])) == 10
    assert took(commit_offsets([("T", "g", queue, 1_000_000) for queue in range(1, 8)])) == 10
    assert took(commit_offsets([("T", "g", 1, 1_000_005)])) == 15
    assert took(reset_offsets([("T", "g", 0, 10), ("T", "g", 1, 1_000_007)])) == 17
    state.offsets.resets.clear()  # it has gone there
    assert took(commit_offsets([("T", "g", 0, 13)])) == 20


async def test_topic_put_rate_reads_only_the_topics_own_queues(group, monkeypatch):
    broker = await group.leading()
    await group.create_topic(broker, "T", 2)
    for queue in (0, 1, 1):
        await group.send(broker, "T", b"m", queue)
    monkeypatch.delattr(broker.store.queues.__class__, "topics")
    _, result = await asked(
        group, broker, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T"
    )
    assert result["statsDay"]["sum"] == 3
    monkeypatch.undo()


def test_pulls_that_wait_for_a_reset_are_limited(monkeypatch):
    monkeypatch.setattr(resets, "WAITING_MAX", 2)
    state = BrokerState()
    state.apply(1, 0, reset_offsets([("T", "g", 0, 5)]))
    proposed = []
    again: list[Any] = []
    context: Any = SimpleNamespace(
        state=state,
        roles=SimpleNamespace(require_leading=lambda: None),
        log=SimpleNamespace(propose_then=lambda command, done: proposed.append((command, done))),
    )
    commits: Any = SimpleNamespace(flush=lambda: None)
    judge: Any = ResetMarks(context, commits).judge
    where = ("T", "g", 0)
    assert judge(*where, 9, again.append) == 5
    for _ in range(2):
        assert judge(*where, 5, lambda: again.append(1)) is Wait.LATER
    with pytest.raises(Refused, match="BUSY"):
        judge(*where, 5, lambda: again.append(1))
    ((command, done),) = proposed
    state.apply(2, 0, command)
    done(None)
    assert (again, judge(*where, 5, again.clear)) == ([1, 1], None)
