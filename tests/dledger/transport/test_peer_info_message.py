"""The PeerInfo message: sections come back as they were, and malformed bodies are refused."""

from __future__ import annotations

import random

import pytest
from google_crc32c import value as crc32c

from raftmq.dledger.raft.configuration import MEMBERS_MAX, NAME_SIZE_BYTES_MAX
from raftmq.dledger.raft.messages import NUMBER_MAX, TERM_MAX
from raftmq.dledger.storage.two_slot_file import CONTENT_SIZE_BYTES_MAX
from raftmq.dledger.transport.peer_info_message import (
    _NOTES_SIZE_BYTES_MAX as NOTES_SIZE_BYTES_MAX,
)
from raftmq.dledger.transport.peer_info_message import (
    BODY_SIZE_BYTES_MAX,
    CommittedFrame,
    Held,
    PeerInfo,
    PeerInfoError,
    ReplicaState,
    decode_body,
    decode_notes,
    encode_body,
    encode_notes,
)

STATE = ReplicaState(-1, 5, 0, NUMBER_MAX, 3, 9, True, ("a", "é"), {"key": "value"})
FULL = PeerInfo(
    "a",
    "b",
    4,
    bytes(range(16)),
    ("host.example", 40_911),
    {"a": Held(4, 9)},
    CommittedFrame(20, 3, 2**32 - 1),
    STATE,
)


def body(info: PeerInfo) -> bytes:
    return encode_body(info)


def read(data: bytes) -> PeerInfo:
    return decode_body("a", "b", 4, data)


def sealed_body(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "big")


@pytest.mark.parametrize("info", [PeerInfo("a", "b", 4), FULL], ids=["empty", "full"])
def test_peer_info_sections_round_trip(info: PeerInfo) -> None:
    assert read(body(info)) == info
    assert len(body(info)) < BODY_SIZE_BYTES_MAX


def test_peer_info_section_of_a_later_version_is_skipped() -> None:
    later = b"\x63\x00\x03new"
    assert read(sealed_body(body(FULL)[:-4] + later)) == FULL


def test_random_peer_info_bodies_are_read_or_rejected() -> None:
    rng = random.Random(1)
    complete = body(FULL)[:-4]
    for _ in range(20_000):
        data = bytearray(complete)
        for _ in range(rng.choice((1, 1, 2))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        try:
            info = read(sealed_body(bytes(data)))
        except PeerInfoError:
            continue
        assert read(body(info)) == info


@pytest.mark.parametrize(
    "value",
    [
        b"\x01\x00\x0f" + bytes(15),  # a group id that is too short
        b"\x02\x00\x02\x9f\xcf",  # no host
        b"\x02\x00\x03\x00\x00h",  # port 0
        b"\x02\x00\x04\x00\x01\xc3\xa9",  # a host that is not ASCII
        b"\x04\x00\x13" + bytes(19),
        b"\x05\x00\x01\x00",
        b"\x01\x00\x00\x01\x00\x00",  # one section twice
        b"\x01\x00",
    ],
)
def test_malformed_peer_info_sections_are_rejected(value: bytes) -> None:
    with pytest.raises(PeerInfoError):
        read(sealed_body(value))


def test_rollback_notes_round_trip() -> None:
    notes = {"a": Held(0, 0), "b" * 255: Held(TERM_MAX, NUMBER_MAX), "\u00e9": Held(7, 9)}
    assert decode_notes(encode_notes(notes)) == notes
    assert decode_notes(encode_notes({})) == {}


def test_longest_rollback_notes_fit_a_message_and_the_file() -> None:
    longest = NAME_SIZE_BYTES_MAX * "n"
    notes = {f"{at}{longest[1:]}": Held(TERM_MAX, NUMBER_MAX) for at in range(MEMBERS_MAX)}
    data = encode_notes(notes)
    assert len(data) == NOTES_SIZE_BYTES_MAX <= CONTENT_SIZE_BYTES_MAX
    assert decode_notes(data) == notes


def test_flipped_bit_in_rollback_notes_is_detected() -> None:
    data = encode_notes({"a": Held(3, 10), "b": Held(3, 12)})
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PeerInfoError, match="checksum"):
            decode_notes(bytes(flipped))


def sealed(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "big")


def test_random_rollback_notes_raise_only_their_error() -> None:
    rng = random.Random(1)
    complete = encode_notes({f"n{number}": Held(number, 2 * number) for number in range(9)})
    refused = 0
    for _ in range(2_000):
        data = bytearray(complete[: rng.randrange(len(complete) - 3)])
        for _ in range(rng.randrange(3)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            notes = decode_notes(sealed(bytes(data)))
        except PeerInfoError:
            refused += 1
        else:
            assert decode_notes(encode_notes(notes)) == notes
    assert refused > 100
