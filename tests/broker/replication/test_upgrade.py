"""Stores of an earlier program are opened once all replicas have been stopped: nothing that was
acknowledged is lost, and the group goes on."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode
from raftmq.store.record import decode_record
from tests.archives import unpack
from tests.broker.replication.test_refill_processes import NAMES, Processes, leads

ROOT = Path(__file__).resolve().parents[3]
BEFORE = "b0eb655d"  # the oldest program whose stores are opened
QUEUES = 4
MESSAGES = 40
ELECTION = "electionTimeoutMinMs=1500\nelectionTimeoutMaxMs=3000\n"


def program_before(directory, commit):
    """The tree of a commit, as git has it."""
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "cat-file", "-e", commit], capture_output=True).returncode:
        pytest.fail(f"this clone does not have {commit}: git fetch --unshallow")
    made = subprocess.run([*git, "archive", commit], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        unpack(archive, directory)
    return directory


class Upgrading(Processes):
    """Replicas that run the program before, and after `is_new` this one, over the same stores."""

    def __init__(self, root, before):
        super().__init__(root)
        self.before = before
        self.is_new = False
        for name in NAMES:
            conf = root / f"{name}.conf"
            kept = [
                line
                for line in conf.read_text().splitlines(keepends=True)
                if not line.startswith(("fileReservedTime", "deleteWhen", "electionTimeout"))
            ]
            conf.write_text("".join(kept) + ELECTION)

    def start(self, name):
        tree = ROOT if self.is_new else self.before
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1"}
        environment["NODE_DURATIONS"] = json.dumps(self.durations)
        command = [sys.executable, "-m", "tests.broker.node", "-c", str(self.root / f"{name}.conf")]
        with (self.root / f"{name}.log").open("ab") as err:
            self.running[name] = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=err, cwd=tree, env=environment
            )


async def test_stores_of_the_previous_program_are_opened(tmp_path):
    before = await asyncio.to_thread(program_before, tmp_path / "before", BEFORE)
    async with Upgrading(tmp_path, before) as group:
        leader = await group.leader()
        header = TopicHeader("T", QUEUES, QUEUES, 6)
        await group.ask(leader, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        bodies = await sent(group, leader, 0)
        infos = await group.until(lambda infos: all(i["raftGroupId"] for i in infos.values()))
        group_id = infos[leader]["raftGroupId"]
        for name, how in zip(NAMES, (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL), strict=True):
            await asyncio.to_thread(group.end, name, how)
        group.is_new = True
        for name in NAMES:
            await asyncio.to_thread(group.start, name)
        leader = await group.leader()
        infos = await group.until(lambda infos: all(i["raftGroupId"] for i in infos.values()))
        assert {info["raftGroupId"] for info in infos.values()} == {group_id}
        bodies += await sent(group, leader, MESSAGES)
        await group.until(
            lambda infos: len(infos) == len(NAMES) and any(map(leads, infos.values()))
        )
        result = set()
        for queue in range(QUEUES):
            first, end = await group.ends(leader, "T", queue)
            records = await group.messages(leader, "T", queue, first, end)
            result |= {bytes(decode_record(record, 0).body) for record in records.values()}
        assert result == set(bodies)
        for name in NAMES:
            assert "durable_state_lost" not in group.log(name)


async def sent(group, leader, first):
    bodies = [b"message %d" % number for number in range(first, first + MESSAGES)]
    for number, body in enumerate(bodies):
        await group.send(leader, "T", body, queue=number % QUEUES)
    return bodies
