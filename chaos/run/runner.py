"""Runs a scenario: cluster, load, faults, heal, drain, verdict. The same seed repeats the schedule.

    DIR/cluster/          the cluster (chaos/cluster.py), unless it was given one that runs already
    DIR/history.jsonl     every operation
    DIR/verdict.json      what the checks say, recovery times with all raw values
    DIR/report.html       the page

Phases: up; topic; consumers join; load; faults at their times, each healed and the group whole
again before the next; the load ends; drain; consumers leave; the cluster stops. Then the checks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from chaos.checks.suite import check_all
from chaos.checks.verdict import Check, Verdict, merge
from chaos.cluster.cluster import Cluster
from chaos.cluster.whole import wait_whole
from chaos.faults.nemesis import Kill, PlannedKill, plan_kills
from chaos.history.events import History
from chaos.history.files import HistoryWriter, read_history
from chaos.report.page import write_report
from chaos.report.recovery import Recovery, recoveries, summary
from chaos.run.observer import Observer, Watched
from chaos.workloads.consumers import drain, join_group
from chaos.workloads.log import Consumption, KeyedSender, Tally, random_items
from client import Admin, Producer

Say = Callable[[str], None]

TOPIC = "Chaos"
GROUP = "chaos-consumers"
HEAL_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 120.0
SETTLE_S = 1.0  # load before the first and after the last fault's interval


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of torment, by name."""

    name: str
    description: str
    targets: tuple[str, ...]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("failover", "kill -9 of the leader under load, again and again", ("leader",)),
        Scenario(
            "followers", "kill -9 of followers under load: nobody should notice", ("follower",)
        ),
        Scenario(
            "anybody", "kill -9 of the leader or a follower, at random", ("leader", "follower")
        ),
    )
}


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run. `rate_per_s` 0: closed loop, as fast as the window lets it."""

    scenario: str
    directory: Path
    seed: int = 1
    kills: int = 5
    minutes: float = 1.0
    producers: int = 2
    consumers: int = 2
    rate_per_s: float = 4000.0  # of all producers together
    window: int = 256  # per producer
    keys: int = 1000  # order keys per producer
    body_bytes: int = 128
    queues: int = 8
    send_timeout_ms: int = 10_000
    settings: Mapping[str, str] = field(default_factory=dict)
    existing: Path | None = None  # a cluster that runs; it is left running


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of it."""

    verdict: Verdict
    checks: tuple[Check, ...]
    recoveries: list[Recovery]
    tally: Tally
    history: Path
    page: Path


async def run_scenario(config: RunConfig, command: str, say: Say) -> RunResult:
    """Run, judge, report. Raises ClusterError, ClientError, OSError; `command` repeats the run."""
    scenario = SCENARIOS[config.scenario]
    seconds = config.minutes * 60
    plan = plan_kills(config.seed, config.kills, seconds, scenario.targets)
    path = config.directory / "history.jsonl"
    with HistoryWriter(
        path, seed=config.seed, scenario=config.scenario, command=command
    ) as history:
        tally = await _torment(config, plan, history, say)
    return judge(path, tally, config.directory, say)


def judge(path: Path, tally: Tally, directory: Path, say: Say) -> RunResult:
    """Check a written history, write verdict.json and report.html beside it."""
    say("checking the history")
    history = read_history(path)
    checks = check_all(history)
    found = recoveries(history)
    page = directory / "report.html"
    write_report(history, checks, page)
    data = verdict_data(history, checks, found)
    (directory / "verdict.json").write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    return RunResult(merge(checks), checks, found, tally, path, page)


def verdict_data(
    history: History, checks: Sequence[Check], found: Sequence[Recovery]
) -> dict[str, Any]:
    """verdict.json: plain data."""
    return {
        "verdict": merge(checks).value,
        "meta": history.meta,
        "checks": [
            {
                "name": check.name,
                "verdict": check.verdict.value,
                "count": check.count,
                "detail": check.detail,
                "examples": list(check.examples),
            }
            for check in checks
        ],
        "recovery": summary(found),
    }


async def _torment(
    config: RunConfig, plan: Sequence[PlannedKill], history: HistoryWriter, say: Say
) -> Tally:
    async with AsyncExitStack() as stack:
        cluster = await _cluster(config, stack, say)
        namesrv = cluster.state().namesrv
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, config.queues)
        watched = Watched(TOPIC, GROUP, config.queues)
        consumption = Consumption(history)
        say("consumers join their group")
        names = [f"consumer-{number}" for number in range(config.consumers)]
        await join_group(stack, namesrv, watched, names, consumption, HEAL_TIMEOUT_S)
        observer = await stack.enter_async_context(Observer(cluster, history, watched))
        senders = await _senders(config, namesrv, history, stack)
        say(f"load: {config.rate_per_s:g} sends a second" if config.rate_per_s else "load")
        async with asyncio.TaskGroup() as group:
            rng = random.Random(config.seed)
            for number, sender in enumerate(senders):
                name = f"producer-{number}"
                items = random_items(
                    TOPIC, name, config.keys, config.body_bytes, random.Random(rng.random())
                )
                group.create_task(sender.run(items), name=name)
            await _inflict(config, plan, cluster, history, say)
            for sender in senders:
                sender.stop()
        total = sum_tallies([sender.tally for sender in senders])
        say(f"sent {total.invoked}, acknowledged {total.ok}; waiting for the consumers")
        complete = await drain(observer, watched, history, DRAIN_TIMEOUT_S)
        say("drained" if complete else f"not drained within {DRAIN_TIMEOUT_S:g} s")
    return total


async def _cluster(config: RunConfig, stack: AsyncExitStack, say: Say) -> Cluster:
    """The cluster to torment; one that was started here is stopped when the stack unwinds."""
    if config.existing is not None:
        cluster = Cluster(config.existing)
        stack.push_async_callback(cluster.close)
        await cluster.wait_serving()
        return cluster
    cluster = Cluster(config.directory / "cluster")
    stack.push_async_callback(cluster.close)
    say("starting a cluster")
    await cluster.up(settings=config.settings)

    async def stop() -> None:
        say("stopping the cluster")
        await cluster.down()

    stack.push_async_callback(stop)
    return cluster


async def _senders(
    config: RunConfig, namesrv: str, history: HistoryWriter, stack: AsyncExitStack
) -> list[KeyedSender]:
    senders = []
    for number in range(config.producers):
        producer = await stack.enter_async_context(Producer("chaos-producers", namesrv))
        senders.append(
            KeyedSender(
                producer,
                history,
                f"producer-{number}",
                await producer.queues(TOPIC),
                window=config.window,
                timeout_ms=config.send_timeout_ms,
                rate_per_s=config.rate_per_s / config.producers or None,
            )
        )
    return senders


async def _inflict(
    config: RunConfig,
    plan: Sequence[PlannedKill],
    cluster: Cluster,
    history: HistoryWriter,
    say: Say,
) -> None:
    """Every planned fault at its time, healed before the next; then the rest of the load's time."""
    begin_s = time.monotonic() + SETTLE_S
    await asyncio.sleep(SETTLE_S)
    for number, planned in enumerate(plan, 1):
        await asyncio.sleep(max(0.0, begin_s + planned.at_s - time.monotonic()))
        kill = Kill(cluster, history, planned.target, planned.choice)
        try:
            await kill.inject()
            say(f"kill {number} of {len(plan)}: {kill.node} ({planned.target})")
            await asyncio.sleep(planned.down_s)
        finally:
            await kill.heal()
        await wait_whole(cluster)
    await asyncio.sleep(max(SETTLE_S, begin_s + config.minutes * 60 - time.monotonic()))


def sum_tallies(tallies: Sequence[Tally]) -> Tally:
    """All producers' outcomes as one."""
    return Tally(
        sum(t.invoked for t in tallies),
        sum(t.ok for t in tallies),
        sum(t.fail for t in tallies),
        sum(t.unknown for t in tallies),
    )
