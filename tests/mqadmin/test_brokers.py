"""What commands about brokers say of their answers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.client.admin.brokers import BrokerAdmin
from raftmq.client.admin.cluster import ClusterInfo
from raftmq.client.route import BrokerData
from raftmq.mqadmin.brokers import delete_log, update_config
from raftmq.mqadmin.command import Arguments, Done
from raftmq.remoting.command import RemotingCommand

BROKER = "127.0.0.1:10911"


class Answering:
    """Answers every request with these fields."""

    def __init__(self, ext):
        self.ext = ext

    async def ask(self, *_, **__):
        return RemotingCommand(0, 1, 1, ext=self.ext)


@pytest.mark.parametrize(
    ("ext", "sentence"),
    [
        (None, "expired CommitLog files deleted at {}"),  # Apache's
        (
            {"deletedBytes": "4096", "keptBytes": "0"},
            "4096 bytes of expired CommitLog files deleted at {}",
        ),
        (
            {"deletedBytes": "0", "keptBytes": "8192", "keptFor": "the others"},
            "0 bytes of expired CommitLog files deleted at {}; 8192 more have expired there and are"
            " kept for the others",
        ),
    ],
)
async def test_delete_log_reports_deleted_files_and_why_the_rest_is_kept(ext, sentence):
    admin: Any = SimpleNamespace(broker=BrokerAdmin(cast(Any, Answering(ext))))
    arguments = Arguments({"brokerAddr": BROKER, "cluster": None})
    (done,) = await delete_log(admin, arguments)
    assert isinstance(done, Done) and done.sentence == sentence.format(BROKER)


class Group:
    """A broker group of a leader and a follower; `changed` are the brokers whose keys were set."""

    def __init__(self):
        self.cluster = self.broker = self
        self.changed = []

    async def info(self):
        return ClusterInfo(
            {"a": BrokerData("c", "a", {0: "leader:1", 2: "other:1"})}, {"c": ("a",)}
        )

    async def update_config(self, address, key, value):
        self.changed.append(address)


@pytest.mark.parametrize(
    ("given", "changed", "sentence"),
    [
        ({"clusterName": "c"}, ["leader:1"],
         "k=v at leader:1; not at other:1, which lead no group: -a true"),
        ({"clusterName": "c", "updateAllBroker": True}, ["leader:1", "other:1"],
         "k=v at leader:1, other:1"),
        ({"brokerAddr": "other:1"}, ["other:1"], "k=v at other:1"),
        ({"brokerAddr": "other:1", "updateAllBroker": True}, ["other:1"], "k=v at other:1"),
    ],
)  # fmt: skip
async def test_update_config_reports_brokers_that_were_not_changed(given, changed, sentence):
    group = Group()
    (done,) = await update_config(cast(Any, group), Arguments({"key": "k", "value": "v"} | given))
    assert isinstance(done, Done)
    assert (group.changed, done.sentence) == (changed, sentence)
    assert done.values["brokers"] == changed
