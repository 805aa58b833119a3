"""How what a broker stores itself ended: stored, not stored, not known."""

import pytest

from raftmq.broker.errors import OutcomeUnknown, Refused
from raftmq.broker.sending.outcome import STORED_CODES, Ended, proposal_told
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError


@pytest.mark.parametrize("code", STORED_CODES)
async def test_it_is_stored(code):
    ended = Ended()
    ended(code, "whatever is said")
    ended(ResponseCode.SYSTEM_ERROR, "nobody tells twice; the first counts")
    await ended.stored()


async def test_what_is_not_known_is_told_as_that():
    ended = Ended()
    ended(ResponseCode.SYSTEM_ERROR, "[OUTCOME_UNKNOWN] the leader stops")
    with pytest.raises(OutcomeUnknown) as raised:
        await ended.stored()
    assert str(raised.value) == "[OUTCOME_UNKNOWN] the leader stops"
    assert raised.value.outcome_unknown


async def test_what_is_not_stored_is_refused_with_its_code():
    ended = Ended()
    ended(ResponseCode.SYSTEM_BUSY, "[BUSY] later")
    with pytest.raises(Refused) as raised:
        await ended.stored()
    assert (raised.value.code, raised.value.remark) == (ResponseCode.SYSTEM_BUSY, "[BUSY] later")


async def test_who_waited_may_be_gone():
    ended = Ended()
    waiting = ended.stored()
    waiting.close()
    ended(ResponseCode.SUCCESS, "")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, (ResponseCode.SUCCESS, "")),
        (OutcomeUnknown("no majority"), (1, "[OUTCOME_UNKNOWN] no majority")),
        (RemotingError("cut off", outcome_unknown=True), (1, "[OUTCOME_UNKNOWN] cut off")),
        (Refused(ResponseCode.SYSTEM_BUSY, "[BUSY]"), (1, "[BUSY]")),
    ],
)
def test_a_proposal_ends_as_a_store_does(error, told):
    ends = []
    proposal_told(lambda code, remark: ends.append((code, remark)))(error)
    assert ends == [told]
