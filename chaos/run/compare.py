"""Comparison of engines by the same load and the same faults on each in turn.

Every engine gets its own new cluster, the same seed and the same plan; faults that an engine cannot
have are listed in its row. The engine's full speed is measured first, by a closed-loop producer, on
a separate cluster without proxies and fault layer.

All engines are held to the same promises, even if an engine does not make them. The `acked and
lost` messages of ASYNC_FLUSH under power cuts of all nodes show the cost of that setting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from raftmq.client import Admin, Message, Producer

from ..cluster.cluster import Cluster
from ..cluster.clusterfile import ClusterError
from ..cluster.credentials import signing
from ..report.comparison import Candidate, comparison_page
from .engines import ENGINES, Engine
from .runner import RunConfig, Say, Workloads, run_scenario
from .scenario import SLOT_S, find_scenario

# Limits the comparison if an engine does not recover at all.
RECOVERY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class CompareConfig:
    """A comparison. `minutes` None: SLOT_S for each fault and repeat."""

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
    """The engines' runs and the page."""

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

    def tell(text: str) -> None:
        say(f"{engine.name}: {text}")

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
        recovery_timeout_s=RECOVERY_TIMEOUT_S,
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
    """Return acknowledged sends per second at full speed, without faults."""
    cluster = Cluster(directory)
    try:
        await cluster.up(engine.shape, settings)
        try:
            result = await saturate(cluster.state().namesrv, seconds)
        finally:
            await cluster.down()
    finally:
        await cluster.close()
    say(f"{result:,.0f} sends a second, nothing being broken")
    return result


TOPIC = "ChaosCalm"
QUEUES = 8
IN_FLIGHT = 256
WARM_SHARE = 0.2  # of the time, before counting starts
BODY = bytes(128)
TIMEOUT_MS = 10_000


async def saturate(namesrv: str, seconds: float) -> float:
    """Return acknowledged 128-byte sends per second, IN_FLIGHT at once. Raises ClientError, also
    for a failed send, because nothing is broken."""
    async with Admin(namesrv, instance_config=signing()) as admin:
        await admin.topic.create(TOPIC, QUEUES)
    async with Producer("chaos-calm", namesrv, instance_config=signing()) as producer:
        start_s = time.monotonic()
        count_from_s, until_s = start_s + seconds * WARM_SHARE, start_s + seconds
        acknowledged = 0

        async def send() -> None:
            nonlocal acknowledged
            while (now_s := time.monotonic()) < until_s:
                await producer.send(Message(TOPIC, BODY), TIMEOUT_MS)
                acknowledged += now_s >= count_from_s

        await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
    return acknowledged / (until_s - count_from_s)
