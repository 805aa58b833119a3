"""Names and commands that would end a replica that applies them are refused before they are
logged."""

import orjson
import pytest

from raftmq.broker.errors import Refused
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.state import put_group, put_topic
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.headers import PullHeader
from tests.broker.cluster import Group
from tests.waiting import until


async def test_name_that_no_group_can_have_is_not_logged(tmp_path):
    """In it, it would end every replica that applies it, and every one that starts again."""
    async with Group(tmp_path) as group:
        broker = await group.leading()
        assert (await group.create_topic(broker, "T")).code == 0
        for name in (" ", "a b", "g@h", "x" * 249):
            consumers = [{"groupName": name, "subscriptionDataSet": []}]
            body = orjson.dumps({"clientID": "c", "consumerDataSet": consumers})
            answer = await group.ask(broker, RequestCode.HEART_BEAT, {}, body)
            assert (answer.code, "group name" in answer.remark) == (1, True)
            assert (await group.commit(broker, "T", 0, 1, group=name)).code == 1
            header = PullHeader(name, "T", 0, 0, 32, 0x4, 0, 1000, "*", 0)
            answer = await group.ask(broker, RequestCode.PULL_MESSAGE, header.to_ext())
            assert answer.code != 0
        assert (await group.commit(broker, "Unknown", 0, 1)).code == 17
        consumers = [{"groupName": "x" * 248, "subscriptionDataSet": []}]
        body = orjson.dumps({"clientID": "c", "consumerDataSet": consumers})
        assert (await group.ask(broker, RequestCode.HEART_BEAT, {}, body)).code == 0
        await until(lambda: broker.state.topics.get("%RETRY%" + "x" * 248) is not None)
        assert (await group.send(broker, "T")).code == 0
        with pytest.raises(Refused, match="characters outside"):
            put_group(SubscriptionGroup("a b"))
        with pytest.raises(Refused, match="characters outside"):
            put_topic(TopicConfig("a b"))
