"""What Apache's broker had delivered of its timer messages, as its own file tells."""

import pytest

from raftmq.broker.tables.state import BrokerState
from raftmq.broker.tables.timer_wheel import NOTHING, progress_of
from raftmq.store.disk import OsDisk
from tests.broker.doubles import config_files

# The head of a file that Apache's 5.3.3 left, stopped in order, after two timer messages.
REAL = bytes.fromhex("000001a1fcbfb2c0000000000000006800000000000000020000000000000002")
READ_MS = 0x1A1FCBFB2C0


def test_apaches_timer_check_marks_due_messages_of_its_wheel_as_delivered():
    progress = progress_of(REAL + bytes(4_064))
    assert not progress.lets_wait(READ_MS - 1_000, 0)
    assert not progress.lets_wait(READ_MS - 1, 1)
    assert progress.lets_wait(READ_MS, 1)  # its slot was the next to be read
    assert progress.lets_wait(READ_MS - 1_000, 2)  # it was not in the wheel yet


@pytest.mark.parametrize("data", [b"", REAL[:31], bytes(4_096), b"\xff" * 32])
def test_damaged_or_empty_timer_check_has_no_progress(data):
    assert progress_of(data) == NOTHING


def test_apaches_timer_check_counts_only_without_own_progress(tmp_path):
    disk = OsDisk(str(tmp_path))
    config = tmp_path / "config"
    config.mkdir()
    (config / "timercheck").write_bytes(REAL)
    (config / "delayOffset.json").write_text('{"offsetTable":{"3":7}}')

    def loaded():
        state = BrokerState()
        config_files(disk, state).load()
        return state.delays

    assert (loaded().timer.due_ms, loaded().offsets) == (READ_MS, {3: 7})
    ours = '{"offsetTable":{},"timer":{"due_ms":5,"offset":1,"end":2,"floor":0}}'
    (config / "delayOffset.json").write_text(ours)
    assert loaded().timer.due_ms == 5
