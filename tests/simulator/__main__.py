"""Play whole clusters of the real programs, a seed a world: `python -m tests.simulator --seeds N
--start S [--jobs J]`, or replay one with its whole trace: `--verbose SEED`. With `--long` worlds
have some four times the operations and twice the faults.

`--search MINUTES` also plays what it makes of worlds that reached new states, and goes on where the
last search with the same `--keep FILE` ended; `--shrink SEED` finds a short schedule of faults that
fails as the seed does. `--schedule` and `--profile`, as printed, replay what was found so.

Exit status 1 if any seed fails."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import orjson

from tests.simulator.cluster import schedule, search
from tests.simulator.cluster.case import Case, Outcome, play
from tests.simulator.cluster.shrink import shrink
from tests.simulator.cluster.world import ClusterWorld, Wish

TELL_EVERY = 20  # worlds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--long", action="store_true", help="long worlds")
    parser.add_argument("--scaled", action="store_true", help="broker groups join and leave")
    parser.add_argument("--verbose", type=int, metavar="SEED", help="replay one seed, traced")
    parser.add_argument("--search", type=float, metavar="MINUTES", help="search for failures")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="what searches have found")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="shorten what fails")
    parser.add_argument("--schedule", type=schedule.read, help="faults of the replayed world")
    parser.add_argument("--profile", type=orjson.loads, default={}, help="parts of its profile")
    arguments = parser.parse_args()
    if arguments.search is not None:
        search.run(arguments.search, arguments.jobs, arguments.keep, arguments.start, say)
        return 0
    profile = arguments.profile | ({"scaled": True} if arguments.scaled else {})
    seed = arguments.verbose if arguments.shrink is None else arguments.shrink
    if seed is not None:
        case = Case(seed, arguments.schedule, profile, arguments.long)
        return replay(case) if arguments.shrink is None else shorten(case)
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    cases = [Case(seed, None, profile, arguments.long) for seed in seeds]
    return run(cases, arguments.jobs)


def run(cases: list[Case], jobs: int) -> int:
    """Play them all; print which fail, and from time to time the sums."""
    began = time.perf_counter()
    totals: Counter[str] = Counter()
    for number, (case, outcome) in enumerate(played(cases, jobs), 1):
        totals.update(outcome.numbers)
        totals["failed"] += bool(outcome.failure)
        if outcome.failure:
            say(f"seed {case.seed} FAILED\n{outcome.failure}\n{case.command}")
        if number % TELL_EVERY == 0 or number == len(cases):
            say(f"{number} worlds, {time.perf_counter() - began:.0f} s: {dict(totals)}")
    return 1 if totals["failed"] else 0


def played(cases: list[Case], jobs: int) -> Iterator[tuple[Case, Outcome]]:
    """Yield cases and what they came to; new workers begin now and then."""
    at_once = search.WORLDS_A_WORKER * jobs
    for first in range(0, len(cases), at_once):
        part = cases[first : first + at_once]
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            yield from zip(part, pool.map(play, part), strict=True)


def replay(case: Case) -> int:
    """Play it; print its trace, and what its programs log."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    world = ClusterWorld(case.seed, print, case.wish(Wish()))
    print(world.run())
    print(f"digest {world.digest():08x}")
    return 0


def shorten(case: Case) -> int:
    result = shrink(case, tell=say)
    say("it does not fail" if result is None else result.report())
    return 1 if result is None else 0


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
