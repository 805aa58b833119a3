"""Runs the same load and the same faults on several engines, one after the other.

Every engine gets its own new cluster, the same seed and the same plan; faults that cannot be made
on an engine are listed in its row. Before any fault, the engine's full speed is measured on a
separate cluster, without proxies and fault layer, by one closed-loop producer.

All engines are held to the same promises, also to those that an engine does not make: the `acked
and lost` messages of ASYNC_FLUSH under power cuts of all nodes show what that setting costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..cluster.cluster import Cluster
from ..cluster.clusterfile import ClusterError
from ..report.comparison import Candidate, comparison_page
from .engines import ENGINES, Engine
from .runner import RunConfig, Say, Workloads, run_scenario
from .saturate import saturate
from .scenario import SLOT_S, find_scenario

# An engine that does not come back at all must not make the comparison endless.
WHOLE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class CompareConfig:
    """A comparison to make. `minutes` None: SLOT_S for each fault and repeat."""

    directory: Path
    engines: tuple[str, ...]
    scenario: str
    workloads: Workloads
    seed: int
    minutes: float | None
    repeats: int
    calm_s: float
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result: the engines' runs and the page."""

    candidates: tuple[Candidate, ...]
    page: Path


async def compare_engines(config: CompareConfig, command: str, say: Say) -> Comparison:
    """Run all engines. Raises ClusterError, ClientError, OSError."""
    scenario = find_scenario(config.scenario)
    page = config.directory / "comparison.html"
    if page.exists():
        raise ClusterError(f"{config.directory} holds a comparison already")
    minutes = config.minutes
    if minutes is None:
        minutes = SLOT_S * len(scenario.wishes) * config.repeats / 60
    candidates = []
    for name in config.engines:
        engine = ENGINES[name]
        candidates.append(await _candidate(engine, config, minutes, command, say))
        text = comparison_page(f"Compared under: {scenario.name}", command, candidates)
        page.write_text(text, encoding="utf-8")
    return Comparison(tuple(candidates), page)


async def _candidate(
    engine: Engine, config: CompareConfig, minutes: float, command: str, say: Say
) -> Candidate:
    directory = config.directory / engine.name
    settings = dict(config.settings) | dict(engine.settings)

    def tell(words: str) -> None:
        say(f"{engine.name}: {words}")

    calm_per_s = 0.0
    if config.calm_s:
        calm_per_s = await _calm(engine, settings, directory / "calm", config.calm_s, tell)
    run = RunConfig(
        config.scenario,
        directory,
        config.workloads,
        config.seed,
        minutes,
        config.repeats,
        engine.shape,
        settings,
        whole_timeout_s=WHOLE_TIMEOUT_S,
    )
    began_s = time.monotonic()
    result = await run_scenario(run, command, tell)
    tell(
        f"{len(result.recoveries)} faults, {len(result.lost):,} acknowledged messages lost, "
        f"{time.monotonic() - began_s:.0f} s"
    )
    return Candidate(engine.description, calm_per_s, result.data, result.recoveries, engine.name)


async def _calm(
    engine: Engine,
    settings: Mapping[str, str],
    directory: Path,
    seconds: float,
    say: Callable[[str], None],
) -> float:
    """Return acknowledged sends a second at full speed, without faults."""
    cluster = Cluster(directory)
    try:
        await cluster.up(engine.shape, settings)
        try:
            found = await saturate(cluster.state().namesrv, seconds)
        finally:
            await cluster.down()
    finally:
        await cluster.close()
    say(f"{found:,.0f} sends a second, nothing being broken")
    return found
