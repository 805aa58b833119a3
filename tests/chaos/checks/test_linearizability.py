"""The search for an order, compared with trying all, at its limit, and its explanations."""

from __future__ import annotations

import random

import pytest

from raftmq.chaos.checks.linearizability import ANY, Operation, linearizable, unexplained
from raftmq.chaos.checks.registers import Read, Write, step
from raftmq.chaos.checks.verdict import Verdict
from tests.chaos.checks.orders import by_trying_all, follow, random_history

HISTORIES = 400


def test_linearizability_search_agrees_with_trying_all_orders() -> None:
    verdicts = []
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        history = random_history(rng, rng.randrange(1, 8), rng.randrange(2, 4))
        expected = by_trying_all(history)
        result = linearizable(history, follow, 0)
        assert result is (Verdict.PASS if expected else Verdict.FAIL), (seed, history)
        verdicts.append(expected)
    assert HISTORIES * 0.3 < sum(verdicts) < HISTORIES * 0.9  # both sorts are there


def write(called: int, returned: int | None, value: int) -> Operation:
    return Operation(called, returned, Write(value))


def read(called: int, returned: int | None, value: int | None) -> Operation:
    return Operation(called, returned, Read(value), reads=True)


@pytest.mark.parametrize(
    ("operations", "verdict"),
    [
        ([], True),
        ([read(0, 1, 7), write(2, 3, 1), read(4, 5, 1)], True),  # the first value is unknown
        ([read(0, 1, 7), read(2, 3, 8)], False),
        ([write(0, 1, 1), read(2, 3, 2)], False),
        ([write(0, 1, 1), write(2, 3, 2), read(4, 5, 1)], False),  # a stale read
        ([write(0, 1, 1), write(2, 6, 2), read(3, 4, 1), read(4, 5, 2)], True),  # they touch
        ([write(0, 1, 1), write(2, 9, 2), read(3, 4, 2), read(5, 6, 1)], False),
        ([write(0, 1, 1), write(2, None, 2), read(3, 4, 1), read(5, 6, 2)], True),
        ([write(0, 1, 1), write(2, None, 2), read(3, 4, 2), read(5, 6, 1)], False),  # once only
        ([write(0, 1, 1), read(3, 4, 2), write(5, None, 2)], False),  # seen before it was called
        ([read(0, None, 5), write(0, 1, 1)], True),  # its answer is unknown
    ],
)
def test_register_histories_have_their_verdict(operations: list[Operation], verdict: bool) -> None:
    assert linearizable(operations, step) is (Verdict.PASS if verdict else Verdict.FAIL)


def test_long_history_does_not_exceed_the_recursion_limit() -> None:
    history = []
    for number in range(3_000):
        history += [write(4 * number, 4 * number + 5, number)]  # overlaps with the next
        history += [read(4 * number + 2, 4 * number + 3, number - 1 if number % 2 else number)]
    assert linearizable(history, step) is Verdict.PASS


def test_many_open_operations_cost_little_while_an_order_exists() -> None:
    history = [write(0, None, value) for value in range(500)]
    for number in range(500):
        history += [write(3 * number + 1, 3 * number + 2, 1_000 + number)]
        history += [read(3 * number + 2, 3 * number + 3, 1_000 + number)]
    assert linearizable(history, step, steps_max=1_500) is Verdict.PASS


def test_search_beyond_its_step_limit_is_unknown() -> None:
    history = [write(0, 100, value) for value in range(20)]
    history += [read(101, 102, 3), read(103, 104, 4)]
    assert linearizable(history, step, steps_max=10_000) is Verdict.UNKNOWN


def test_unexplained_window_has_only_the_contradicting_operations() -> None:
    before = [write(10 * n, 10 * n + 5, n) for n in range(50)]
    before += [read(10 * n + 6, 10 * n + 7, n) for n in range(50)]
    wrong = [write(600, 601, 77), read(602, 603, 76)]
    after = [read(700 + n, 700 + n, n) for n in range(50)]  # wrong as well, but later
    assert unexplained([*before, *wrong, *after], step) == wrong


def test_unexplained_window_includes_the_earlier_operations_it_needs() -> None:
    history = [read(0, 1, 5), write(2, None, 9), read(3, 4, 5), read(6, 7, 5), read(8, 9, 6)]
    assert unexplained(history, step) == [history[1], history[3], history[4]]
    alone = [read(0, 1, 5)]
    assert linearizable(alone, step, 4) is Verdict.FAIL
    assert unexplained(alone, step, 4) == alone  # wrong only because of the earlier state
    assert linearizable(alone, step, ANY) is Verdict.PASS
