"""Bodies that peers compressed are unpacked within a limit, whatever they would become."""

import random
import zlib

import pytest

from raftmq.remoting.errors import BodyError
from raftmq.remoting.unpacking import PIECE_BYTES, STEP_BYTES, Unpacking


@pytest.mark.parametrize("seed", range(30))
def test_what_fits_comes_out_whole_and_is_given_back(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([0, 1, STEP_BYTES, PIECE_BYTES, PIECE_BYTES + 1, rng.randrange(1 << 20)])
    content = rng.choice([bytes(size), rng.randbytes(size), (rng.randbytes(100) * 11_000)[:size]])
    packed = zlib.compress(content, rng.randrange(10))
    unpacking = Unpacking(1 << 20)
    with unpacking.inflated(packed, "body") as found:
        assert bytes(found) == content
        assert unpacking.held_bytes == size
    assert (unpacking.held_bytes, unpacking.peak_bytes) == (0, size)
    assert unpacking.unpacked_bytes == size
    cut = packed[: rng.randrange(len(packed))]
    with pytest.raises(BodyError), unpacking.inflated(cut, "body"):
        pass
    assert unpacking.held_bytes == 0
    if size:
        small = Unpacking(size - 1)
        with pytest.raises(BodyError, match="unpacks to more than"), small.inflated(packed, "x"):
            pass
        assert (small.held_bytes, small.refused_count) == (0, 1)
        assert small.peak_bytes <= size - 1 + PIECE_BYTES


def test_all_that_is_unpacked_at_one_time_counts() -> None:
    unpacking = Unpacking(10_000)
    packed = zlib.compress(bytes(6_000))
    with unpacking.inflated(packed, "one"):
        with pytest.raises(BodyError), unpacking.inflated(packed, "two"):
            pass
        with unpacking.inflated(zlib.compress(bytes(4_000)), "three"):
            assert unpacking.held_bytes == 10_000
    with unpacking.inflated(packed, "again"):
        pass
    assert unpacking.held_bytes == 0


def test_what_is_no_stream_is_said() -> None:
    with pytest.raises(BodyError, match="the body is not a zlib stream"):
        with Unpacking(100).inflated(b"nothing of the kind", "body"):
            pass
