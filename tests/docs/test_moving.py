"""docs/moving.md: its rehearsals are typed in and count what they promise, and the keys that it
calls unknown are."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from raftmq import Message, MessageExt, TransactionProducer, TransactionState
from raftmq.broker.config import APACHE_KEYS, OPTIONS
from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.ops.foreign_keys import OTHERWISE, REFUSED, read_table
from tests.docs.pages import ROOT
from tests.docs.tour import steps
from tests.waiting import until, wait_until

PAGE = ROOT / "docs" / "moving.md"
TAKEN, SIDE = "Take over a store, without Apache's broker", "Side by side, with Apache's broker"
KEYS = "### Keys of broker.conf"
WAIT_S = 300.0  # a bound against hanging, not an expectation
PATIENCE_MS = 60_000
COUNT = 5  # of each kind that waits
LEVEL_OF_A_MINUTE = 5
EXECUTABLES = Path(sys.executable).parent


class Shell:
    """Types a rehearsal's lines in, with the page's places replaced by a test's own."""

    def __init__(self, directory: Path, places: dict[str, str]) -> None:
        self._directory = directory
        self._places = places
        self._running: list[subprocess.Popen[str]] = []
        self._environment = {
            **os.environ,
            "PATH": f"{EXECUTABLES}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def type_in(self, line: str) -> str:
        """Return what the line prints. Raises AssertionError if it fails; what ends in & goes on
        until `end`."""
        for position, here in self._places.items():
            line = line.replace(position, here)
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._environment[name] = value
            return ""
        if line.startswith("kill "):
            self.end()
            return ""
        if line.split("#")[0].rstrip().endswith("&"):
            return self._begin(line.rstrip(" &"))
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _begin(self, line: str) -> str:
        """Start it, and return its first line: that it listens."""
        log = open(self._directory / f"log-{len(self._running)}", "w")
        with log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=ROOT,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._running.append(process)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, Path(log.name).read_text()
        return first

    def end(self) -> None:
        """End what runs, the last one first."""
        while self._running:
            process = self._running.pop()
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def shell(directory: Path, places: dict[str, str]) -> Iterator[Shell]:
    made = Shell(directory, places)
    try:
        yield made
    finally:
        made.end()


def rehearsal(heading: str) -> list[str]:
    result = [step.command for step in steps(PAGE) if step.heading == heading]
    assert len(result) > 5
    return result


def free_port() -> str:
    """Below what the system gives to those that ask for any port: the next one is taken, too."""
    held = HeldPorts("127.0.0.1")
    (port,) = held.choose(1, random.Random())
    held.close()
    return str(port)


def test_moving_page_takes_over_apaches_store_as_documented(tmp_path: Path) -> None:
    lines = rehearsal(TAKEN)
    where = {
        "/tmp/taken": str(tmp_path),
        ":9876": ":{ns}",
        "mqnamesrv &": "mqnamesrv --listen-port {ns} &",
    }
    port = free_port()
    positions = {text: here.replace("{ns}", port) for text, here in where.items()}
    with shell(tmp_path, positions | {"listenPort=10911": f"listenPort={free_port()}"}) as typed:
        shown = {}
        for line in lines:
            if line.startswith("mqadmin clusterList"):
                wait_until(lambda: "old-a" in typed.type_in("mqadmin clusterList"))
            shown[line] = typed.type_in(line)
    ordered, timed = (text for line, text in shown.items() if "topicStatus" in line)
    ends = re.compile(r"^old-a +\d+ +0 +(\d+)", re.MULTILINE)
    assert ends.findall(ordered) == ["10"] * 4
    assert ends.findall(timed) == ["2"] * 2  # Apache's had delivered them
    done, open_ = (text for line, text in shown.items() if "consumerProgress" in line)
    assert re.search(r"diffTotal +0\n", done) and re.search(r"diffTotal +20\n", open_)
    (consumed,) = (text for line, text in shown.items() if line.startswith("mqadmin consume "))
    assert len(consumed.splitlines()) == 20


def test_moving_page_names_keys_by_their_kind() -> None:
    text = PAGE.read_text()
    section = text[text.index(KEYS) :].split("\n## ")[0]
    gone, kept = section.split("These keys must be as")
    foreign = read_table(APACHE_KEYS)
    kinds = {
        foreign[name].kind
        for line in gone.split("\n- ")[1:]
        for name in re.findall(r"`([a-z]\w+)`", line)
        if name != "storePathRootDir" and "`" not in name and name != "mqbroker"
    }
    assert kinds == {REFUSED, OTHERWISE}
    known = set(OPTIONS)
    assert set(re.findall(r"`([a-z]\w+)`", kept)) <= known


@pytest.mark.long
@pytest.mark.timeout(900)
def test_moving_page_moves_to_a_raft_group_without_loss(tmp_path: Path) -> None:
    """Apache's broker 5.3 beside a group of ours, line by line; then the way back."""
    from tests.interop.apache import ApacheBroker
    from tests.interop.targets import name_server

    cluster = {"brokerName": "old-a", "brokerClusterName": "OldCluster"}
    with name_server() as namesrv:
        old = ApacheBroker(tmp_path / "old", namesrv, autoCreateTopicEnable="false", **cluster)
        old.start()
        positions = {
            "127.0.0.1:9876": namesrv,
            "127.0.0.1:11911": old.address,
            "--standard-ports": f"--namesrv {namesrv} --set diskSpaceWarningLevelRatio=100",
            "/tmp/": f"{tmp_path}/",
        }
        try:
            with shell(tmp_path, positions) as typed:
                shown = follow(typed, namesrv)
        finally:
            old.kill()
    copied = {tuple(line.split()[:3]) for line in shown["copy"].splitlines()}
    assert ("topic", "Orders", "made") in copied
    assert {("group", "Billing", "made"), ("group", "Billing", "changed")} & copied
    assert shown["before"] == (1000, 0)
    assert shown["both"][0] > 1000 and shown["both"][1] > 0 and sum(shown["both"]) == 2000
    assert shown["moved"] == (shown["both"][0], 3000 - shown["both"][0])
    assert shown["back"] == (shown["both"][0] + 100, shown["moved"][1])
    consumed = set((tmp_path / "billing.txt").read_text().split())
    assert consumed == {str(number) for number in range(1, 3001)}
    assert shown["audit"].count("nothing is wrong") == 2


def follow(typed: Shell, namesrv: str) -> dict:
    """Type the rehearsal in; return what was seen after the steps that matter."""
    shown: dict = {}
    seen = {"seq 1000 ": "before", "seq 1001": "both", "seq 2001": "moved", "seq 3001": "back"}
    wait_until(lambda: "old-a" in typed.type_in(f"mqadmin clusterList -n {namesrv}"))
    for line in rehearsal(SIDE):
        text = typed.type_in(line)
        for start, name in seen.items():
            if line.startswith(start):
                shown[name] = stored(typed)
        if "copyDefinitions" in line:
            shown["copy"] = text
        if line.startswith("mqaudit"):
            shown["audit"] = text
        if line.startswith("mqadmin consumerProgress"):
            rest = diff_of(text)
            more = f"mqadmin consume Orders --group Billing --count {rest} --format text"
            typed.type_in(f"{more} >> /tmp/billing.txt" if rest else "true")
    return shown


def waiting_of(typed: Shell) -> list[int]:
    """What checkMove counts of levels, timers and transactions."""
    findings = json.loads(typed.type_in("mqadmin checkMove --way store --json"))["findings"]
    figures = {row["what"]: row["figure"] for row in findings}
    return [figures[what] for what in ("delayed messages", "timer messages", "open transactions")]


class Till:
    """Answers for its transactions; `checks`: how often it was asked."""

    def __init__(self, decision: TransactionState) -> None:
        self._decision = decision
        self.checks = 0

    async def execute(self, _: Message, arg: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async def check(self, _: MessageExt) -> TransactionState:
        self.checks += 1
        return self._decision


@pytest.mark.long
@pytest.mark.timeout(900)
def test_moving_page_delivers_delayed_and_half_messages_after_take_over(tmp_path: Path) -> None:
    """Delay level, timer and half messages of an Apache broker that was stopped; and back there."""
    from tests.interop.apache import ApacheBroker
    from tests.interop.targets import name_server

    asleep = {"transactionTimeOut": "600000", "transactionCheckInterval": "600000"}
    given = {"brokerName": "old-a", "timerWheelEnable": "true"}
    waiting = [f"{kind}{n}" for kind in ("level", "timer") for n in range(COUNT)]
    halves = [f"half{n}" for n in range(COUNT)]
    with name_server() as namesrv, shell(tmp_path, {}) as typed:
        typed.type_in(f"export NAMESRV_ADDR={namesrv}")
        old = ApacheBroker(tmp_path / "old", namesrv, **given, **asleep)
        old.start()
        try:
            wait_until(lambda: "old-a" in typed.type_in("mqadmin clusterList"))
            for topic in ("Orders", "Sold"):
                typed.type_in(f"mqadmin updateTopic -b {old.address} -t {topic} -r 4 -w 4")
            typed.type_in("seq 100 | mqadmin produce Orders")
            typed.type_in("mqadmin consume Orders --group Billing --count 40 --format text")
            before = typed.type_in("mqadmin consumerProgress -g Billing")
            asyncio.run(leave_waiting(namesrv))
            wait_until(lambda: waiting_of(typed) == [COUNT] * 3)
        finally:
            old.stop()
        conf = tmp_path / "broker.conf"
        known = {key: value for key, value in old.settings.items() if key in OPTIONS}
        known |= {"brokerRole": "ASYNC_MASTER", "transactionTimeOut": "1000"}
        known |= {"transactionCheckInterval": "1000", "diskSpaceWarningLevelRatio": "100"}
        conf.write_text("".join(f"{key}={value}\n" for key, value in known.items()))
        typed.type_in(f"mqbroker -c {conf} &")
        wait_until(lambda: "old-a" in typed.type_in("mqadmin clusterList"))
        after = typed.type_in("mqadmin consumerProgress -g Billing")
        assert diff_of(after) == diff_of(before) > 0
        asyncio.run(answer_checks(namesrv))
        wait_until(lambda: set(waiting) <= set(bodies(typed, "Orders")), patience_s=WAIT_S)
        wait_until(lambda: set(halves) <= set(bodies(typed, "Sold")), patience_s=WAIT_S)
        assert len(bodies(typed, "Orders")) == 100 + len(waiting)
        assert sorted(bodies(typed, "Sold")) == sorted(["hello", *halves])
        typed.end()
        back = ApacheBroker(tmp_path / "back", namesrv, root=str(old.store), **given, **asleep)
        back.start()
        try:
            wait_until(lambda: "old-a" in typed.type_in("mqadmin clusterList"))
            there = bodies(typed, "Orders")
            assert set(there) == {*map(str, range(1, 101)), *waiting}
            twice = {body for body in there if there.count(body) > 1}
            assert all(body.startswith("timer") for body in twice)
            assert sorted(bodies(typed, "Sold")) == sorted(["hello", *halves])
        finally:
            back.kill()


async def leave_waiting(namesrv: str) -> None:
    """Send what the broker keeps back: of a delay level, of a time, and half of a transaction."""
    async with TransactionProducer("till", namesrv, Till(TransactionState.UNKNOWN)) as producer:
        for n in range(COUNT):
            level = Message("Orders", f"level{n}".encode(), delay_level=LEVEL_OF_A_MINUTE)
            await producer.send(level, timeout_ms=PATIENCE_MS)
            timer = Message("Orders", f"timer{n}".encode(), delay_time=timedelta(minutes=1))
            await producer.send(timer, timeout_ms=PATIENCE_MS)
            await producer.send_in_transaction(Message("Sold", f"half{n}".encode()), None)


async def answer_checks(namesrv: str) -> None:
    """Be the transactions' producer until it has been asked about each. Until it sends, a
    producer is known to no broker."""
    till = Till(TransactionState.COMMIT)
    async with TransactionProducer("till", namesrv, till) as producer:
        await producer.send(Message("Sold", b"hello"), timeout_ms=PATIENCE_MS)
        await until(lambda: till.checks >= COUNT)


def bodies(typed: Shell, topic: str) -> list[str]:
    return typed.type_in(f"mqadmin consume {topic} --format text").split()


def diff_of(progress: str) -> int:
    return int(re.findall(r"diffTotal +(\d+)", progress)[0])


def stored(typed: Shell) -> tuple[int, int]:
    """Messages in topic Orders: on the old broker, and on the new group."""
    status = typed.type_in("mqadmin topicStatus -t Orders")
    rows = re.findall(r"^(\S+) +\d+ +0 +(\d+)", status, re.MULTILINE)
    old, new = (sum(int(n) for name, n in rows if name == one) for one in ("old-a", "broker-a"))
    return old, new
