"""Which replica a backup is read from."""

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from raftmq.broker.backup.online_source import choose
from raftmq.remoting.codes import ResponseCode

WELL = {
    "raftRole": "follower",
    "raftLeader": "n0",
    "raftRecovered": "true",
    "raftDiskState": "ok",
    "raftClockWrong": "false",
    "raftAppliedIndex": "7",
}


class Replicas:
    """Answers for each address with what its replica says of itself."""

    def __init__(self, **infos):
        self.infos = infos

    async def invoke(self, address, command, timeout_ms):
        body = orjson.dumps({"table": self.infos[address]})
        return SimpleNamespace(code=ResponseCode.SUCCESS, body=body, remark="")


@pytest.mark.parametrize(
    "worse",
    [
        {"raftClockWrong": "true"},
        {"raftDiskState": "slow"},
        {"raftRecovered": "false"},
        {"raftRole": "leader"},
        {"raftAppliedIndex": "6"},
    ],
)
async def test_backup_reads_from_the_healthy_replica(worse):
    for names in (["a", "b"], ["b", "a"]):
        assert await choose(cast(Any, Replicas(a=WELL, b=WELL | worse)), names) == "a"


async def test_replica_of_an_older_program_can_be_the_backup_source():
    older = {key: value for key, value in WELL.items() if key != "raftClockWrong"}
    ahead = WELL | {"raftAppliedIndex": "6"}
    assert await choose(cast(Any, Replicas(a=older, b=ahead)), ["a", "b"]) == "a"
