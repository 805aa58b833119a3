"""Searches for worlds that fail: those that reached states that no other had are changed a little
and played again; the rest are fresh seeds.

`Search` decides what is played next, and keeps what was new; `run` has workers play it, for as long
as is asked, and says how far it is. What is kept stands in a file, a line each, from which the next
sitting goes on: cases, failures with the command that replays them, and the sums so far.
"""

from __future__ import annotations

import faulthandler
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import orjson

from tests.simulator.cluster.case import Case, Outcome, play
from tests.simulator.cluster.mutation import mutated

KEPT_MAX = 5_000  # cases; then a new one takes the place of any
FRESH = 0.3  # so many worlds are fresh seeds
WORLDS_A_WORKER = 60  # then new workers begin: none may grow for hours
HANGS_S = 600  # a world that takes so long on this machine's clock has hung; most take seconds
TELL_S = 60.0
SUMMED = ("worlds", "operations", "faults", "failures")


@dataclass(slots=True)
class Search:
    """See the module's docstring. `next_seed`: the first seed that no sitting has played."""

    next_seed: int = 0
    kept: list[Case] = field(default_factory=list)
    states: set[int] = field(default_factory=set)
    totals: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)  # of failures
    rng: Random = field(default_factory=lambda: Random(0))

    def next_case(self) -> Case:
        """Draw the next world."""
        seed = self.next_seed
        if not self.kept or self.rng.random() < FRESH:
            self.next_seed += 1
            return Case(seed)
        parent, other = self.rng.choice(self.kept), self.rng.choice(self.kept)
        case = mutated(self.rng, parent, other, seed)
        if case.seed == seed:
            self.next_seed += 1
        return case

    def take(self, case: Case, outcome: Outcome) -> Case | None:
        """Note what a world came to; return the case that is kept for it, if any."""
        self.totals.update({name: outcome.numbers[name] for name in ("operations", "faults")})
        self.totals["worlds"] += 1
        played = Case(case.seed, outcome.schedule, case.profile)
        if outcome.failure:
            self.totals["failures"] += 1
            self.kinds[outcome.kind] += 1
        if outcome.failure or outcome.states <= self.states:
            return None  # children of one that fails would fail in the same way
        self.states |= outcome.states
        if len(self.kept) < KEPT_MAX:
            self.kept.append(played)
        else:
            self.kept[self.rng.randrange(KEPT_MAX)] = played
        return played

    def progress(self, minutes: float, new: int) -> str:
        """Return a line on all sittings, and on this one's speed."""
        totals = self.totals
        return (
            f"{minutes:6.1f} min  {totals['worlds']} worlds ({new / max(minutes, 0.01):.0f}/min)  "
            f"{totals['operations']} operations  {totals['faults']} faults  "
            f"{len(self.states)} states  {len(self.kept)} kept  {totals['failures']} failures"
        )


class KeptFile:
    """What sittings keep, a line of JSON each; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def lines(self) -> list[dict[str, Any]]:
        if self._path is None or not self._path.exists():
            return []
        return [orjson.loads(line) for line in self._path.read_bytes().splitlines()]

    def add(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(orjson.dumps(line) + b"\n")

    def resumed(self, start: int) -> Search:
        """Return a search that goes on from the last sitting."""
        search = Search(next_seed=start)
        for line in self.lines():
            if "case" in line:
                search.kept.append(Case.from_json(line["case"]))
                search.states.update(line["states"])
            elif "failure" in line:
                search.kinds[line["kind"]] += 1
            else:
                search.totals = Counter(line["totals"])
                search.next_seed = max(start, line["next_seed"])
        search.rng = Random(search.next_seed)
        return search


def run(
    minutes: float,
    jobs: int = 1,
    keep: Path | None = None,
    start: int = 0,
    tell: Callable[[str], None] = print,
) -> Search:
    """Search for so many minutes, or until interrupted."""
    file = KeptFile(keep)
    search = file.resumed(start)
    began = reported = time.monotonic()
    worlds_before = search.totals["worlds"]

    def elapsed_minutes() -> float:
        return (time.monotonic() - began) / 60

    def say() -> None:
        tell(search.progress(elapsed_minutes(), search.totals["worlds"] - worlds_before))
        file.add({"totals": dict(search.totals), "next_seed": search.next_seed})

    try:
        for case, outcome in _played(search, jobs, lambda: elapsed_minutes() >= minutes):
            known = frozenset(search.states)
            kept = search.take(case, outcome)
            if kept is not None:
                file.add({"case": kept.to_json(), "states": sorted(outcome.states - known)})
            if outcome.failure:
                failed = Case(case.seed, outcome.schedule, case.profile)
                tell(f"FAILED: {outcome.failure}\n{failed.command}")
                line = {"failure": outcome.failure, "kind": outcome.kind}
                file.add(line | {"failed": failed.to_json(), "command": failed.command})
            if time.monotonic() - reported >= TELL_S:
                reported = time.monotonic()
                say()
    except KeyboardInterrupt:
        tell("interrupted")
    say()
    for kind, count in search.kinds.most_common():
        tell(f"{count:5} failed: {kind}")
    return search


def _played(search: Search, jobs: int, over: Callable[[], bool]) -> Iterator[tuple[Case, Outcome]]:
    """Yield cases and what they came to, as workers play them."""
    while not over():
        under_way: dict[Future[Outcome], Case] = {}
        left = WORLDS_A_WORKER * jobs
        with ProcessPoolExecutor(jobs, get_context("spawn"), _begin_worker) as pool:
            try:
                while under_way or (left and not over()):
                    while left and len(under_way) < jobs and not over():
                        case = search.next_case()
                        under_way[pool.submit(_play_in_worker, case)] = case
                        left -= 1
                    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                        yield under_way[future], future.result()
                        del under_way[future]
            except BrokenProcessPool:
                for case in under_way.values():  # one of these
                    failure = "the worker died, or the world hung"
                    yield case, Outcome(case.schedule, frozenset(), Counter(), failure, failure)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search ends its workers


def _play_in_worker(case: Case) -> Outcome:
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    try:
        return play(case)
    finally:
        faulthandler.cancel_dump_traceback_later()
