"""Scenarios and clients together: waves of them, each with a kill of its own."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.interop.driver import Driver
from tests.interop.runs import Outcome, Run, Strike
from tests.interop.scenarios import NEEDS_5, TABLE, Scenario
from tests.interop.targets import Target

Pair = tuple[Scenario, str]  # and the client
NAMES = {  # in tables, in their order
    "java43": "Java 4.3",
    "java49": "Java 4.9",
    "java53": "Java 5.3",
    "go": "Go 2.1",
    "node": "Node 3.12",
}


def page_table() -> list[str]:
    """docs/compatibility.md's table of scenarios. The last column is of the same at Apache's broker
    of 4.9, which nobody kills."""
    lines = [f"| scenario | {' | '.join(NAMES.values())} | at Apache's 4.9 |"]
    lines.append("|---" * (len(NAMES) + 2) + "|")
    for row in TABLE:
        cells = ["yes" if client in row.clients else "" for client in NAMES]
        without = [name for client, name in NAMES.items() if (row.name, client) in NEEDS_5]
        there = f"all but {', '.join(without)}" if without else "all"
        lines.append(f"| {' | '.join([row.name, *cells, there])} |")
    return lines


def pairs(clients: Iterable[str], names: Iterable[str] = ()) -> list[Pair]:
    """The rows of the table (all, or those named) with those of the clients that they are for."""
    expected, among = set(names), list(clients)
    rows = [row for row in TABLE if not expected or row.name in expected]
    return [(row, client) for row in rows for client in among if client in row.clients]


@contextmanager
def drivers(clients: Iterable[str], directory: Path) -> Iterator[dict[str, Driver]]:
    """One process for each client."""
    with ExitStack() as stack:
        started = {}
        for client in clients:
            started[client] = Driver(client, directory)
            stack.callback(started[client].close)
        yield started


def wave(
    target: Target,
    started: dict[str, Driver],
    which: list[Pair],
    tag: str,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """All of them at one time, with one kill in the middle; what was killed is brought back. `tag`
    becomes part of all names."""
    kill = Strike(target, len(which))
    outcomes = []
    threads = []
    for row, client in which:
        outcome = Outcome(client, row.name)
        run = Run(started[client], target, kill, outcome, tag)

        def work(run: Run = run, row: Scenario = row) -> None:
            run.perform(row.work)
            told(run.outcome)

        outcomes.append(outcome)
        threads.append(threading.Thread(target=work, name=f"{row.name}-{client}"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kill.wait_over()
    target.heal()
    return outcomes
