"""Histories of stores: where two of them part, and what only one of them has."""

import random

import pytest

from raftmq.broker.rescue import history as module
from raftmq.broker.rescue.history import History, _walked, from_json, only_in, parting
from raftmq.broker.rescue.keep import Refused, check
from raftmq.store.commitlog.recovery import FrameHeader
from tests.present import present


def frames(terms, first=1, salt=0):
    """A frame for each term; two of one index and term differ where their salts do."""
    return [
        FrameHeader(first + at, term, at * 100, 1_000 + at, 40, 2, 1, salt)
        for at, term in enumerate(terms)
    ]


def history(*parts, node="n0", first=1, committed=0):
    made = [frame for part in parts for frame in part]
    runs, marks, _ = _walked(made, first, 0)
    return History(f"/data/{node}", node, "g", "aa", node, 9, True, first, runs, marks, committed)


def made_up(seed):
    """Two logs with a common part, and what each has behind it."""
    rng = random.Random(seed)
    common = sorted(rng.choices(range(1, 4), k=rng.randrange(40)))
    term = common[-1] if common else 1
    low = rng.randrange(2)  # 0: the other one goes on in the same term
    ends = [
        sorted(rng.choices(range(term + low * at, term + low * at + 2), k=rng.randrange(12)))
        for at in (0, 1)
    ]
    start = frames(common)
    return len(common), *(
        [*start, *frames(end, len(common) + 1, salt=at + 1)] for at, end in enumerate(ends)
    )


@pytest.mark.parametrize("marks_max", [module.MARKS_MAX, 8])
def test_two_logs_part_at_their_first_different_frame(marks_max, monkeypatch):
    monkeypatch.setattr(module, "MARKS_MAX", marks_max)
    for seed in range(300):
        common, one, other = made_up(seed)
        a, b = history(one), history(other, node="n1")
        parted = parting(a, b)
        forks = min(len(one), len(other)) > common
        assert parted is not None
        assert parted == parting(b, a)
        assert parted.common <= common
        if marks_max > 8:
            assert parted.common == common
            assert parted.differs == (common + 1 if forks else None), seed
        for x, y, frames_of in ((a, b, one), (b, a, other)):
            only = only_in(x, y)
            lacking = frames_of[common:]
            if marks_max > 8:
                assert (only is None) is not bool(lacking)
            if only is not None:
                assert only.last == len(frames_of)
                assert only.last - only.first + 1 >= len(lacking)
                assert only.messages >= 2 * len(lacking)


def test_store_history_of_a_long_log_keeps_few_shared_marks(monkeypatch):
    monkeypatch.setattr(module, "MARKS_MAX", 16)
    log = frames([1] * 900)
    one, other = history(log), history(log[:500], frames([1] * 20, 501, salt=5), node="n1")
    assert max(len(one.marks), len(other.marks)) <= 18
    parted = present(parting(one, other))
    assert parted.differs is not None
    assert parted.common is not None and parted.common <= 500 < parted.differs <= 520
    assert present(only_in(one, other)).messages >= 800


def test_trimmed_store_history_is_no_fork():
    log = frames([1] * 50)
    one, other = history(log), history(log[30:45], node="n1", first=31)
    assert parting(one, other) == module.Parting(45, None)
    assert present(only_in(one, other)).first == 46
    late = history(frames([1] * 5, 80), node="n1", first=80)
    assert parting(one, late) is None


def test_store_history_round_trip_through_json():
    import orjson

    one = history(frames([1, 1, 2]), committed=2)
    assert from_json(orjson.loads(orjson.dumps(one.to_json()))) == one


def test_rescue_rejects_keeping_stores_that_differ(tmp_path):
    stores = [tmp_path / name for name in ("n0", "n1")]
    for store in stores:
        store.mkdir()

    def of(store, *parts, **changes):
        made = history(*parts, node=store.name)
        fields = {name: getattr(made, name) for name in made.__slots__}
        return History(**{**fields, "store": str(store), **changes})

    start = frames([1] * 5)
    names = [str(store) for store in stores]
    alike = of(stores[0], start), of(stores[1], start[:3])
    check(alike, names, b"")
    forked = of(stores[0], start, frames([2], 6)), of(stores[1], start, frames([3], 6))
    check(forked, names[:1], b"")
    with pytest.raises(Refused, match=r"cannot both be kept: .* behind frame 5"):
        check(forked, names, b"")
    with pytest.raises(Refused, match="several groups"):
        check((of(stores[0], start), of(stores[1], start, group_id="bb")), names[:1], b"")
    check((of(stores[0], start), of(stores[1], start, group_id="bb")), names[:1], b"\xbb")
    with pytest.raises(Refused, match="two of these stores are of n0"):
        check((of(stores[0], start), of(stores[1], start, node="n0")), names[:1], b"")
    with pytest.raises(Refused, match="is damaged at byte 5"):
        check((of(stores[0], start, damage="at byte 5: zeros"),), names[:1], b"")
    with pytest.raises(Refused, match="on another machine"):
        check((of(tmp_path / "none", start),), [str(tmp_path / "none")], b"")
