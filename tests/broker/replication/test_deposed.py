"""A leader that was deposed and does not know it yet: what it cannot know it does not say."""

import asyncio
from unittest.mock import patch

import pytest

from raftmq.dledger.raft.errors import NotLeader
from raftmq.remoting.admin_headers import QueryMessageHeader, ResetOffsetHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.headers import PullHeader, SendHeader, SendResponseHeader
from raftmq.remoting.pop_headers import AckHeader, ChangeHeader
from raftmq.store.record import decode_offset_message_id
from tests.broker.cluster import Group
from tests.broker.pop.consumer import Popper
from tests.broker.replication.frozen import SOON, frozen, successor
from tests.waiting import until


@pytest.fixture
async def group(tmp_path):
    async with Group(tmp_path, count=3, **SOON) as three:
        await three.create_topic(await three.leading(), "T", 1)
        yield three


async def served(group, broker):
    """Wait until the broker has taken what was asked of it before."""
    assert (await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0


def position_of(sent):
    """Return where in the log a message was stored."""
    return decode_offset_message_id(SendResponseHeader.parse(sent.ext).message_id)[1]


async def test_deposed_leader_moves_no_consumer(group):
    """Its queue ends before the consumer's offset: answered 21, the consumer went back and got
    messages a second time."""
    old = await group.leading()
    await group.send(old, "T")
    with frozen(old):
        new = await successor(group, old)
        for _ in range(3):
            assert (await group.send(new, "T")).code == 0
        result = await group.pull(old, "T", 0)  # committed, whoever leads: answered at once
        assert result.code == ResponseCode.SUCCESS
        pulls = [
            asyncio.ensure_future(group.pull(old, "T", 4, flags=flags)) for flags in (0x4, 0x6)
        ]
        await served(group, old)
    for pulled in await asyncio.gather(*pulls):
        assert (pulled.code, pulled.remark[:12]) == (14, "[NOT_LEADER]")
        assert (pulled.ext or {}).get("leaderAddr") in (None, new.address)
    assert (await group.pull(new, "T", 4)).code == ResponseCode.PULL_NOT_FOUND
    assert (await group.pull(new, "T", 7)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_deposed_leader_confirms_no_offset_reset(group):
    old = await group.leading()
    for _ in range(6):
        await group.send(old, "T")
    assert (await group.commit(old, "T", 0, 5)).code == 0
    reset = ResetOffsetHeader("T", "cg", 0).to_ext()
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    assert (await group.ask(old, code, reset)).code == 0
    with frozen(old):
        new = await successor(group, old)
        assert (await group.pull(new, "T", 5)).remark == "OFFSET_RESET"
        assert (await group.pull(new, "T", 0)).code == ResponseCode.SUCCESS
        pulled = asyncio.ensure_future(group.pull(old, "T", 5))
        await served(group, old)
    assert (await pulled).remark.startswith("[NOT_LEADER]")


async def test_deposed_leader_does_not_report_missing_topics_or_messages(group):
    """It answered that topics, messages and what was popped did not exist, and where queues ended,
    as if it still led."""
    old = await group.leading()
    first = position_of(await group.send(old, "T", properties="KEYS\x01k\x02"))
    with frozen(old):
        new = await successor(group, old)
        await group.create_topic(new, "New", 1)
        position = position_of(await group.send(new, "T", properties="KEYS\x01k\x02"))
        handle = (await Popper(group).pop(new))[0].handle
        topic, queue = {"topic": "T"}, {"topic": "T", "queueId": "0"}
        answers = {
            code: asyncio.ensure_future(group.ask(old, code, ext))
            for code, ext in {
                RequestCode.QUERY_MESSAGE: QueryMessageHeader("T", "k", 9, 0, 1 << 62).to_ext(),
                RequestCode.QUERY_CONSUMER_OFFSET: queue | {"consumerGroup": "cg"},
                RequestCode.GET_ALL_TOPIC_CONFIG: None,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: queue | {"timestamp": str(1 << 62)},
                RequestCode.GET_MAX_OFFSET: queue,
                RequestCode.GET_MIN_OFFSET: {"topic": "New", "queueId": "0"},
                RequestCode.GET_EARLIEST_MSG_STORETIME: queue,
                RequestCode.VIEW_MESSAGE_BY_ID: {"offset": str(position)},
                RequestCode.CONSUMER_SEND_MSG_BACK: {
                    "offset": str(position), "group": "cg", "delayLevel": "0"
                },
                RequestCode.GET_ALL_CONSUMER_OFFSET: None,
                RequestCode.GET_ALL_DELAY_OFFSET: None,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: None,
                RequestCode.GET_TOPIC_STATS_INFO: topic,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetHeader(
                    "T", "cg", -1, force=False
                ).to_ext(),
                RequestCode.CLONE_GROUP_OFFSET: {"srcGroup": "cg", "destGroup": "other"},
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topic,
                RequestCode.VIEW_BROKER_STATS_DATA: {
                    "statsName": "TOPIC_PUT_NUMS", "statsKey": "T"
                },
                RequestCode.QUERY_CONSUME_QUEUE: queue | {"index": "0"},
                RequestCode.QUERY_TOPICS_BY_CONSUMER: {"group": "cg"},
                RequestCode.GET_TOPIC_CONFIG: topic,
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: {"group": "cg"},
                RequestCode.PULL_MESSAGE: PullHeader(
                    "cg", "New", 0, 0, 32, 0x6, 0, 30_000, "*", 0
                ).to_ext(),
                RequestCode.SEND_MESSAGE_V2: SendHeader(
                    "pg", "New", "none", 4, 0, 0, 1, 0, ""
                ).to_ext(310),
                RequestCode.WRITERS: topic | {"op": "delete", "writer": "w"},
                RequestCode.ACK_MESSAGE: AckHeader("cg", "T", 0, handle.encode(), 0).to_ext(),
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeHeader(
                    "cg", "T", 0, handle.encode(), 0, 1_000
                ).to_ext(),
            }.items()
        }  # fmt: skip
        await served(group, old)
        result = await group.ask(old, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(first)})
        assert result.code == ResponseCode.SUCCESS  # it is committed, whoever leads
    for code, answer in answers.items():
        assert (await answer).remark.startswith("[NOT_LEADER]"), code


async def test_leader_that_just_lost_leadership_names_no_leader(group):
    """The engine knows it a moment before the broker, which named itself as the leader to ask."""
    old = await group.leading()
    await until(lambda: old.roles.leader_address == old.address)
    lost = patch.object(old.engine, "read_barrier", side_effect=NotLeader(None))
    for ext in ({"topic": "T", "queueId": "0"}, {"topic": "New", "queueId": "0"}):
        with lost:
            refused = await group.ask(old, RequestCode.GET_MAX_OFFSET, ext)
        assert (refused.remark[:12], refused.ext) == ("[NOT_LEADER]", {})
