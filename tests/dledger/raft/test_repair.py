"""Repair, the pure part: what a peer answers, what is believed, when it is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import ANY

import pytest

from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.repair import (
    DAMAGED_FRAMES_MAX,
    RESPONSE_BYTES_MAX,
    Asker,
    BadPatch,
    DamagedFrame,
    FrameRepair,
    GiveUp,
    Outcome,
    Patch,
    RepairRequest,
    RepairResponse,
    RepairTiming,
    ResponderState,
    StartRepair,
    answer,
    checked_frames,
)
from raftmq.store.errors import StoreDamaged
from raftmq.store.frame import Frame, FrameKind, seal_frame

SEGMENT = 1 << 24
A, B, C = "a", "b", "c"
VOTERS = frozenset((A, B, C))
TIMING = RepairTiming(retry_ms=100, retry_ms_max=400, give_up_ms=1000)


def segment_end(position: int) -> int:
    return (position // SEGMENT + 1) * SEGMENT


class Log:
    """A whole log in memory, and the view a repair has of a damaged one."""

    def __init__(self, terms: Sequence[int], size: int = 40) -> None:
        self.index = LogIndex()
        self.frames: list[Frame] = []
        self.unreadable: set[int] = set()
        self.lost: set[int] = set()  # headers that are damaged
        for term in terms:
            self.add(term, size)

    def add(self, term: int, size: int) -> Frame:
        index = len(self.frames) + 1
        position = self.frames[-1].end if self.frames else 0
        if position + size + 68 > segment_end(position):
            position = segment_end(position)
        payload = (b"%d@%d;" % (index, term)) * size
        frame = seal_frame(index, term, position, 5, FrameKind.COMMAND, 0, payload[:size])
        self.frames.append(frame)
        self.index.append(frame)
        return frame

    def read(self, first: int, last: int, bytes_max: int) -> tuple[Frame, ...]:
        if first in self.unreadable:
            raise StoreDamaged(0, "says the test")
        return tuple(self.frames[first - 1 : last])

    def damaged(self, index: int, *, known: bool = False) -> DamagedFrame:
        frame = self.frames[index - 1]
        prev = self.frames[index - 2] if index > 1 else None
        return DamagedFrame(
            index,
            prev.term if prev else 0,
            frame.term if known else 0,
            frame.position if known else (prev.end if prev else 0),
            frame.size_bytes if known else 0,
        )

    # DamagedLog
    def segment_end(self, position: int) -> int:
        return segment_end(position)

    def following(self, position: int) -> tuple[int, int] | None:
        for frame in self.frames:
            if frame.position in (position, segment_end(position)) and (
                frame.index not in self.lost
            ):
                return frame.index, frame.term
        return None


def ask(log: Log, index: int, prev_term: int = 1, term: int = 0, **more: object) -> RepairResponse:
    recovered = ResponderState.RECOVERED
    settings = {"commit": len(log.frames), "responder": recovered, "offset": 0} | more
    request = RepairRequest(A, B, 7, index, prev_term, term, int(settings["offset"]))  # type: ignore[call-overload]
    return answer(request, log.index, settings["commit"], settings["responder"], log.read, 1)  # type: ignore[arg-type]


# -- answers ---------------------------------------------------------------------------------------


def test_repair_response_has_frames_and_the_next_term() -> None:
    log = Log([1, 1, 2, 2])
    response = ask(log, 2, 1, commit=3)
    assert (response.sender, response.to, response.number, response.index) == (B, A, 7, 2)
    assert (response.outcome, response.commit_index) == (Outcome.FRAMES, 3)
    assert response.data == b"".join(f.data for f in log.frames[1:])
    assert response.next_term == 0
    known = ask(log, 2, 1, 1)
    assert (known.data, known.next_term) == (log.frames[1].data, 2)


@pytest.mark.parametrize(
    ("index", "prev_term", "term", "outcome"),
    [
        (2, 1, 0, Outcome.FRAMES),
        (1, 0, 0, Outcome.FRAMES),
        (5, 2, 0, Outcome.LACKS),
        (9, 2, 7, Outcome.LACKS),
        (3, 9, 0, Outcome.CONFLICT),  # the committed frame before it is another one
        (4, 9, 0, Outcome.CONFLICT),
        (3, 9, 2, Outcome.FRAMES),  # the same frame: then everything before it is the same
        (3, 1, 1, Outcome.CONFLICT),
        (4, 2, 1, Outcome.LATER),  # not committed: this log may still change
    ],
)
def test_repair_response_outcome_for_each_request(
    index: int, prev_term: int, term: int, outcome: Outcome
) -> None:
    response = ask(Log([1, 1, 2, 2]), index, prev_term, term, commit=3)
    assert response.outcome is outcome
    assert bool(response.data) == (outcome is Outcome.FRAMES)


def test_differing_uncommitted_prefix_is_answered_with_later() -> None:
    assert ask(Log([1, 1, 2, 2]), 4, 9, commit=2).outcome is Outcome.LATER


def test_repair_response_for_trimmed_and_damaged_frames() -> None:
    log = Log([1, 1, 2, 2])
    log.index.trim(3)
    assert ask(log, 2).outcome is Outcome.TRIMMED
    assert ask(log, 3).outcome is Outcome.FRAMES  # the term before it is still known
    log.unreadable = {3}
    assert ask(log, 3).outcome is Outcome.LATER


def test_peer_under_repair_never_denies_a_frame() -> None:
    log = Log([1, 1])
    assert ask(log, 3, responder=ResponderState.REPAIRS).outcome is Outcome.LATER
    assert ask(log, 2, 9, responder=ResponderState.REPAIRS).outcome is Outcome.LATER
    assert ask(log, 2, 1, responder=ResponderState.REPAIRS, commit=0).outcome is Outcome.FRAMES


def test_repair_response_is_bounded_in_bytes() -> None:
    log = Log([1] * 5, size=RESPONSE_BYTES_MAX // 3)
    response = ask(log, 2)
    assert response.data == b"".join(f.data for f in log.frames[1:3])
    large = Log([1, 1], size=3 * RESPONSE_BYTES_MAX)
    complete = large.frames[1].data
    parts: list[bytes] = []
    while len(b"".join(parts)) < len(complete):
        offset = len(b"".join(parts))
        parts.append(ask(large, 2, offset=offset).data)
        assert 0 < len(parts[-1]) <= RESPONSE_BYTES_MAX
    assert b"".join(parts) == complete
    assert ask(large, 2, offset=len(complete) + 5).data == b""


# -- what is believed ------------------------------------------------------------------------------


def altered(frame: Frame, **changes: int) -> bytes:
    fields = {
        "index": frame.index,
        "term": frame.term,
        "position": frame.position,
        "timestamp_ms": 5,
        "kind": frame.kind,
        "record_count": 0,
        **changes,
    }
    return seal_frame(payload=bytes(frame.payload), **fields).data


@pytest.mark.parametrize("known", [True, False])
def test_repair_accepts_only_the_requested_frame(known: bool) -> None:
    log = Log([1, 2, 2])
    damaged, frame = log.damaged(2, known=known), log.frames[1]
    assert checked_frames(frame.data, damaged, segment_end) == (frame,)
    both = frame.data + log.frames[2].data
    if known:
        with pytest.raises(BadPatch):
            checked_frames(both, damaged, segment_end)
    else:
        assert checked_frames(both, damaged, segment_end) == tuple(log.frames[1:])
    flipped = bytearray(frame.data)
    flipped[-1] ^= 1
    bad = [
        b"",
        frame.data[:-1],
        bytes(flipped),
        b"\x01" + frame.data[1:],
        altered(frame, index=3),
        altered(frame, term=0),  # lower than the one before it
        altered(frame, position=frame.position + 8),
        altered(frame, position=0),
        frame.data + frame.data,
        frame.data + altered(log.frames[2], index=4),
        frame.data + altered(log.frames[2], term=1),
        frame.data + altered(log.frames[2], position=log.frames[2].position + 1),
    ]
    if known:
        bad += [altered(frame, term=3), log.frames[2].data]
    for data in bad:
        with pytest.raises(BadPatch):
            checked_frames(data, damaged, segment_end)


def test_repair_of_a_frame_after_a_blank_record() -> None:
    log = Log([1])
    damaged = DamagedFrame(2, 1, 0, log.frames[0].end)
    there = seal_frame(2, 1, SEGMENT, 5, FrameKind.COMMAND, 0, b"x")
    assert checked_frames(there.data, damaged, segment_end) == (there,)
    beyond = seal_frame(2, 1, 2 * SEGMENT, 5, FrameKind.COMMAND, 0, b"x")
    with pytest.raises(BadPatch):
        checked_frames(beyond.data, damaged, segment_end)
    with pytest.raises(BadPatch):  # known to be there, it is there and nowhere else
        checked_frames(there.data, replace(damaged, term=1), segment_end)
    last = SEGMENT - 100
    near = seal_frame(2, 1, last, 5, FrameKind.COMMAND, 0, bytes(32))
    assert checked_frames(near.data, replace(damaged, position=last), segment_end) == (near,)
    over = seal_frame(2, 1, last, 5, FrameKind.COMMAND, 0, bytes(33))
    with pytest.raises(BadPatch):  # no room for a blank record behind it
        checked_frames(over.data, replace(damaged, position=last), segment_end)


# -- mending at start ------------------------------------------------------------------------------


class Repairing:
    """A StartRepair of `mine`, and peers that answer from their logs."""

    def __init__(self, mine: Log, index: int, *, known: bool = False, term: int = 5) -> None:
        """`term`: the highest that the one with the damage has seen; its peers are in 4."""
        self.repair = StartRepair(Asker(A, VOTERS, TIMING, 0), VOTERS, TIMING, mine)
        self.repair.term = term
        self.now_ms = 0.0
        self.repair.start(mine.damaged(index, known=known), 0.0)
        self.requests = {r.to: r for r in self.repair.asker.requests()}

    def hears(
        self,
        peer: str,
        log: Log,
        commit: int,
        responder: ResponderState = ResponderState.RECOVERED,
        term: int = 4,
    ) -> Patch | GiveUp | None:
        response = answer(self.requests[peer], log.index, commit, responder, log.read, term)
        verdict = self.repair.step(response, self.now_ms)
        self._collect()
        return verdict

    def waits(self, ms: float) -> None:
        self.now_ms += ms
        self.repair.tick(self.now_ms)
        self._collect()

    def _collect(self) -> None:
        for request in self.repair.asker.requests():
            self.requests[request.to] = request


def damaged(terms: Sequence[int], *lost: int) -> Log:
    log = Log(terms)
    log.lost = set(lost)
    return log


def test_repair_asks_all_peers_first_and_then_the_one_that_answered() -> None:
    mine, theirs = damaged([1, 1, 1, 1], 2), Log([1, 1, 1, 1])
    mending = Repairing(mine, 2)
    assert set(mending.requests) == {B, C}
    patch = mending.hears(C, theirs, 4)
    assert patch == Patch((theirs.frames[1],), True, C)  # no more than what is damaged
    assert mending.hears(B, theirs, 4) is None  # nothing is asked any more
    mending.repair.start(mine.damaged(4), 0.0)
    assert [r.to for r in mending.repair.asker.requests()] == [C]
    mending.waits(150)
    assert {r.number for r in mending.requests.values()} == {3}
    assert set(mending.requests) == {B, C}


@pytest.mark.parametrize(
    ("mine", "theirs", "commit", "count", "proven"),
    [
        ([1, 1, 1, 1], [1, 1, 1, 1], 0, 1, True),  # the next one is of the same term
        ([1, 1, 2, 2], [1, 1, 2, 2], 0, 1, True),  # the next one is the same as theirs
        ([1, 1, 3, 3], [1, 2, 3, 3], 0, 1, True),  # their log matches behind it: before it, too
        ([1, 1, 3, 3], [1, 2, 4, 4], 0, 0, False),  # nothing matches, nothing is committed
        ([1, 1, 3, 3], [1, 2, 4, 4], 2, 1, False),  # committed; what follows here is not theirs
        ([1, 1, 3, 3], [1, 2, 4, 4], 3, 2, False),
        ([1, 1, 3, 3], [1, 2], 2, 1, False),  # they know nothing of what follows
        ([1, 1, 3, 3], [1, 1], 1, 0, False),
        ([1, 1], [1, 1, 1], 1, 0, False),  # the last one here: only a commit proves it
        ([1, 1], [1, 1, 1], 2, 1, False),
    ],
)
def test_repair_patch_has_the_frames_that_are_proven(
    mine: list[int], theirs: list[int], commit: int, count: int, proven: bool
) -> None:
    """Frame 2 is damaged here, header and all; every frame has the same size."""
    mending = Repairing(damaged(mine, 2), 2)
    log = Log(theirs)
    patch = mending.hears(B, log, commit)
    if not count:
        assert patch is None
    else:
        assert patch == Patch(tuple(log.frames[1 : 1 + count]), proven, B)


def test_repair_of_a_region_of_several_frames() -> None:
    mending = Repairing(damaged([1, 1, 1, 1, 1, 1], 2, 3, 4), 2)
    log = Log([1, 1, 1, 1, 1, 1])
    assert mending.hears(B, log, 0) == Patch(tuple(log.frames[1:4]), True, B)


def test_repair_of_a_frame_with_known_header_needs_no_commit() -> None:
    mending = Repairing(Log([1, 2, 3]), 2, known=True)
    assert mending.hears(B, Log([1, 3, 3]), 1) is None
    log = Log([1, 2])
    assert mending.hears(C, log, 0, ResponderState.REPAIRS) == Patch((log.frames[1],), True, C)


def test_repair_fetches_a_large_frame_in_parts_from_one_peer() -> None:
    mine, theirs = Log([]), Log([])
    for log in (mine, theirs):
        log.add(1, 10)
        log.add(1, 5 * RESPONSE_BYTES_MAX // 2)
        log.add(1, 10)
    mine.lost = {2}
    mending = Repairing(mine, 2)
    assert mending.hears(B, theirs, 3) is None
    assert mending.hears(C, theirs, 3) is None  # too late: the rest is B's
    assert mending.requests[B].offset == RESPONSE_BYTES_MAX
    assert mending.hears(B, theirs, 3) is None
    assert mending.hears(B, theirs, 3) == Patch((theirs.frames[1],), True, B)


def test_repair_restarts_when_a_part_is_not_answered() -> None:
    mine, theirs = Log([]), Log([])
    for log in (mine, theirs):
        log.add(1, 3 * RESPONSE_BYTES_MAX)
        log.add(1, 5)
    mine.lost = {1}
    mending = Repairing(mine, 1)
    assert mending.hears(B, theirs, 2) is None
    mending.waits(500)
    assert mending.requests[C].offset == 0
    for _ in range(3):
        assert mending.hears(C, theirs, 2) is None
    assert mending.hears(C, theirs, 2) == Patch((theirs.frames[0],), True, C)


def test_repair_rejects_malformed_data_and_asks_another_peer() -> None:
    mine, theirs = damaged([1, 1, 1], 2), Log([1, 1, 1])
    mending = Repairing(mine, 2)
    good = answer(mending.requests[B], theirs.index, 3, ResponderState.RECOVERED, theirs.read, 1)
    flipped = good.data[:-1] + bytes([good.data[-1] ^ 1])
    for data in (flipped, b"\0" * 100, good.data[:-1], b"x", theirs.frames[0].data):
        assert mending.repair.step(replace(good, data=data), 0.0) is None
    assert mending.hears(C, theirs, 3) is not None


@pytest.mark.parametrize("change", [{"number": 99}, {"index": 3}, {"sender": A}, {"sender": "z"}])
def test_repair_drops_answers_to_other_requests(change: dict[str, object]) -> None:
    mine, theirs = damaged([1, 1, 1], 2), Log([1, 1, 1])
    mending = Repairing(mine, 2)
    good = answer(mending.requests[B], theirs.index, 3, ResponderState.RECOVERED, theirs.read, 1)
    assert mending.repair.step(replace(good, **change), 0.0) is None  # type: ignore[arg-type]
    assert mending.repair.step(good, 0.0) is not None


def test_repair_requests_back_off() -> None:
    mending = Repairing(damaged([1, 1, 1], 2), 2)
    rounds = []
    for _ in range(200):
        before = mending.requests[B].number
        mending.waits(10)
        if mending.requests[B].number != before:
            rounds.append(mending.now_ms)
    assert rounds == [100, 300, 700, 1100, 1500, 1900]


# -- giving up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "trim", "commit", "gives_up"),
    [  # and whose term is lower than one this replica was in: there may be another leader
        ([1], 1, 1, True),  # lacks it
        ([1, 1, 1], 3, 3, True),  # retention
        ([2, 2, 2], 1, 3, True),  # another log
        ([1, 2, 2], 1, 1, False),  # not committed yet
    ],
)
def test_repair_with_a_leader_that_lacks_the_frame(
    theirs: list[int], trim: int, commit: int, gives_up: bool
) -> None:
    log = Log(theirs)
    log.index.trim(trim)
    for responder in (ResponderState.RECOVERED, ResponderState.RECOVERING, ResponderState.REPAIRS):
        assert Repairing(damaged([1, 1, 3], 2), 2).hears(B, log, commit, responder) is None
    verdict = Repairing(damaged([1, 1, 3], 2), 2).hears(B, log, commit, ResponderState.LEADS)
    assert isinstance(verdict, GiveUp) == gives_up


@pytest.mark.parametrize(
    ("theirs", "commit", "known", "count", "last"),
    [
        ([1, 1, 3], 1, False, 1, None),  # proven as by anybody
        ([1, 4, 4, 4], 1, False, 3, True),  # all it has, committed or not
        ([1, 4, 4, 4], 4, False, 3, True),
        ([1], 1, False, 0, True),  # nothing: what stood here was never committed
        ([2, 2], 1, False, 0, True),  # another frame before: so what stood here was another, too
        ([1, 4], 1, True, 0, True),
        ([4, 4], 0, True, 0, True),
    ],
)
def test_leader_of_the_current_or_a_later_term_decides_a_repair(
    theirs: list[int], commit: int, known: bool, count: int, last: bool | None
) -> None:
    """Also where it has committed nothing of it, and may never do so without this replica."""
    log = Log(theirs)
    mine = damaged([1, 1, 3], 2)
    for term in (4, 3):
        mending = Repairing(mine, 2, known=known, term=term)
        assert mending.hears(C, log, 0, ResponderState.RECOVERED, 9) == (None if last else ANY)
        verdict = Repairing(mine, 2, known=known, term=term).hears(
            B, log, commit, ResponderState.LEADS
        )
        frames = tuple(log.frames[1 : 1 + count])
        assert verdict == Patch(frames, last is None, B, last=bool(last))


def test_partial_answer_of_a_leader_does_not_end_the_log() -> None:
    mine, theirs = damaged([1, 1, 3], 2), Log([1])
    for _ in range(3):
        theirs.add(4, RESPONSE_BYTES_MAX // 2 - 100)
    verdict = Repairing(mine, 2, term=4).hears(B, theirs, 1, ResponderState.LEADS)
    assert verdict == Patch(tuple(theirs.frames[1:3]), False, B, last=False)


def test_leader_with_its_own_damage_decides_no_repair() -> None:
    log = Log([1, 4])
    log.unreadable = {2}
    mending = Repairing(damaged([1, 1, 3], 2), 2, term=4)
    assert mending.hears(B, log, 1, ResponderState.LEADS) is None


@pytest.mark.parametrize(
    ("standings", "gives_up"),
    [
        ((ResponderState.RECOVERED, ResponderState.RECOVERED), False),  # they will elect a leader
        ((ResponderState.RECOVERED, ResponderState.LEADS), False),
        (
            (ResponderState.LEADS, ResponderState.RECOVERING),
            True,
        ),  # in an earlier term: it may never commit
        ((ResponderState.RECOVERED, ResponderState.REPAIRS), True),
        ((ResponderState.RECOVERED, ResponderState.RECOVERING), True),
        ((ResponderState.REPAIRS, ResponderState.REPAIRS), True),
        ((ResponderState.REPAIRS, None), False),  # who does not answer may know more
    ],
)
def test_repair_gives_up_only_after_all_peers_denied_the_frame(
    standings: tuple[ResponderState | None, ...], gives_up: bool
) -> None:
    mending = Repairing(damaged([1, 1, 3], 2), 2)
    log = Log([1, 4])  # neither committed nor the same
    given_up_at = None
    while mending.now_ms < 5_000 and given_up_at is None:
        for peer, responder in zip((B, C), standings, strict=True):
            if responder is not None and mending.hears(peer, log, 1, responder) is not None:
                given_up_at = mending.now_ms
        mending.waits(50)
    assert (given_up_at is not None) == gives_up
    if given_up_at is not None:
        assert given_up_at >= TIMING.give_up_ms


def test_repair_restarts_its_deadline_when_a_peer_falls_silent() -> None:
    mending = Repairing(damaged([1, 1, 3], 2), 2)
    log = Log([1, 4])
    for at in range(0, 6_000, 50):
        for peer in (B, C):
            if peer == B or at % 1500 < 500:  # C is away for more than a round now and then
                assert mending.hears(peer, log, 1, ResponderState.REPAIRS) is None
        mending.waits(50)


# -- mending while running -------------------------------------------------------------------------


def test_frames_with_known_headers_are_repaired_in_order() -> None:
    log = Log([1, 1, 2, 2])
    repair = FrameRepair(Asker(A, VOTERS, TIMING, 0), TIMING)
    assert repair.add(log.damaged(2, known=True))
    assert not repair.add(log.damaged(2, known=True))
    assert repair.add(log.damaged(4, known=True))
    assert repair.asker.requests() == []
    repair.tick(0.0)
    requests = repair.asker.requests()
    assert [(r.to, r.index, r.term) for r in requests] == [(B, 2, 1), (C, 2, 1)]
    log.unreadable = {2}
    nothing = answer(requests[0], log.index, 4, ResponderState.LEADS, log.read, 1)
    assert repair.step(nothing, 0.0, segment_end) is None
    repair.tick(150.0)  # the next one's turn
    requests = repair.asker.requests()
    assert {r.index for r in requests} == {4}
    response = answer(requests[1], log.index, 4, ResponderState.RECOVERED, log.read, 1)
    assert repair.step(replace(response, data=log.frames[2].data), 150.0, segment_end) is None
    assert repair.step(response, 150.0, segment_end) == log.frames[3]
    assert 4 in repair
    repair.forget(4)
    assert (4 in repair, repair.indexes(), len(repair)) == (False, [2], 1)
    repair.tick(151.0)
    assert {(r.to, r.index) for r in repair.asker.requests()} == {(C, 2)}  # who helped before
    repair.forget(2)
    repair.tick(10_000.0)
    assert repair.asker.requests() == []


def test_unavailable_frames_are_reported_after_the_deadline() -> None:
    log, others = Log([1, 1, 2, 2]), Log([1, 1])
    repair = FrameRepair(Asker(A, VOTERS, TIMING, 0), TIMING)
    repair.add(log.damaged(2, known=True))
    repair.add(log.damaged(4, known=True))
    now_ms, told_ms = 0.0, 0.0
    while now_ms < 5_000 and not told_ms:
        repair.tick(now_ms)
        for request in repair.asker.requests():
            if request.index == 4 or request.to == B:  # of the other one C says nothing
                nothing = answer(request, others.index, 2, ResponderState.RECOVERED, others.read, 1)
                if nothing.outcome is not Outcome.FRAMES:
                    assert repair.step(nothing, now_ms, segment_end) is None
        if repair.hopeless(now_ms):
            told_ms = now_ms
        now_ms += 20
    assert repair.hopeless(now_ms) == [4]
    assert told_ms >= TIMING.give_up_ms
    repair.forget(4)
    assert repair.hopeless(now_ms) == []


def test_pruned_frames_are_not_requested() -> None:
    log = Log([1, 1, 2, 2])
    repair = FrameRepair(Asker(A, VOTERS, TIMING, 0), TIMING)
    for index in (2, 3, 4):
        repair.add(log.damaged(index, known=True))
    repair.tick(0.0)
    repair.prune(lambda index, term: index > 2 and term == 2)
    assert (repair.indexes(), repair.asker.requests()) == ([3, 4], [])
    repair.tick(1.0)
    assert {r.index for r in repair.asker.requests()} == {3}


def test_frame_repair_is_limited_in_damaged_frames() -> None:
    repair = FrameRepair(Asker(A, VOTERS, TIMING, 0), TIMING)
    for index in range(1, DAMAGED_FRAMES_MAX + 1):
        assert repair.add(DamagedFrame(index, 1, 1, 0, 60))
    assert not repair.add(DamagedFrame(DAMAGED_FRAMES_MAX + 1, 1, 1, 0, 60))
    assert repair.dropped == 1
    repair.forget(5)
    assert repair.add(DamagedFrame(DAMAGED_FRAMES_MAX + 1, 1, 1, 0, 60))
