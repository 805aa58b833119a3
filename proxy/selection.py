"""The queue of a message group, as at Apache's proxies.

This is Guava's `Hashing.consistentHash` over Java's `String.hashCode`, a jump consistent hash with
the random numbers of a linear congruential generator. Few groups move when a topic gets more
queues.
"""

from __future__ import annotations

from raftmq.store.properties import java_string_hash

_MULTIPLIER = 2_862_933_555_777_941_757
_BITS_64 = (1 << 64) - 1
_SCALE = float(1 << 31)


def group_index(message_group: str, count: int) -> int:
    """Return the queue index of a message group among `count` queues."""
    return consistent_hash(java_string_hash(message_group), count)


def consistent_hash(value: int, count: int) -> int:
    """Return the bucket of a signed number among `count` buckets."""
    assert count > 0, count
    state = value & _BITS_64  # Java sign-extends an int to a long
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _BITS_64
        following = int((candidate + 1) / (((state >> 33) + 1) / _SCALE))
        if following >= count:
            return candidate
        candidate = following
