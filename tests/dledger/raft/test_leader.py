"""A leader's transfer: one at a time, and one that is over never comes due."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.append_throttle import NEVER_DUE_MS
from raftmq.dledger.raft.errors import Busy
from raftmq.dledger.raft.leader import Transfer


def test_leader_rejects_a_second_transfer_until_the_first_ends() -> None:
    transfer = Transfer(1_000)
    transfer.check_none()
    transfer.start("b", 50.0)
    assert (transfer.target, transfer.due_ms) == ("b", 1_050.0)
    for other in (lambda: transfer.start("c", 60.0), transfer.check_none):
        with pytest.raises(Busy, match="handed to b"):
            other()
    transfer.start("b", 60.0)
    assert transfer.due_ms == 1_060.0


def test_ended_transfer_has_no_deadline() -> None:
    transfer = Transfer(1_000)
    transfer.start("b", 50.0)
    transfer.give_up()
    assert (transfer.target, transfer.due_ms) == (None, NEVER_DUE_MS)
    transfer.start("c", 60.0)
