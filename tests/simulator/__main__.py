"""Run seeds: `python -m tests.simulator --seeds N --start S [--jobs J]`, or replay one with its
whole trace: `--verbose SEED`. With `--refill` worlds in which logs lose their beginning and
replicas are refilled, with `--cluster` whole clusters of the real programs (cluster/).

Of whole clusters, `--search MINUTES` also plays what it makes of worlds that reached new states,
and goes on where the last search with the same `--keep FILE` ended; `--shrink SEED` finds a short
schedule of faults that fails as the seed does. `--schedule` and `--profile`, as printed, replay
what was found so.

With `--digest` (also of starved worlds) one sha256 over all that happens, for comparing two
versions of the code (digest.py). Exit status 1 if any seed fails."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import orjson

from tests.simulator import digest
from tests.simulator.cluster import schedule, search
from tests.simulator.cluster.case import Case
from tests.simulator.cluster.shrink import shrink
from tests.simulator.cluster.world import ClusterWorld, Wish
from tests.simulator.refill import RefillWorld
from tests.simulator.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--verbose", type=int, metavar="SEED", help="replay one seed, traced")
    parser.add_argument("--refill", action="store_true", help="worlds with retention")
    parser.add_argument("--cluster", action="store_true", help="whole clusters")
    parser.add_argument("--starved", action="store_true", help="starved worlds, with --digest")
    parser.add_argument("--digest", action="store_true", help="print one sha256 of all seeds")
    parser.add_argument("--search", type=float, metavar="MINUTES", help="search for failures")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="what searches have found")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="shorten what fails")
    parser.add_argument("--schedule", type=schedule.read, help="faults of the replayed world")
    parser.add_argument("--profile", type=orjson.loads, default={}, help="parts of its profile")
    arguments = parser.parse_args()
    if arguments.search is not None:
        search.run(arguments.search, arguments.jobs, arguments.keep, arguments.start, say)
        return 0
    if arguments.shrink is not None:
        return shorten(Case(arguments.shrink, arguments.schedule, arguments.profile))
    if arguments.digest:
        return print_digest(arguments)
    world_class: type[World | ClusterWorld] = RefillWorld if arguments.refill else World
    if arguments.cluster:
        world_class = ClusterWorld
    if arguments.cluster and arguments.verbose is not None:
        case = Case(arguments.verbose, arguments.schedule, arguments.profile)
        print(ClusterWorld(case.seed, print, case.wish(Wish())).run())
        return 0
    if arguments.verbose is not None:
        print(world_class(arguments.verbose, trace=print).run())
        return 0
    began = time.perf_counter()
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    totals: Counter[str] = Counter()
    failed = 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        played = pool.map(partial(play, world_class), seeds, chunksize=10)
        for seed, (numbers, failure) in zip(seeds, played, strict=True):
            totals.update(numbers)
            if failure:
                failed += 1
                print(f"seed {seed} FAILED\n{failure}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{len(seeds)} seeds, {failed} failed, {seconds:.1f} s; {dict(totals)}")
    return 1 if failed else 0


def shorten(case: Case) -> int:
    found = shrink(case, tell=say)
    say("it does not fail" if found is None else found.report())
    return 1 if found is None else 0


def say(text: str) -> None:
    print(text, flush=True)


def print_digest(arguments: argparse.Namespace) -> int:
    make = digest.refill if arguments.refill else digest.plain
    if arguments.starved:
        make = digest.starved
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    total = hashlib.sha256()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for part in pool.map(partial(digest.digest_of, make), seeds, chunksize=10):
            total.update(part)
    print(f"{len(seeds)} seeds from {arguments.start}: {total.hexdigest()}")
    return 0


def play(world_class: type[World | ClusterWorld], seed: int) -> tuple[Mapping[str, int], str]:
    """One seed: (numbers, failure as text or "")."""
    try:
        return world_class(seed).run(), ""
    except Exception:
        return {}, traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
