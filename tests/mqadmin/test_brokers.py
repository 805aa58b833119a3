"""What commands about brokers say of their answers."""

from types import SimpleNamespace

import pytest

from raftmq.client.admin.brokers import BrokerAdmin
from raftmq.mqadmin.brokers import delete_log
from raftmq.mqadmin.command import Arguments
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
async def test_it_says_what_was_deleted_and_what_the_rest_is_kept_for(ext, sentence):
    admin = SimpleNamespace(broker=BrokerAdmin(Answering(ext)))
    arguments = Arguments({"brokerAddr": BROKER, "cluster": None})
    (done,) = await delete_log(admin, arguments)
    assert done.sentence == sentence.format(BROKER)
