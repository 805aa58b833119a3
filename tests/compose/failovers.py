"""Counts the alerts that failovers and planned stops raise: python -m tests.compose.failovers

A cluster of processes on this machine, with a producer and a consumer, is watched by a Prometheus
(--prometheus: its program) that evaluates deploy/prometheus/alerts.yml. In turn each group's leader
is killed or stopped as planned, and started again. No group changes its leader more often than
RaftmqLeaderFlapping allows; so 100 events take an hour and a half with 8 groups. Prints JSON: the
events, the most changes that Prometheus saw in a group's quarter of an hour, and what was pending
or firing, in evaluations. Exit status 1 if anything fired.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from raftmq import Admin, Message, MessageExt, Producer, PushConsumer
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.client.errors import ClientError
from tests.compose.queries import DEPLOY, ask
from tests.ports import bound

TOPIC = "Orders"
INTERVAL_S = 5  # of scrapes and evaluations, as in deploy/prometheus/prometheus.yml
CHANGES_PER_QUARTER = 2  # of an hour, in one group; RaftmqLeaderFlapping is for more than 4
CHANGES = "max(max_over_time(increase(raft_leader_changes_total[15m])[6h:30s]))"
DOWN_S = 5.0  # a process is started again after this
SEND_EVERY_S = 0.05
SETTLE_S = 90.0  # what is pending gets time to fire


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--each", type=int, default=50, help="kills, and as many planned stops")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    told(f"logs: {directory}")
    answer = asyncio.run(watched(given, directory))
    shutil.rmtree(directory)
    print(json.dumps(answer, indent=1))
    return 1 if answer["firing"] else 0


async def watched(given: argparse.Namespace, directory: Path) -> dict[str, object]:
    cluster = Cluster(directory / "cluster")
    try:
        await cluster.up(Shape(groups=given.groups), say=told)
        async with prometheus(given.prometheus, directory, cluster) as url, load(cluster) as counts:
            await asyncio.sleep(2 * INTERVAL_S)
            began_s = time.monotonic()
            await strike(cluster, given.each)
            took_s = time.monotonic() - began_s + SETTLE_S
            await asyncio.sleep(SETTLE_S)
            return {
                "groups": given.groups,
                "kills": given.each,
                "planned_stops": given.each,
                "minutes": round(took_s / 60, 1),
                **counts,
                "targets_up": await asyncio.to_thread(figure, url, "count(up == 1)"),
                "most_changes": await asyncio.to_thread(figure, url, CHANGES),
                "pending": await asyncio.to_thread(alerts, url, "pending", took_s),
                "firing": await asyncio.to_thread(alerts, url, "firing", took_s),
            }
    finally:
        await cluster.down()
        await cluster.close()


async def strike(cluster: Cluster, each: int) -> None:
    groups = cluster.state().groups
    pause_s = 15 * 60 / CHANGES_PER_QUARTER / len(groups)
    for number in range(2 * each):
        due_s = time.monotonic() + pause_s
        group, turn = groups[number % len(groups)], number // len(groups)
        leader = await cluster.find(f"leader:{group}")
        how = signal.SIGTERM if (number + turn) % 2 else signal.SIGKILL
        await cluster.wait_dead(cluster.signal(leader.name, how))
        await asyncio.sleep(DOWN_S)
        cluster.start(leader.name)
        await wait_recovered(cluster)
        told(f"{number + 1}/{2 * each} {how.name} {leader.name}")
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))


@asynccontextmanager
async def prometheus(program: str, directory: Path, cluster: Cluster):
    state = cluster.state()
    jobs = {"raftmq-broker": state.brokers, "raftmq-namesrv": state.name_servers}
    config = {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yml")],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [node.http for node in nodes]}]}
            for job, nodes in jobs.items()
        ],
    }
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    with bound() as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def load(cluster: Cluster):
    """Twenty messages a second over all groups, and a consumer of them."""
    namesrv, counts = cluster.state().namesrv, {"sent": 0, "failed_sends": 0, "consumed": 0}
    async with Admin(namesrv) as admin:
        await admin.topic.create(TOPIC, 4)

    async def listen(messages: list[MessageExt]) -> None:
        counts["consumed"] += len(messages)

    async def send(producer: Producer) -> None:
        while True:
            try:
                await producer.send(Message(TOPIC, b"x" * 128))
                counts["sent"] += 1
            except ClientError as error:
                counts["failed_sends"] += 1
                told(f"not sent: {error}")
            await asyncio.sleep(SEND_EVERY_S)

    consumer = PushConsumer("failovers", namesrv, listen)
    consumer.subscribe(TOPIC)
    async with Producer("failovers", namesrv) as producer, consumer:
        sending = asyncio.create_task(send(producer))
        try:
            yield counts
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


def alerts(url: str, state: str, seconds: float) -> dict[str, int]:
    """In how many evaluations each alert was in a state, summed over what it is about."""
    span = f"[{int(seconds) + INTERVAL_S}s]"
    query = f'sum by (alertname) (count_over_time(ALERTS{{alertstate="{state}"}}{span}))'
    result = ask(url, "query", query=query)["result"]
    return {one["metric"]["alertname"]: int(one["value"][1]) for one in result}


def figure(url: str, query: str) -> float:
    result = ask(url, "query", query=query)["result"]
    return float(result[0]["value"][1]) if result else 0.0


def told(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
