"""A rolling upgrade, under load, from the last program that knew no proofs to this one: nothing
that was acknowledged is lost, and once every replica has proven itself nobody comes without."""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raftmq.dledger.transport.peer_auth_enforcement import ENFORCED_FILE
from raftmq.dledger.transport.wire import Hello, encode_hello
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.errors import RemotingError
from raftmq.store.record import decode_record
from tests.archives import unpack
from tests.broker.replication.test_refill_processes import NAMES, PATIENCE_S, Processes, leads

ROOT = Path(__file__).resolve().parents[3]
BEFORE = "70644ff"  # the last commit whose replicas believed everybody
SECRET = "sixteen bytes at least, of this group"
QUEUES = 4
BETWEEN = 20  # messages acknowledged between two steps
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
    """Replicas that run the program before, and then this one, each over its own store."""

    def __init__(self, root, before):
        super().__init__(root)
        self.before = before
        self.new = set()
        for name in NAMES:
            conf = root / f"{name}.conf"
            kept = [
                line
                for line in conf.read_text().splitlines(keepends=True)
                if not line.startswith(("fileReservedTime", "deleteWhen", "electionTimeout"))
            ]
            conf.write_text("".join(kept) + ELECTION)
            self.raft = dict(
                part.split("-", 1)
                for line in kept
                if line.startswith("dLegerPeers=")
                for part in line.strip().removeprefix("dLegerPeers=").split(";")
            )

    def start(self, name):
        tree = ROOT if name in self.new else self.before
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "tests.broker.node", "-c", str(self.root / f"{name}.conf")]
        with (self.root / f"{name}.log").open("ab") as err:
            self.running[name] = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=err, cwd=tree, env=environment
            )

    def upgrade(self, name):
        """In order, as an operator would: leadership is handed over."""
        self.end(name, signal.SIGTERM)
        conf = self.root / f"{name}.conf"
        secret = self.root / "peer.secret"
        if not secret.exists():
            secret.write_text(SECRET)
            secret.chmod(0o600)
        own = f"peerSecretFile={secret}\npeerAuth=accept\nbindAddress=127.0.0.1\n"
        conf.write_text(conf.read_text() + own)
        self.new.add(name)
        self.start(name)

    def is_enforced(self, name):
        return (self.root / name / "raft" / ENFORCED_FILE).exists()

    def says_nothing_to_strangers(self, name):
        """Whether a hello that the program before would have answered is answered by the end."""
        host, port = self.raft[name].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as stranger:
            stranger.sendall(encode_hello(Hello("broker-a", "n9", name)))
            try:
                return stranger.recv(100) == b""
            except ConnectionError:
                return True


class Acknowledged:
    """Sends one message after the other to whoever leads, each until it is acknowledged."""

    def __init__(self, group):
        self.group = group
        self.bodies = []
        self.wanted = True
        self.leader = NAMES[0]

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *_):
        self.wanted = False
        await self.task

    async def _run(self):
        while self.wanted:
            body = b"message %d" % len(self.bodies)
            try:
                await self.group.send(self.leader, "T", body, queue=len(self.bodies) % QUEUES)
            except (RemotingError, AssertionError):  # it does not lead, or is down
                await self._look_for_leader()
            else:
                self.bodies.append(body)

    async def _look_for_leader(self):
        for name in list(self.group.running):
            if leads(await self.group.info(name)):
                self.leader = name
        await asyncio.sleep(0.05)

    async def more(self, count):
        goal = len(self.bodies) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.bodies) < goal:
                assert not self.task.done(), self.task
                await asyncio.sleep(0.02)


def caught_up(infos):
    """Everybody runs, is whole, and has what the leader has committed."""
    return (
        any(map(leads, infos.values()))
        and all(info.get("raftWhole") == "true" for info in infos.values())
        and all(int(info["raftBehindBytes"] or 0) < 1 << 20 for info in infos.values())
    )


@asynccontextmanager
async def upgrading(directory, commit):
    """Yield a group that runs the program of a commit, and has the topic "T"."""
    before = await asyncio.to_thread(program_before, directory / "before", commit)
    async with Upgrading(directory, before) as group:
        leader = await group.leader()
        header = TopicHeader("T", QUEUES, QUEUES, 6)
        await group.ask(leader, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        await group.until(caught_up)
        yield group


async def upgrade_each(group, load):
    """Upgrade one replica after the other, with sends between them."""
    for name in NAMES:
        await load.more(BETWEEN)
        await asyncio.to_thread(group.upgrade, name)
        await group.until(caught_up)
        await load.more(BETWEEN)


@pytest.mark.long
async def test_a_group_is_upgraded_under_load_and_then_enforces_proofs(tmp_path):
    async with upgrading(tmp_path, BEFORE) as group:
        leader = await group.leader()
        assert not await asyncio.to_thread(group.says_nothing_to_strangers, leader)
        async with Acknowledged(group) as load:
            for name in NAMES:
                await load.more(BETWEEN)
                assert not any(map(group.is_enforced, NAMES))
                await asyncio.to_thread(group.upgrade, name)
                await group.until(caught_up)
                await load.more(BETWEEN)
            # The note comes a moment before it is in force, and the log's line behind it.
            await group.until(lambda infos: all("proofs_enforced" in group.log(n) for n in NAMES))
            assert all(map(group.is_enforced, NAMES))
            await load.more(BETWEEN)
        for name in NAMES:
            log = group.log(name)
            assert SECRET not in log
            assert await asyncio.to_thread(group.says_nothing_to_strangers, name)
        assert "peer_taken_unproven" in group.log(NAMES[0])
        assert "peer_dialled_unproven" in group.log(NAMES[0])
        await all_there(group, load.bodies)


async def all_there(group, bodies):
    leader = await group.leader()
    found = set()
    for queue in range(QUEUES):
        first, end = await group.ends(leader, "T", queue)
        records = await group.messages(leader, "T", queue, first, end)
        found |= {bytes(decode_record(record, 0).body) for record in records.values()}
    assert set(bodies) <= found, sorted(set(bodies) - found)[:5]
