"""Bodies that peers compressed are unpacked within a limit, whatever they would become."""

import random
import zlib

import pytest

from raftmq.remoting.errors import BodyError
from raftmq.remoting.fair_scheduling import finish
from raftmq.remoting.large_bodies import PIECE_BYTES, STEP_BYTES, inflating


@pytest.mark.parametrize("seed", range(30))
def test_compressed_body_round_trip_truncation_and_limit(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([0, 1, STEP_BYTES, PIECE_BYTES, PIECE_BYTES + 1, rng.randrange(1 << 20)])
    content = rng.choice([bytes(size), rng.randbytes(size), (rng.randbytes(100) * 11_000)[:size]])
    packed = zlib.compress(content, rng.randrange(10))
    assert finish(inflating(packed, 1 << 20, "body")) == bytearray(content)
    cut = packed[: rng.randrange(len(packed))]
    with pytest.raises(BodyError):
        finish(inflating(cut, 1 << 20, "body"))
    if size:
        assert finish(inflating(packed, size - 1, "body")) is None


def test_compressed_bomb_is_inflated_only_up_to_the_limit() -> None:
    packed = zlib.compress(bytes(100 << 20))
    steps = inflating(packed, 1 << 20, "body")
    assert sum(1 for _ in steps) <= (1 << 20) // PIECE_BYTES + len(packed) // STEP_BYTES + 1


def test_body_that_is_no_zlib_stream_is_rejected() -> None:
    with pytest.raises(BodyError, match="the body is not a zlib stream"):
        finish(inflating(b"nothing of the kind", 100, "body"))
