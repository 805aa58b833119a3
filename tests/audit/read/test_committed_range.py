"""Which frames count: those below a commit position, and behind it those of the highest term."""

from pathlib import Path

import pyarrow as pa
import pytest

from raftmq.audit.api import run_audit
from raftmq.audit.engine.frames import Engine
from raftmq.audit.read.committed_range import _saved, not_left_over
from raftmq.audit.read.log_facts import Alike, FrameRun
from raftmq.audit.read.log_reader import LOG_SCHEMA
from raftmq.audit.read.store_files import Store
from raftmq.spark.layout import ItemKind
from raftmq.store.frame import FrameKind
from tests.audit.run import NAMES, Run

SIZE_BYTES = 100  # of a frame: header and payload
FRAMES = pa.schema(
    [
        LOG_SCHEMA.field(name)
        for name in ("store", "position", "size", "payload_length", "frame_term", "intact")
    ]
)


@pytest.mark.parametrize(
    ("terms", "committed", "term_before", "kept"),
    [
        ([], 0, 0, []),
        ([1, 1, 2, 2], 0, 0, [0, 1, 2, 3]),
        ([1, 2, 1, 1], 0, 0, [0, 1]),  # left over
        ([1, 2, 1, 2], 0, 0, [0, 1, 3]),
        ([1, 9, 1, 2, 2], 5, 0, [0, 1, 2, 3, 4]),  # damage, but nothing is left over there
        ([1, 9, 1, 2, 2], 4, 0, [0, 1, 2, 3, 4]),
        ([1, 9, 1, 2, 2], 1, 0, [0, 1]),  # nobody knows
        ([3, 3, 2, 2], 2, 0, [0, 1]),
        ([2, 3, 9, 3, 2, 3], 4, 0, [0, 1, 2, 3, 5]),
        ([5, 5, 1, 4, 5], 3, 0, [0, 1, 2, 4]),  # a last one that has fallen
        ([5, 5, 9, 5], 3, 0, [0, 1, 2]),  # one that has risen: it may be right
        ([5, 6, 5], 2, 0, [0, 1]),
        ([3, 4, 5], 0, 4, [1, 2]),
        ([3, 4, 5], 1, 4, [0, 1, 2]),
    ],
)
def test_frames_remaining_after_a_truncation_do_not_count(
    engine: Engine, terms: list[int], committed: int, term_before: int, kept: list[int]
) -> None:
    rows = [("n0", i * SIZE_BYTES, 60, 40, each, True) for i, each in enumerate(terms)]
    # Another store, whose commit position is another one.
    rows += [("n1", i * SIZE_BYTES, 60, 40, each, True) for i, each in enumerate((1, 2, 1))]
    frames = engine.table(rows, FRAMES)
    result = not_left_over(frames, {"n0": committed * SIZE_BYTES, "n1": 300}, term_before).collect()
    assert sorted(r["position"] // SIZE_BYTES for r in result if r["store"] == "n0") == kept
    assert sorted(r["position"] // SIZE_BYTES for r in result if r["store"] == "n1") == [0, 1, 2]


def test_damaged_frame_does_not_count(engine: Engine) -> None:
    rows = [("n0", 0, 60, 40, 1, True), ("n0", 100, 60, 40, 1, False), ("n0", 200, 60, 40, 1, True)]
    frames = engine.table(rows, FRAMES)
    for committed in (0, 300):
        result = not_left_over(frames, {"n0": committed}, 0).collect()
        assert sorted(row["position"] for row in result) == [0, 200]


@pytest.mark.parametrize("beyond", [0, pytest.param(1_000, marks=pytest.mark.long)])
def test_commit_position_beyond_the_log_is_reported(tmp_path: Path, beyond: int) -> None:
    """All replicas have the same frame left over, of a lower term than the last ones."""
    run = Run.plan(tmp_path).store()
    end = run.log.end
    run.log.other(4, FrameKind.NOOP)
    for name in NAMES:
        run.logs[name] = run.log
        run.commits[name] = run.log.end + beyond if beyond else end
    run.write()
    report = run_audit(run.stores, run.history_path)
    assert report.agreed_end == end
    assert report.check("commit").ok is not bool(beyond)


NEWEST, OLD, FORGED = (40, b"newest"), (30, b"old"), (45, b"forged")


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(
    ("saved", "counted"),
    [
        ((NEWEST, NEWEST, NEWEST), {NEWEST}),
        ((NEWEST, NEWEST, OLD), {NEWEST}),  # the last was down
        ((FORGED, NEWEST, NEWEST), {NEWEST}),  # of a frame that retention removed
        (((9_000, b"forged"), NEWEST, NEWEST), {NEWEST}),  # of a frame that no log has yet
        (((70, b"forged"), NEWEST, NEWEST), {NEWEST}),  # the log has another frame there
        (((60, b"changed"), (60, b"changed"), NEWEST), {(60, b"changed"), NEWEST}),
        (((60, b"changed"), None, None), {(60, b"changed")}),
    ],
)
def test_single_saved_configuration_does_not_move_the_majority(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    alike: bool,
    saved: tuple[tuple[int, bytes] | None, ...],
    counted: set[tuple[int, bytes]],
) -> None:
    """The logs have frames 50 to 80, and 60 is a configuration."""
    monkeypatch.setattr(Store, "saved_configuration", lambda store: saved[int(store.name)])
    stores = {str(number): Store(str(number), "") for number in range(3)}
    run = FrameRun(50, 80, 1, 1, 9_000, ((60, 500, 600),))
    log = Alike([((*stores,), run)], 9_000, True) if alike else Alike([], 0, False)
    kinds = {60: FrameKind.CONFIGURATION}
    rows = [
        (int(ItemKind.FRAME), index, int(kinds.get(index, FrameKind.NOOP)), True)
        for index in range(50, 81)
    ]
    names = "kind", "frame_index", "frame_kind", "intact"
    schema = pa.schema([LOG_SCHEMA.field(name) for name in names])
    frames = engine.table(rows, schema)
    assert {*_saved(frames, log, stores, None)} == counted
