"""Random histories of small automata, for tests of the search for an order.

An action is a table, state → next state; None if it is illegal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from raftmq.chaos.checks.linearizability import ILLEGAL, Operation

Table = tuple[int | None, ...]


def follow(state: int, table: Table) -> object:
    """The `step` of these automata."""
    after = table[state]
    return ILLEGAL if after is None else after


def random_table(rng: random.Random, states: int) -> Table:
    """A write, a read, a change between two states, or anything."""
    kind, value, other = rng.randrange(4), rng.randrange(states), rng.randrange(states)
    if kind == 0:
        return (value,) * states
    if kind == 1:
        return tuple(state if state == value else None for state in range(states))
    if kind == 2:
        return tuple(other if state == value else None for state in range(states))
    return tuple(rng.choice((None, *range(states))) for _ in range(states))


def reads(table: Table) -> bool:
    return all(after in (None, state) for state, after in enumerate(table))


def random_history(rng: random.Random, count: int, states: int = 3) -> list[Operation]:
    """Operations of which a random order may have taken place; then some of them are changed."""
    state, now = 0, 0
    result: list[Operation] = []
    for _ in range(count):
        legal = [t for t in (random_table(rng, states) for _ in range(8)) if t[state] is not None]
        table = rng.choice(legal or [(0,) * states])
        now += rng.randrange(1, 4)
        called, returned = max(0, now - rng.randrange(8)), now + rng.randrange(8)
        unanswered = rng.random() < 0.2
        if not unanswered or rng.random() < 0.5:
            after = table[state]
            assert after is not None
            state = after
        result.append(Operation(called, None if unanswered else returned, table, reads(table)))
    for _ in range(rng.randrange(count)):
        changed = rng.randrange(count)
        table = random_table(rng, states)
        result[changed].action, result[changed].reads = table, reads(table)
    rng.shuffle(result)
    return result


def by_trying_all(operations: Sequence[Operation]) -> bool:
    """Return whether some order explains it, by trying all orders."""

    def tried(state: int, rest: frozenset[int]) -> Iterator[bool]:
        returns = (operations[number].returned_ns for number in rest)
        todo = [returned_ns for returned_ns in returns if returned_ns is not None]
        yield not todo
        for number in rest:
            after = operations[number].action[state]
            if after is not None and todo and operations[number].called_ns <= min(todo):
                yield from tried(after, rest - {number})

    return any(tried(0, frozenset(range(len(operations)))))
