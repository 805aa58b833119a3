"""The queue of a message group, against values of Guava's own tests."""

import pytest

from raftmq.proxy.send_message import consistent_hash, group_index

OF_A_HUNDRED = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]


def test_consistent_hash_equals_guavas():
    assert [consistent_hash(number, 100) for number in range(20)] == OF_A_HUNDRED


@pytest.mark.parametrize(
    "value, count, bucket",
    [
        (10863919174838991, 11, 6),
        (2016238256797177309, 11, 3),
        (1673758223894951030, 11, 5),
        (2, 100001, 80343),
        (2201, 100001, 22152),
        (2202, 100001, 15018),
    ],
)
def test_consistent_hash_of_large_values_and_counts_equals_guavas(value, count, bucket):
    assert consistent_hash(value, count) == bucket


def test_message_group_has_a_queue_for_any_hash():
    assert group_index("g", 1) == 0
    for name in ("", "g", "Ä" * 50, "\U0001f600", "polygenelubricants"):  # hash -2^31
        assert 0 <= group_index(name, 7) < 7
