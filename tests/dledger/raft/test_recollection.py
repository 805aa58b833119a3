"""Notes of what others held: which replaces which, who falls short, and their bytes."""

from __future__ import annotations

import random

import pytest
from google_crc32c import value as crc32c

from raftmq.dledger.raft.configuration import MEMBERS_MAX, NAME_SIZE_BYTES_MAX
from raftmq.dledger.raft.messages import NUMBER_MAX, TERM_MAX
from raftmq.dledger.raft.recollection import (
    NOTES_SIZE_BYTES_MAX,
    Held,
    Memory,
    NotesError,
    decode_notes,
    encode_notes,
)
from raftmq.dledger.storage.two_slot_file import CONTENT_SIZE_BYTES_MAX


def test_the_higher_term_wins_and_then_the_higher_index() -> None:
    memory = Memory()
    assert memory.learn([("a", Held(3, 10)), ("b", Held(2, 5))]) == {"a", "b"}
    assert not memory.learn([("a", Held(3, 10)), ("a", Held(3, 9)), ("a", Held(2, 99))])
    assert memory.notes == {"a": Held(3, 10), "b": Held(2, 5)}
    # A majority's disks were lost: what their new leader says is what holds.
    assert memory.learn([("a", Held(4, 7)), ("b", Held(2, 5))]) == {"a"}
    assert memory.notes == {"a": Held(4, 7), "b": Held(2, 5)}
    assert memory.outdates("a", Held(3, 10))
    assert not memory.outdates("a", Held(4, 7)) and not memory.outdates("c", Held(1, 1))


@pytest.mark.parametrize(
    ("term", "index", "is_older"),
    [(3, 10, False), (3, 11, False), (9, 10, False), (3, 9, True), (9, 9, True), (2, 99, True)],
)
def test_who_is_in_an_earlier_term_or_holds_less_falls_short(
    term: int, index: int, is_older: bool
) -> None:
    assert Held(3, 10).exceeds(term, index) is is_older


def test_an_id_that_was_removed_has_promised_nothing() -> None:
    memory = Memory()
    memory.learn([("a", Held(3, 10)), ("b", Held(3, 10))])
    assert memory.keep({"a", "c"})
    assert not memory.keep({"a", "c"})
    assert memory.notes == {"a": Held(3, 10)}


def test_notes_come_back_as_they_were() -> None:
    notes = {"a": Held(0, 0), "b" * 255: Held(TERM_MAX, NUMBER_MAX), "\u00e9": Held(7, 9)}
    assert decode_notes(encode_notes(notes)) == notes
    assert decode_notes(encode_notes({})) == {}


def test_the_longest_notes_fit_a_message_and_the_file() -> None:
    longest = NAME_SIZE_BYTES_MAX * "n"
    notes = {f"{at}{longest[1:]}": Held(TERM_MAX, NUMBER_MAX) for at in range(MEMBERS_MAX)}
    data = encode_notes(notes)
    assert len(data) == NOTES_SIZE_BYTES_MAX <= CONTENT_SIZE_BYTES_MAX
    assert decode_notes(data) == notes


def test_a_flipped_bit_is_noticed() -> None:
    data = encode_notes({"a": Held(3, 10), "b": Held(3, 12)})
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(NotesError, match="checksum"):
            decode_notes(bytes(flipped))


def sealed(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "big")


def test_no_bytes_do_more_than_raise() -> None:
    rng = random.Random(1)
    whole = encode_notes({f"n{number}": Held(number, 2 * number) for number in range(9)})
    refused = 0
    for _ in range(2_000):
        data = bytearray(whole[: rng.randrange(len(whole) - 3)])
        for _ in range(rng.randrange(3)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            notes = decode_notes(sealed(bytes(data)))
        except NotesError:
            refused += 1
        else:
            assert decode_notes(encode_notes(notes)) == notes
    assert refused > 100
