"""Group snapshots: what is asked for when, what is refused, and what a log may be thrown away
for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.snapshot_install import (
    CHUNK_BYTES,
    PARCEL_KEEP_MS,
    Donor,
    GroupSnapshot,
    GroupSnapshotDamaged,
    InstallChunk,
    InstallOffer,
    InstallRequest,
    InstallTiming,
    Receiver,
    decode_group_snapshot,
    lacks,
)

TIMING = InstallTiming(offer_ms=100, retry_ms=50, retries_max=3, hold_ms=1_000, silent_ms=200)
PARCEL = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"end"


def log_of(first: int, terms: list[int], previous_term: int = 0) -> LogIndex:
    """Frames of 100 bytes from `first` on."""
    index = LogIndex(first, previous_term, 4096)
    for number, term in enumerate(terms):
        index.add(first + number, term, 4096 + 100 * number, 100)
    return index


TRIMMED = log_of(21, [3, 3, 4], previous_term=2)


@pytest.mark.parametrize(
    ("log", "commit", "wanted"),
    [
        (log_of(1, []), 0, True),  # a new disk
        (log_of(1, [1] * 10), 10, True),  # away for too long
        (log_of(1, [1] * 19), 0, True),
        (log_of(1, [1] * 19 + [2]), 5, False),  # has frame 20 of term 2: appends will do
        (log_of(1, [1] * 20), 5, True),  # another frame 20, never to be committed
        (log_of(1, [1] * 30), 5, True),  # and all behind it with it
        (log_of(1, [1] * 19 + [2] * 5), 5, False),
        (log_of(1, [1] * 19 + [2]), 20, False),
        (log_of(15, [1] * 5, 1), 14, True),
        (log_of(21, [], 2), 20, False),  # installed already
        (log_of(30, [3], 3), 29, False),  # further than the leader's first
    ],
)
def test_replica_replaces_its_log_only_when_it_lacks_trimmed_frames(
    log: LogIndex, commit: int, wanted: bool
) -> None:
    assert lacks(log, commit, TRIMMED.first_index, TRIMMED.previous_term) is wanted


SNAPSHOT = GroupSnapshot(21, 2, 8192, 30, 4096, b"configuration", b"the state" * 100)


def test_group_snapshot_round_trip() -> None:
    assert decode_group_snapshot(SNAPSHOT.encode()) == SNAPSHOT
    bare = GroupSnapshot(1, 0, 0, 0, 4096, b"", b"")
    assert decode_group_snapshot(bare.encode()) == bare


def test_damaged_group_snapshot_is_rejected() -> None:
    data = SNAPSHOT.encode()
    for at in range(len(data)):
        spoilt = bytearray(data)
        spoilt[at] ^= 4
        with pytest.raises(GroupSnapshotDamaged):
            decode_group_snapshot(bytes(spoilt))
        with pytest.raises(GroupSnapshotDamaged):
            decode_group_snapshot(data[:at])


@pytest.mark.parametrize(
    "wrong", [{"first_index": 0}, {"position": 8193}, {"applied_index": 19}, {"position": -4096}]
)
def test_inconsistent_group_snapshot_is_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(GroupSnapshotDamaged):
        decode_group_snapshot(replace(SNAPSHOT, **wrong).encode())  # type: ignore[arg-type]


def collected(donor: Donor, receiver: Receiver, now_ms: float) -> bytes | None:
    """Talk until nobody has anything to say."""
    data = None
    while requests := receiver.requests():
        for request in requests:
            chunk = donor.step(request, TRIMMED, now_ms)
            for answer in [] if chunk is None else [chunk]:
                data = receiver.step(answer, now_ms) or data
    return data


def offered(donor: Donor, receiver: Receiver, now_ms: float = 0.0) -> None:
    (offer,) = donor.offers(["b"], 7, TRIMMED, now_ms)
    assert offer == InstallOffer("a", "b", 7, 21, 2, TRIMMED.end_position)
    receiver.offered(offer, now_ms)


def test_group_snapshot_is_made_on_request_and_sent_in_bounded_chunks() -> None:
    donor, receiver = Donor("a", TIMING, 100), Receiver("b", TIMING)
    offered(donor, receiver)
    assert not donor.wants_parcel
    assert donor.offers(["b"], 7, TRIMMED, 99) == []
    assert collected(donor, receiver, 0) is None
    assert donor.wants_parcel
    (first,) = donor.made(PARCEL, TRIMMED, 21, 1)
    assert first == InstallChunk("a", "b", 7, 101, 0, len(PARCEL), PARCEL[:CHUNK_BYTES])
    assert receiver.step(first, 1) is None
    assert (receiver.received_bytes, receiver.size_bytes) == (CHUNK_BYTES, len(PARCEL))
    assert receiver.step(first, 1) is None  # twice on the way: taken once
    assert collected(donor, receiver, 2) == PARCEL
    assert receiver.leader is None and not donor.wants_parcel
    # The next who asks gets the same one.
    again = Receiver("b", TIMING)
    offered(donor, again, 200)
    assert collected(donor, again, 200) == PARCEL


def test_lost_chunk_is_requested_again_and_the_install_restarts_at_last() -> None:
    donor, receiver = Donor("a", TIMING, 100), Receiver("b", TIMING)
    offered(donor, receiver)
    assert len(receiver.requests()) == 1
    receiver.tick(49)
    assert receiver.requests() == []
    for turn in range(1, 4):
        receiver.tick(50 * turn)
        assert receiver.requests() == [InstallRequest("b", "a", 7, 0, 0)]
    receiver.tick(200)
    assert receiver.leader is None and receiver.requests() == []
    offered(donor, receiver, 200)
    assert receiver.offered_count == 2 and len(receiver.requests()) == 1


def halfway() -> tuple[Donor, Receiver]:
    donor, receiver = Donor("a", TIMING, 100), Receiver("b", TIMING)
    offered(donor, receiver)
    collected(donor, receiver, 0)
    (first,) = donor.made(PARCEL, TRIMMED, 21, 0)
    receiver.step(first, 0)
    assert receiver.received_bytes == CHUNK_BYTES
    return donor, receiver


def test_change_of_leader_or_term_ends_a_snapshot_install() -> None:
    for leader, term in (("c", 7), ("a", 8), (None, 7)):
        donor, receiver = halfway()
        receiver.follow(leader, term)
        assert receiver.leader is None and receiver.received_bytes == 0
        chunk = donor.step(InstallRequest("b", "a", 7, 101, CHUNK_BYTES), TRIMMED, 0)
        assert chunk is not None
        assert receiver.step(chunk, 0) is None
    donor, receiver = halfway()
    receiver.follow("a", 7)
    assert collected(donor, receiver, 0) == PARCEL


def test_donor_reports_a_dropped_snapshot_and_the_receiver_stops() -> None:
    donor, receiver = halfway()
    donor.drop()
    (request,) = receiver.requests()
    refusal = donor.step(request, TRIMMED, 0)
    assert refusal == InstallChunk("a", "b", 7, 101, 0, 0, b"")
    assert receiver.step(refusal, 0) is None
    assert receiver.leader is None

    donor, receiver = halfway()
    (request,) = receiver.requests()
    on = log_of(22, [3, 4], 3)  # retention went on
    refusal = donor.step(request, on, 0)
    assert refusal is not None and refusal.data == b""
    assert donor.made(PARCEL, on, 21, 0) == []

    donor, receiver = halfway()
    donor.offers(["b"], 7, TRIMMED, PARCEL_KEEP_MS + 1.0)
    (request,) = receiver.requests()
    refusal = donor.step(request, TRIMMED, 0)
    assert refusal is not None and refusal.data == b""


def test_chunks_of_different_snapshots_are_not_combined() -> None:
    for wrong in ({"number": 55}, {"offset": 0}, {"sender": "c"}, {"term": 8}):
        donor, receiver = halfway()
        (request,) = receiver.requests()
        chunk = donor.step(request, TRIMMED, 0)
        assert chunk is not None
        assert receiver.step(replace(chunk, **wrong), 0) is None
        assert receiver.received_bytes == CHUNK_BYTES
    donor, receiver = halfway()
    (request,) = receiver.requests()
    chunk = donor.step(request, TRIMMED, 0)
    assert chunk is not None
    receiver.step(replace(chunk, size_bytes=len(PARCEL) + 1), 0)
    assert receiver.leader is None


def test_retention_waits_a_limited_time_for_a_snapshot_install() -> None:
    def refilling() -> Donor:
        donor, _ = halfway()
        return donor

    assert refilling().still_refilled({"b": (0, 0.0)}, 100) == ["b"]
    assert refilling().still_refilled({"b": (22, 0.0)}, 100) == ["b"]
    assert refilling().still_refilled({"b": (23, 0.0)}, 100) == []  # it has what there was
    assert refilling().still_refilled({"b": (0, 0.0)}, 201) == []  # silent
    assert refilling().still_refilled({"b": (0, 900.0)}, 1_001) == []  # too slow
    assert refilling().still_refilled({}, 100) == []
    donor = refilling()
    donor.drop()
    assert donor.still_refilled({"b": (0, 0.0)}, 100) == []


def test_failed_snapshot_ends_its_hold_on_retention_and_is_retried_later() -> None:
    donor, _ = halfway()  # b has the first chunk of a parcel
    donor.offers(["c"], 7, TRIMMED, PARCEL_KEEP_MS + 1.0)  # that parcel is dropped
    ask = InstallRequest("c", "a", 7, 0, 0)
    assert donor.step(ask, TRIMMED, 0) is None
    assert donor.wants_parcel
    assert donor.still_refilled({"b": (0, 0.0), "c": (0, 0.0)}, 0) == ["b", "c"]
    donor.failed(10)
    assert not donor.wants_parcel
    assert donor.still_refilled({"b": (0, 0.0), "c": (0, 0.0)}, 10) == ["b"]
    assert donor.step(ask, TRIMMED, 10 + TIMING.pause_ms - 1) is None
    assert not donor.wants_parcel
    assert donor.still_refilled({"c": (0, 0.0)}, 10) == []
    assert donor.step(ask, TRIMMED, 10 + TIMING.pause_ms) is None
    assert donor.wants_parcel
