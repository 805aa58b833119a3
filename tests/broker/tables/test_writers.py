"""The table of writers: its commands and its snapshots."""

from typing import Any

import orjson
import pytest

from raftmq.broker.errors import StateError
from raftmq.broker.tables import snapshot
from raftmq.broker.tables.broker_group import group_id
from raftmq.broker.tables.state import BrokerState, announce, several
from raftmq.broker.tables.writers import (
    Watermark,
    WriterTable,
    delete_writer,
    open_writer,
    wrote,
)
from raftmq.store.disk import OsDisk

KEY = ("T", "w")


def applied(*payloads, state=None):
    state = state or BrokerState()
    for index, payload in enumerate(payloads, state.applied_index + 1):
        state.apply(index, 1_000 * index, payload)
    return state


def test_writer_is_opened_writes_and_is_deleted():
    state = applied(open_writer(*KEY, 3))
    writer = state.writers.writers[KEY]
    assert (writer.epoch, writer.stamp_ms, dict(writer.watermarks)) == (3, 1_000, {})
    applied(wrote(KEY, 1, Watermark(7, 0)), wrote(KEY, 1, Watermark(7, 1)), state=state)
    writer = state.writers.writers[KEY]
    assert (writer.stamp_ms, dict(writer.watermarks)) == (3_000, {1: (7, 1)})
    applied(open_writer(*KEY, 2), state=state)
    assert state.writers.writers[KEY].epoch == 3
    applied(open_writer(*KEY, 4), state=state)
    writer = state.writers.writers[KEY]
    assert (writer.epoch, dict(writer.watermarks)) == (4, {1: (7, 1)})
    applied(delete_writer(*KEY), wrote(KEY, 1, Watermark(8, 0)), state=state)
    assert not state.writers.writers


def test_watermarks_of_one_frame_are_all_applied_once():
    both = several([wrote(KEY, 0, Watermark(1, 0)), wrote(KEY, 1, Watermark(1, 0))])
    state = applied(open_writer(*KEY, 1), both)
    assert dict(state.writers.writers[KEY].watermarks) == {0: (1, 0), 1: (1, 0)}
    state.apply(3, 9, wrote(KEY, 0, Watermark(2, 0)))
    state.apply(2, 9, both)
    assert state.writers.writers[KEY].watermarks[0] == (2, 0)


def test_malformed_writer_command_stops_the_replica():
    for wrong in (b'{"op":"open_writer","topic":"T"}', b'{"op":"wrote","topic":"T","writer":"w"}'):
        with pytest.raises(StateError):
            applied(open_writer(*KEY, 1), wrong)


def test_writer_table_copy_is_independent_and_round_trips():
    state = applied(open_writer(*KEY, 1), wrote(KEY, 0, Watermark(5, 6)))
    twin: Any = dict(snapshot.capture(state).tables)[snapshot.WRITERS]
    applied(wrote(KEY, 0, Watermark(6, 0)), delete_writer(*KEY), state=state)
    again = WriterTable()
    again.load(orjson.loads(orjson.dumps(twin.to_json())), 2)
    assert again.writers == twin.writers and again.applied_index == 2
    assert again.writers[KEY].watermarks[0] == (5, 6)


@pytest.mark.parametrize("lost", snapshot.FILES)
def test_removed_table_file_is_reported_as_missing(tmp_path, caplog, lost):
    disk = OsDisk(str(tmp_path))
    copies = snapshot.capture(applied(group_id(bytes(16)), announce("n0", "h:1")))
    snapshot.write(disk, copies)
    disk.remove(f"{snapshot.DIRECTORY}/{lost}")
    left = BrokerState()
    assert snapshot.load(disk, left) == 0  # all is applied again, as far as the log has it
    assert snapshot.behind(left, 1) == [lost]
    assert f"snapshot_missing path=config/{lost}" in caplog.text
