"""A run of a scenario with cluster, load, faults, heal, drain and verdict, repeatable by its seed.

    DIR/cluster/          the cluster (chaos/cluster), unless the run is given a running cluster
    DIR/history.jsonl     every operation
    DIR/verdict.json      results of the checks, lost messages, recovery times with all raw values
    DIR/report.html       the page
    DIR/watch/            results of `mqaudit watch`, if it was asked for

Phases: up; topics; consumers join; load; faults at their times, all healed and the cluster
recovered before the next faults; the load ends; drain; consumers leave; logs are searched, the
cluster stops, replicas are compared. Then the checks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from raftmq.client import Producer

from ..checks.experiment import ENDS, PLANNED
from ..checks.logs import write_findings
from ..checks.stores import write_replicas
from ..cluster.cluster import Cluster
from ..cluster.clusterfile import COMPOSE, PROCESSES, ClusterError, Node
from ..cluster.compose import ComposeCluster
from ..cluster.credentials import signing
from ..cluster.launch import log_path
from ..cluster.topology import RAFT, Shape, flush_of, nodes_of
from ..cluster.wait_healthy import RECOVERY_TIMEOUT_S, wait_recovered
from ..faults import power
from ..faults.base import Context, Planned, in_thread
from ..faults.catalogue import find
from ..faults.links import Links
from ..faults.power import LoopDisk
from ..history.files import HistoryWriter
from ..workloads.base import Environment, Workload
from ..workloads.observer import Observer, Watched
from .continuous_audit import TOPIC, continuous_audit
from .judge import RunResult, judge
from .nemesis import Inflicted, Nemesis
from .scenario import Scenario, check_victims, find_scenario, make_plan, split_available

Say = Callable[[str], None]
Workloads = Callable[[], Sequence[Workload]]

SETTLE_S = 1.0  # load before the first and after the last fault
FLOW_TIMEOUT_S = 60.0
FLOW_POLL_S = 0.02
RUNNER = "runner"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A run. `repeats` counts rounds of all the scenario's faults; None for as many as fit into the
    time.

    `workloads` creates the run's own. `existing` is a running cluster; the run does not stop it,
    nor containers (`on` COMPOSE; `project` of docker compose, if empty the only project). If the
    cluster does not recover within `recovery_timeout_s`, the verdict reports it and the next fault
    follows.
    """

    scenario: str
    directory: Path
    workloads: Workloads
    seed: int = 1
    minutes: float = 1.0
    repeats: int | None = None
    shape: Shape = field(default_factory=Shape)
    settings: Mapping[str, str] = field(default_factory=dict)
    existing: Path | None = None
    on: str = PROCESSES
    project: str = ""
    recovery_timeout_s: float = RECOVERY_TIMEOUT_S
    watch: bool = False  # judge acknowledgements by `mqaudit watch` as well


async def run_scenario(config: RunConfig, command: str, say: Say) -> RunResult:
    """Run, judge, report. Raises ClusterError, ClientError, OSError; `command` repeats the run."""
    began_ns = time.monotonic_ns()  # before the cluster is started, if it is this run's own
    scenario = find_scenario(config.scenario)
    path = config.directory / "history.jsonl"
    async with AsyncExitStack() as stack:
        cluster = await _cluster(config, scenario, stack, say)
        state = cluster.state()
        check_victims(scenario, state.nodes)
        wants, skipped = split_available(scenario, state)
        for text in skipped:
            say(f"not done: {text}")
        if scenario.wishes and not wants:
            raise ClusterError(f"nothing of this scenario can be done here: {'; '.join(skipped)}")
        plan = make_plan(
            config.seed, wants, config.minutes, config.repeats, in_order=scenario.in_order
        )
        say("waiting until the cluster is whole")
        await wait_recovered(cluster)
        with HistoryWriter(
            path,
            seed=config.seed,
            scenario=scenario.name,
            command=command,
            **{PLANNED: len(plan), ENDS: True},
            mode=state.mode,
            flush=flush_of(state),
        ) as history:
            for text in skipped:
                note(history, f"not done: {text}")
            inflicted = await _torment(config, plan, cluster, history, say)
            history.record(
                "inflicted",
                RUNNER,
                skipped=[*skipped, *inflicted.failed],
                stuck=inflicted.stuck,
            )

            async def stop() -> None:
                if config.existing is None and config.on == PROCESSES:
                    say("stopping the cluster")
                    await cluster.down()

            await record_evidence(cluster, history, stop, began_ns, inflicted.left)
            history.record("end", RUNNER)
    return await asyncio.to_thread(judge, path, config.directory, say)


def note(history: HistoryWriter, text: str) -> None:
    """Record words for readers of the history; no check uses them."""
    history.record("note", RUNNER, text=text)


async def _torment(
    config: RunConfig,
    plan: Sequence[Planned],
    cluster: Cluster,
    history: HistoryWriter,
    say: Say,
) -> Inflicted:
    workloads = config.workloads()
    groups_change = any("raft-groups" in find(planned.kind).needs for planned in plan)
    rng = random.Random(config.seed)
    async with AsyncExitStack() as stack:
        namesrv = cluster.state().namesrv
        pairs = [pair for workload in workloads for pair in workload.groups]
        if config.watch:
            groups = list(dict.fromkeys(group for _, group in pairs))
            lives = random.Random(config.seed)
            watch = continuous_audit(namesrv, groups, config.directory, history, lives)
            await stack.enter_async_context(watch)  # first, so that it ends last
        for workload in workloads:
            seed = rng.random()
            env = Environment(
                *(namesrv, history, random.Random(seed), say),
                groups_change=groups_change,
                audit_topic=TOPIC if config.watch else "",
            )
            await workload.prepare(env)
        watched = await _watched(namesrv, pairs)
        await stack.enter_async_context(Observer(cluster, history, watched))
        for workload in workloads:
            say(f"load: {workload.name}")
            await workload.start(stack)
        links = await _links(cluster, stack)
        context = Context(cluster, history, links, random.Random(rng.random()), say)
        await _flows(workloads)
        start_s = time.monotonic() + SETTLE_S
        nemesis = Nemesis(context, start_s, config.recovery_timeout_s)
        inflicted = await nemesis.inflict(plan, lambda: _raise_failure(workloads))
        await asyncio.sleep(max(SETTLE_S, start_s + config.minutes * 60 - time.monotonic()))
        for workload in workloads:
            workload.stop()
        for workload in workloads:
            tally = workload.tally
            say(
                f"{workload.name}: {tally.invoked:,} operations, {tally.ok:,} acknowledged; "
                "waiting for the rest"
            )
            if not await workload.drain():
                say(f"{workload.name}: not drained in time")
    return inflicted


async def _flows(workloads: Sequence[Workload]) -> None:
    """Await the first acknowledged send, at most FLOW_TIMEOUT_S, so faults disturb something."""
    deadline = time.monotonic() + FLOW_TIMEOUT_S
    while not any(workload.tally.ok for workload in workloads) and time.monotonic() < deadline:
        _raise_failure(workloads)
        await asyncio.sleep(FLOW_POLL_S)


async def _watched(namesrv: str, pairs: Sequence[tuple[str, str]]) -> list[Watched]:
    """Return the observer's pairs (topic, consumer group), with the topic's queues counted."""
    if not pairs:
        return []
    async with Producer("chaos-observer", namesrv, instance_config=signing()) as producer:
        counts = {topic: await producer.queues(topic) for topic in {topic for topic, _ in pairs}}
    return [
        Watched(topic, group, 1 + max(queue.queue_id for queue in counts[topic]))
        for topic, group in pairs
    ]


def _raise_failure(workloads: Sequence[Workload]) -> None:
    """End the run if a load failed, because the rest would be worthless."""
    for workload in workloads:
        failure = workload.failure()
        if failure is not None:
            raise failure


async def _links(cluster: Cluster, stack: AsyncExitStack) -> Links | None:
    if not cluster.state().links:
        return None
    return await stack.enter_async_context(Links.of(cluster))


def _running(config: RunConfig) -> Cluster:
    """Return the cluster that somebody else has started and will stop."""
    if config.on == COMPOSE:
        mode = config.shape.mode or RAFT
        return ComposeCluster(config.directory / "containers", config.project, mode)
    assert config.existing is not None
    return Cluster(config.existing)


async def _cluster(
    config: RunConfig, scenario: Scenario, stack: AsyncExitStack, say: Say
) -> Cluster:
    """Return the cluster for the run. The stack stops a cluster that is started here."""
    if config.on == COMPOSE or config.existing is not None:
        cluster = _running(config)
        stack.push_async_callback(cluster.close)
        await cluster.wait_serving()
        return cluster
    cluster = Cluster(config.directory / "cluster")
    stack.push_async_callback(cluster.close)
    needs = scenario.needs()
    shape = with_needs(config.shape, needs)
    check_victims(scenario, nodes_of(shape))
    if "loop-device" in needs and power.unavailable() is None:
        for node in (node for node in nodes_of(shape) if node.kind == "broker"):
            disk = LoopDisk(cluster.store_of(node))
            stack.callback(disk.remove)
            await in_thread(disk.make)
    say(f"starting a cluster: mode {shape.mode or RAFT}")
    await cluster.up(shape, config.settings)
    stack.push_async_callback(cluster.down)
    return cluster


def with_needs(shape: Shape, needs: Collection[str]) -> Shape:
    """Return the shape with the needs of a scenario's faults."""
    return replace(
        shape,
        links=shape.links or "links" in needs,
        faultable=shape.faultable or "faultable" in needs,
    )


async def record_evidence(
    cluster: Cluster,
    history: HistoryWriter,
    stop: Callable[[], Awaitable[None]],
    began_ns: int,
    left: Sequence[Node] = (),
) -> None:
    """Stop the cluster; record findings of its logs and the content of its stores, also of removed
    groups (`left`).

    `began_ns` is the start of the run on the history's clock.
    """
    committed = await _committed(cluster)
    await stop()
    await asyncio.to_thread(_write_evidence, cluster, history, committed, began_ns, left)


async def _committed(cluster: Cluster) -> dict[str, int]:
    """Return group → Raft index that all replicas have committed, if all answer."""
    result: dict[str, int] = {}
    statuses = [s for s in await cluster.status() if s.node.kind == "broker"]
    for group in cluster.state().groups:
        views = [s.view for s in statuses if s.node.group == group]
        known = [v.commit_index for v in views if v is not None and v.term > 0]
        if len(known) == len(views):
            result[group] = min(known)
    return result


def _write_evidence(
    cluster: Cluster,
    history: HistoryWriter,
    committed: Mapping[str, int],
    began_ns: int,
    left: Sequence[Node],
) -> None:
    """Record the nodes' logs and stores. Blocking."""
    logs = {node.name: log_path(cluster.directory, node) for node in left}
    write_findings(history, cluster.collect_logs() | logs, cluster.log_zone, began_ns)
    brokers = (*cluster.state().brokers, *left)
    for group in dict.fromkeys(node.group for node in brokers):
        members = [node for node in brokers if node.group == group]
        if len(members) > 1:
            stores = {n.name: cluster.store_of(n) for n in members}
            write_replicas(history, group, stores, committed.get(group))
