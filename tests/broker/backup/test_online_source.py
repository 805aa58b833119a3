"""Which replica a backup is read from."""

from types import SimpleNamespace

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
async def test_the_replica_that_is_well_is_read(worse):
    for names in (["a", "b"], ["b", "a"]):
        assert await choose(Replicas(a=WELL, b=WELL | worse), names) == "a"


async def test_one_of_an_older_program_says_nothing_of_its_clock():
    older = {key: value for key, value in WELL.items() if key != "raftClockWrong"}
    ahead = WELL | {"raftAppliedIndex": "6"}
    assert await choose(Replicas(a=older, b=ahead), ["a", "b"]) == "a"
