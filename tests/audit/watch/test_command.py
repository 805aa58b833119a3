"""`mqaudit watch` as a command: output, exit status, kills, and tasks on Spark."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import orjson
import pytest
from click.testing import CliRunner, Result

from raftmq.audit.cli import main
from raftmq.audit.watch.results import Results, served
from raftmq.audit.watch.state import State
from raftmq.chaos.cluster.topology import Shape
from raftmq.client import Admin, Message, Producer
from raftmq.client.message import SendResult
from tests.audit.test_live import SETTINGS, down, up
from tests.client.fakes import FakeCluster, queue
from tests.ports import bound
from tests.smallspark import PROGRAM
from tests.waiting import wait_until


def mqaudit_watch(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["watch", *map(str, arguments)])


async def test_watch_prints_each_finding_and_exits_with_1(tmp_path: Path) -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.name_server.topics["Audit"] = {"g0": (1, 6)}
        async with Producer("p", cluster.namesrv, audit_topic="Audit") as producer:
            result = await producer.send(Message("T", b"x"), queue=queue(2))
        cluster.logs["g0"].records["T", 2].clear()
        topic = ("--namesrv", cluster.namesrv, "--audit-topic", "Audit", "--once")
        more = ("--minutes", 0, "--results", tmp_path)
        ended = await asyncio.to_thread(mqaudit_watch, *topic, *more)
    place = "T at g0, queue 2, offset 0"
    reason = "its queue ends before it, or lacks it"
    assert ended.output == f"missing: {result.msg_id} of {place}: {reason}\n"
    assert ended.exit_code == 1
    (line,) = (tmp_path / "findings.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert (found["kind"], found["msg_id"]) == ("missing", result.msg_id)
    assert found["time_ms"] <= found["found_ms"]


def test_page_and_metrics_are_served_and_nothing_else(tmp_path: Path) -> None:
    with State(tmp_path, "Audit") as state, served(tmp_path, "127.0.0.1:0") as port:
        Results(state).publish(0)
        address = f"http://127.0.0.1:{port}"
        for path, kind, content in (
            ("/", "text/html; charset=utf-8", b"Watch over Audit"),
            ("/metrics", "text/plain; version=0.0.4", b"\nraftmq_watch_waiting 0\n"),
        ):
            with urlopen(address + path) as answer:
                assert answer.headers["Content-Type"] == kind and content in answer.read()
        for path in ("/watch.sqlite", "/../watch.sqlite", "/metrics/"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(address + path)


def test_watch_needs_acknowledgements_and_brokers(tmp_path: Path) -> None:
    for arguments in (("--namesrv", "127.0.0.1:1"), ("--audit-topic", "Audit")):
        assert mqaudit_watch(*arguments, "--results", tmp_path).exit_code == 2
    with bound() as silent:
        nowhere = ("--namesrv", f"127.0.0.1:{silent.getsockname()[1]}", "--audit-topic", "Audit")
        ended = mqaudit_watch(*nowhere, "--once", "--results", tmp_path)
    assert ended.exit_code == 2
    assert ended.output.startswith("mqaudit: ")


class Planted:
    """Sends with an audit topic, in which one acknowledgement of a hundred is a lie."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.expected: set[tuple[str, str]] = set()

    async def send(self, count: int) -> None:
        async with Producer("p", self.namesrv, audit_topic="Told") as producer:
            results = await asyncio.gather(
                *(producer.send(Message("Orders", b"%d" % n)) for n in range(count))
            )
        lies = [self._lie(number, result) for number, result in enumerate(results[::100])]
        columns = {name: [lie[name] for lie in lies] for name in lies[0]}
        async with Producer("liar", self.namesrv) as producer:
            await producer.send(Message("Told", orjson.dumps(columns)))

    def _lie(self, number: int, result: SendResult) -> dict[str, object]:
        kind = ("missing", "altered")[number % 2]
        place, broker, queue_id = result.queue
        lie: dict[str, object] = {"msg_id": result.msg_id, "topic": place, "broker": broker}
        lie |= {"queue_id": queue_id, "queue_offset": result.queue_offset}
        if kind == "missing":
            lie["msg_id"] = f"{result.msg_id}-never"
        self.expected.add((kind, str(lie["msg_id"])))
        return lie | {"body_crc": zlib.crc32(b"never"), "time_ms": None}


@pytest.mark.long
def test_watch_that_is_killed_again_and_again_finds_each_message_once(tmp_path: Path) -> None:
    cluster = up(tmp_path / "c", Shape(), SETTINGS)
    try:
        namesrv = cluster.state().namesrv
        planted = Planted(namesrv)
        asyncio.run(_create(namesrv))
        command = [sys.executable, "-m", "raftmq.audit", "watch", "--namesrv", namesrv]
        command += ["--audit-topic", "Told", "--results", str(tmp_path / "w"), "--minutes", "0"]
        command += ["--consumer-group", "billing"]
        for number in range(4):
            with subprocess.Popen([*command, "--every", "0.1"], stdout=subprocess.PIPE) as process:
                asyncio.run(planted.send(1_000))
                if number:  # at any point
                    wait_until(lambda: (tmp_path / "w" / "findings.jsonl").exists())
                process.send_signal(signal.SIGKILL)
        subprocess.run([*command, "--once"], check=False, timeout=300)
        lines = (tmp_path / "w" / "findings.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        found = [(row["kind"], row["msg_id"]) for row in rows if "msg_id" in row]
        assert sorted(found) == sorted(planted.expected)
        behind = [(row["topic"], row["queue_id"]) for row in rows if row["kind"] == "unconsumed"]
        assert behind == [("Orders", queue_id) for queue_id in range(4)]

        spark = [*command, "--once", "--master", "local[2]"]
        spark[spark.index(str(tmp_path / "w"))] = str(tmp_path / "spark")
        ended = subprocess.run(spark, env=os.environ | PROGRAM, capture_output=True, timeout=300)
        assert ended.returncode == 1, ended.stderr
        assert len(ended.stdout.splitlines()) == len(planted.expected) + len(behind)
    finally:
        down(cluster)


async def _create(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        for topic in ("Orders", "Told"):
            await admin.topic.create(topic, 4)
        for queue in (await admin.cluster.route("Orders")).write_queues("Orders"):
            await admin.offset.commit("billing", queue, 0)
