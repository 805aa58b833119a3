"""The outcomes of what a broker stores itself: stored, not stored, not known."""

import pytest

from raftmq.broker.errors import OutcomeUnknown, Refused
from raftmq.broker.send.callbacks import Completion, is_unknown
from raftmq.dledger.raft.errors import NotLeader
from raftmq.dledger.raft.errors import OutcomeUnknown as CommandOutcomeUnknown
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError


async def test_completion_keeps_the_first_outcome():
    ended = Completion()
    ended(None)
    ended(Refused(ResponseCode.SYSTEM_ERROR, "nobody tells twice; the first counts"))
    await ended.stored()


async def test_completion_of_unknown_outcome_raises_outcome_unknown():
    ended = Completion()
    ended(OutcomeUnknown("the leader stops"))
    with pytest.raises(OutcomeUnknown) as raised:
        await ended.stored()
    assert str(raised.value) == "[OUTCOME_UNKNOWN] the leader stops"
    assert raised.value.outcome_unknown


async def test_completion_of_a_rejected_store_raises_its_code():
    ended = Completion()
    ended(Refused(ResponseCode.SYSTEM_BUSY, "later", tag="BUSY"))
    with pytest.raises(Refused) as raised:
        await ended.stored()
    assert (raised.value.code, raised.value.remark) == (ResponseCode.SYSTEM_BUSY, "[BUSY] later")


async def test_completion_without_a_waiter_is_ignored():
    ended = Completion()
    waiting = ended.stored()
    waiting.close()
    ended(None)


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (OutcomeUnknown("no majority"), True),
        (CommandOutcomeUnknown("no majority"), True),
        (RemotingError("cut off", outcome_unknown=True), True),
        (NotLeader("n1"), False),
        (Refused(ResponseCode.SYSTEM_BUSY, "later", tag="BUSY"), False),
    ],
)
def test_only_errors_marked_unknown_leave_the_outcome_unknown(error, unknown):
    assert is_unknown(error) is unknown
