"""The chain of frames that a backup's bytes have to be."""

import pytest

from raftmq.broker.backup.log_verifier import ChainBroken, FrameChain
from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.record import BLANK, MAGIC_BLANK

SIZE = 1024


def frames():
    """Four frames over two segments, with what stands between and behind them."""
    log = bytearray(2 * SIZE)
    result = []
    position = 0
    for index, term, length in ((1, 1, 500), (2, 1, 300), (3, 2, 100), (4, 2, 0)):
        if index == 3:
            BLANK.pack_into(log, position, SIZE - position, MAGIC_BLANK)
            log[position + 8 : SIZE] = b"?" * (SIZE - position - 8)
            position = SIZE
        payload = bytes([index]) * length
        frame = seal_frame(index, term, position, 7, FrameKind.COMMAND, 0, payload)
        log[position : frame.end] = frame.data
        result.append(frame)
        position = frame.end
    return result, bytes(log[:position])


@pytest.mark.parametrize("step", [1, 7, 61, 512, 4096])
def test_frame_chain_returns_complete_frames_for_any_piece_size(step):
    expected, log = frames()
    chain = FrameChain(0, 0, 0, SIZE)
    result = []
    for at in range(0, len(log), step):
        assert chain.next_position == at
        result += chain.feed(log[at : at + step])
    assert result == expected
    assert chain.is_between_frames and chain.next_position == chain.position == len(log)
    assert (chain.index, chain.term) == (4, 2)


@pytest.mark.parametrize("cut", [1, 59, 60, 200, 560])
def test_frame_chain_continues_after_any_frame(cut):
    expected, log = frames()
    for number, frame in enumerate(expected):
        chain = FrameChain(frame.index, frame.term, frame.end, SIZE)
        rest = log[frame.end :]
        result = chain.feed(rest[:cut]) + chain.feed(rest[cut:])
        assert result == expected[number + 1 :]


def test_frame_chain_with_a_truncated_frame_is_not_between_frames():
    _, log = frames()
    chain = FrameChain(0, 0, 0, SIZE)
    chain.feed(log[:1000])  # in the blank record
    assert not chain.is_between_frames and chain.index == 2
    chain.feed(log[1000:1100])
    assert not chain.is_between_frames and chain.position == SIZE and chain.next_position == 1100


def changed(index, term, position, payload):
    return seal_frame(index, term, position, 7, FrameKind.COMMAND, 0, payload).data


@pytest.mark.parametrize(
    ("at", "data", "where", "reason"),
    [
        (100, b"!", (0, 1), "payload CRC"),
        (30, b"!", (0, 1), "header CRC"),
        (0, b"\0" * 60, (0, 1), "not a frame magic"),
        (0, changed(2, 1, 0, bytes([1]) * 500), (0, 1), "does not follow 0@0"),
        (0, changed(1, 1, 8, bytes([1]) * 500), (0, 1), "says it stands at 8"),
        (SIZE, changed(3, 0, SIZE, bytes([3]) * 100), (SIZE, 3), "does not follow 2@1"),
        (560, changed(2, 1, 560, bytes([2]) * 404), (560, 2), "beyond its segment"),
        (920, BLANK.pack(9, MAGIC_BLANK), (920, 3), "blank record of 9 bytes with 104 left"),
        (920, b"\0" * 8, (920, 3), "not a frame magic"),
    ],
)
@pytest.mark.parametrize("step", [1, 4096])
def test_frame_chain_reports_the_position_and_reason_of_a_break(at, data, where, reason, step):
    _, log = frames()
    log = bytearray(log)
    log[at : at + len(data)] = data
    chain = FrameChain(0, 0, 0, SIZE)
    with pytest.raises(ChainBroken, match=reason) as broken:
        for start in range(0, len(log), step):
            chain.feed(bytes(log[start : start + step]))
    assert (broken.value.position, broken.value.index) == where
