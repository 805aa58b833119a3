"""A run: a world, clients in it, seeds thrown at it, and what was found."""

from __future__ import annotations

import asyncio
import gc
import logging
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fuzz.attack import Attack
from tests.fuzz.live import Live
from tests.fuzz.plan import TARGETS, Step, steps
from tests.fuzz.situations import DEEDS, perform
from tests.fuzz.watch import Finding, Watch
from tests.fuzz.world import GROUP_OF, GROUPS, ROOT, World

VERIFY_EVERY = (
    40  # seeds: everything that was acknowledged is looked at, and the world is made anew
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The steps to send: a seed's at some ports, a part of them, or what is `given`, by port."""

    seed: int
    ports: tuple[str, ...]
    steps: tuple[int, int] | None = None
    frames: tuple[int, int] | None = None
    given: Mapping[str, list[Step]] | None = None
    weight: int = 1

    def plan(self, port: str) -> list[Step]:
        made = steps(self.seed, port, self.weight) if self.given is None else self.given[port]
        if self.steps is not None:
            made = made[slice(*self.steps)]
        if self.frames is not None:
            made = [step.part(*self.frames) for step in made]
        return made


@dataclass(slots=True)
class Outcome:
    """Of a run. `scope`: that of the finding, or the last."""

    scope: Scope
    sent: Counter[str] = field(default_factory=Counter)
    verified: int = 0
    finding: Finding | None = None
    noted: dict[str, Finding] = field(default_factory=dict)
    seconds: float = 0.0

    def summary(self) -> str:
        counts = " ".join(f"{port}={count}" for port, count in sorted(self.sent.items()))
        total = sum(self.sent.values())
        return (f"seed {self.scope.seed}: {total} frames in {self.seconds:.0f} s ({counts}), "
                f"{self.verified} acknowledged messages read back")  # fmt: skip


def run(
    scope: Scope,
    *,
    first: Scope | None = None,
    minutes: float | None = None,
    product: Path = ROOT,
    planted: str = "",
    nodes: Sequence[str] | None = None,
    go_on: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """One seed, or all from it on until the time is over; `first` is sent before. What goes wrong
    is in `finding`; with `go_on` in `noted`, and another world takes what follows."""
    quiet_before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # of our own clients, who suffer with the servers
    try:
        return _run(scope, first, minutes, product, planted, nodes, go_on, told)
    finally:
        logging.disable(quiet_before)
        with warnings.catch_warnings():  # what a finding cut off left open is gone with its loop
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def _run(
    scope: Scope,
    first: Scope | None,
    minutes: float | None,
    product: Path,
    planted: str,
    nodes: Sequence[str] | None,
    go_on: bool,
    told: Callable[[str], None],
) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(scope)
    until = began + 60 * minutes if minutes is not None else 0.0
    before = [first] if first is not None else []
    while True:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
            names = nodes or nodes_of(scope.ports)
            with World(Path(directory), names, product=product, planted=planted) as world:
                asyncio.run(_in_world(world, outcome, before, until, go_on, told))
        outcome.seconds = time.monotonic() - began
        if outcome.finding is not None and go_on:
            outcome.noted[command_of(outcome.scope)] = outcome.finding
            told(f"FOUND {outcome.finding}\nagain: {command_of(outcome.scope)}")
            outcome.finding = None
        if outcome.finding is not None or time.monotonic() >= until:
            return outcome
        told(outcome.summary())
        outcome.scope = replace(outcome.scope, seed=outcome.scope.seed + 1)


async def _in_world(
    world: World,
    outcome: Outcome,
    before: list[Scope],
    until: float,
    go_on: bool,
    told: Callable[[str], None],
) -> None:
    """Run what comes before, once, and then some seeds in one world."""
    try:
        await wait_until_up(world)
        with Watch(world, go_on) as watch:
            watch.noted = outcome.noted
            async with Live(world, watch) as live:
                attack = Attack(world, watch)
                try:
                    while before:
                        given, outcome.scope = outcome.scope, before[0]
                        await _one_seed(attack, outcome.scope)
                        outcome.scope = given
                        before.pop()
                    for count in range(VERIFY_EVERY):
                        if count:
                            outcome.scope = replace(outcome.scope, seed=outcome.scope.seed + 1)
                        await _one_seed(attack, outcome.scope)
                        told(f"seed {outcome.scope.seed}: {sum(attack.sent.values())} frames")
                        if time.monotonic() >= until:
                            break
                finally:
                    outcome.sent += attack.sent
                    await attack.close()
                outcome.verified += await live.verify()
                watch.check()
    except Finding as finding:
        outcome.finding = finding


async def _one_seed(attack: Attack, scope: Scope) -> None:
    """The ports' frames side by side, then the situations one after the other."""
    ports = [port for port in scope.ports if attack.targets(port)]
    plans = {port: await asyncio.to_thread(scope.plan, port) for port in ports}

    async def stream(port: str) -> None:
        for step in plans[port]:
            if step.what not in DEEDS:
                await attack.step(port, step)

    streams = [asyncio.ensure_future(stream(port)) for port in plans]
    try:
        await asyncio.gather(*streams)
    except Finding:
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        raise
    for port, plan in plans.items():
        for step in plan:
            if step.what in DEEDS:
                await perform(attack, port, step)
    attack.watch.check()
    await asyncio.to_thread(attack.watch.check_counters)


async def wait_until_up(world: World) -> None:
    """Until every node answers. Raises Finding if one ends instead."""
    for node in world.nodes.values():
        while True:
            assert node.process is not None
            if node.process.poll() is not None:
                tail = node.log.read_bytes()[-2_000:].decode(errors="replace")
                raise Finding("died", node.name, f"at its start\n{tail}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", node.ports["remoting"])
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            break


def nodes_of(ports: Sequence[str]) -> list[str]:
    """Those that the ports' steps go to, with the rest of their groups; a name server, and a group
    whose clients are live."""
    expected = {"solo", *(node for port in ports for node in TARGETS[port])}
    groups = {GROUP_OF[node] for node in expected if node in GROUP_OF}
    return ["names", *(node for group in sorted(groups) for node in GROUPS[group])]


def command_of(scope: Scope) -> str:
    """The command that does this again."""
    if scope.given is not None:
        return "python -m tests.fuzz --kept"
    ports = " ".join(f"--port {port}" for port in scope.ports)
    parts = [f"python -m tests.fuzz --seed {scope.seed} {ports}"]
    if scope.weight != 1:
        parts.append(f"--weight {scope.weight}")
    for name, pair in (("steps", scope.steps), ("frames", scope.frames)):
        if pair is not None:
            parts.append(f"--{name} {pair[0]}:{pair[1]}")
    return " ".join(parts)


def bisected(
    outcome: Outcome, *, product: Path, planted: str, told: Callable[[str], None]
) -> Scope:
    """The least scope found that has a finding of the same kind: one port, then one step, then
    few frames. A fault that needs several together stays with what was last found to show it."""
    assert outcome.finding is not None
    kind = outcome.finding.kind

    def shows(scope: Scope) -> bool:
        result = run(scope, product=product, planted=planted).finding
        told(f"{command_of(scope)}: {result.kind if result else 'nothing'}")
        return result is not None and result.kind == kind

    least = outcome.scope
    for port in least.ports if len(least.ports) > 1 else ():
        if shows(replace(outcome.scope, ports=(port,))):
            least = replace(outcome.scope, ports=(port,))
            break
    if len(least.ports) > 1:
        return least
    start, end = least.steps or (0, len(least.plan(least.ports[0])))
    start, end = _halved(start, end, lambda b, e: shows(replace(least, steps=(b, e))))
    least = replace(least, steps=(start, end))
    sizes = {len(step.frames) for step in least.plan(least.ports[0])}
    if end - start == 1 and max(sizes) > 1:
        start, end = least.frames or (0, max(sizes))
        start, end = _halved(start, end, lambda b, e: shows(replace(least, frames=(b, e))))
        least = replace(least, frames=(start, end))
    return least


def _halved(begin: int, end: int, shows: Callable[[int, int], bool]) -> tuple[int, int]:
    """The range, halved for as long as one half alone shows it."""
    while end - begin > 1:
        middle = (begin + end) // 2
        if shows(begin, middle):
            end = middle
        elif shows(middle, end):
            begin = middle
        else:
            break
    return begin, end
