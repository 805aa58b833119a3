"""A second `mqbroker` on a store in use, under load; and the three of `mqbroker --help`."""

import asyncio
import contextlib
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import PullHeader, SendHeader
from raftmq.store.record import decode_record, walk_records
from tests.broker.replication.test_refill_processes import PATIENCE_S, Processes
from tests.store.test_store_lock import digest
from tests.waiting import until

STARTS = 3
TRY_AGAIN = 75  # EX_TEMPFAIL
WRONG = 2
ROOMY = "fileReservedTime=72\ndeleteWhen=04\nmappedFileSizeCommitLog=4194304\n"
PROMPT = "electionTimeoutMinMs=400\nelectionTimeoutMaxMs=800\n"  # who loses office loses nothing


def thread_states(pid):
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        yield path.read_text().rpartition(") ")[2][0]


async def second_start(root, name, *settings):
    """Like the first, on other ports; its exit status and what it said."""
    keys = ("listenPort=0", "dLegerBindAddress=127.0.0.9", *settings)
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tests.broker.node", "-c", str(root / f"{name}.conf")],
        *(part for key in keys for part in ("--set", key)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode, said.decode()


def group_of(root, *names):
    for_each = Processes(root, names)
    for name in names:
        with (root / f"{name}.conf").open("a") as conf:
            conf.write(ROOMY + PROMPT)
    return for_each


async def load(processes, acknowledged):
    """Send until it is cancelled, each body once, to whoever leads."""
    leader, number = await processes.leader(), 0
    header = SendHeader("pg", "T", "TBW102", 4, 0, 0, 1_700_000_000_000, 0, "").to_ext(310)
    while True:
        number += 1
        body = b"%d." % number * 100
        answer = await processes.ask(leader, RequestCode.SEND_MESSAGE_V2, header, body)
        if answer.code == ResponseCode.SUCCESS:
            acknowledged.append(body)
        else:
            leader = await processes.leader()


async def stored(processes, name):
    """Every body of queue 0."""
    offset = 0
    result: list[Any] = []
    while True:
        header = PullHeader("cg", "T", 0, offset, 32, 0x4, 0, 0, "*", 0)
        answer = await processes.ask(name, RequestCode.PULL_MESSAGE, header.to_ext())
        if answer.code != ResponseCode.SUCCESS:
            return result
        for at, _ in walk_records(answer.body):
            result.append(decode_record(answer.body, at).body)
            offset += 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("names", [("n0",), ("n0", "n1", "n2")], ids=["one", "three"])
async def test_second_start_on_a_store_in_use_ends_and_loses_nothing(tmp_path, names):
    processes = group_of(tmp_path, *names)
    acknowledged: list[Any] = []
    async with processes:
        await processes.leader()
        sending = asyncio.create_task(load(processes, acknowledged))
        victims = names if len(names) > 1 else names * STARTS
        ended = await asyncio.gather(*(second_start(tmp_path, name) for name in victims))
        for name, (status, said) in zip(victims, ended, strict=True):
            assert status == TRY_AGAIN, said
            pid = processes.running[name].pid
            assert f"mqbroker {name} of broker-a: process {pid} on {socket.gethostname()}" in said
        had = len(acknowledged)
        while len(acknowledged) < had + 10:  # the first go on
            assert not sending.done()
            await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.wait([sending])
        for name in names:
            processes.end(name, signal.SIGKILL)
        for name in names:
            processes.start(name)
        leader = await processes.leader()
        result = await stored(processes, leader)
        assert len(set(result)) == len(result)
        assert [body for body in result if body in set(acknowledged)] == acknowledged


@pytest.mark.timeout(300)
async def test_second_start_changes_no_byte_and_a_wrong_identity_is_rejected(tmp_path):
    processes = group_of(tmp_path, "n0")
    store = tmp_path / "n0"
    async with processes:
        await processes.leader()
        first = processes.running["n0"]
        first.send_signal(signal.SIGSTOP)  # a broker writes now and then by itself
        try:
            await until(lambda: all(state == "T" for state in thread_states(first.pid)))
            before = digest(store)
            for settings in ((), ("dLegerSelfId=n0", "brokerName=other")):
                status, said = await second_start(tmp_path, "n0", *settings)
                assert (status, digest(store)) == (TRY_AGAIN, before), said
        finally:
            first.send_signal(signal.SIGCONT)
        assert processes.end("n0", signal.SIGTERM) == 0
        log = (store / "commitlog" / f"{0:020d}").read_bytes()
        other = ("dLegerPeers=n7-127.0.0.9:40911", "dLegerSelfId=n7")
        status, said = await second_start(tmp_path, "n0", *other)
        assert status == WRONG
        assert "is that of node n0 of the Raft group broker-a" in said
        assert "configured to be node n7 of the Raft group broker-a" in said
        status, said = await second_start(tmp_path, "n0", "enableDLegerCommitLog=false")
        assert status == WRONG
        assert "the classic broker broker-a" in said
        assert (store / "commitlog" / f"{0:020d}").read_bytes() == log
        processes.start("n0")
        await processes.leader()


# ---- the example of --help -------------------------------------------------------------------


def example():
    """The lines of it as `mqbroker --help` prints them."""
    shown = subprocess.run(
        [sys.executable, "-m", "raftmq.broker.cli", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        env={"COLUMNS": "200", "LC_ALL": "C.UTF-8"},
    ).stdout
    return re.findall(r"Example.*?:\n((?: {4}.*\n)+)", shown)[0]


def on_free_ports(script, held):
    """The same with ports that are free here, and with this project's command."""
    ports = sorted(set(re.findall(r"\b(?:109|409)\d1\b", script)))
    assert len(ports) == 6
    for port, own in zip(ports, held.choose(6, random.Random()), strict=True):
        script = script.replace(port, str(own))
    return script.replace("mqbroker ", f"exec_broker {shlex.quote(sys.executable)} ")


async def ready(address):
    """Return what the broker tells about itself, if it can be asked."""
    client = RemotingClient()
    try:
        request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await client.invoke(address, request, 5_000)
        return orjson.loads(answer.body)["table"]
    except RemotingError:
        return {}
    finally:
        await client.close()


@pytest.mark.timeout(300)
async def test_help_example_starts_a_group_of_three(tmp_path):
    held = HeldPorts("127.0.0.1")
    script = on_free_ports(example(), held)
    # Bash's `wait` ends with the signal, and its children have it, too.
    script = (
        'exec_broker() { python=$1; shift; exec "$python" -m raftmq.broker.cli "$@"; }\n'
        + script
        + "wait"
    )
    with (tmp_path / "log").open("w") as log:
        group = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs on this loop)
            ["bash", "-c", script],
            cwd=tmp_path,
            env=os.environ | {"RAFTMQ_HTTP_PORT": "0"},  # 10915 and so on may be somebody's, too
            start_new_session=True,
            stderr=log,
            stdout=subprocess.DEVNULL,
        )
    try:
        ports = re.findall(r"listenPort=(\d+)", script)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                infos = [await ready(f"127.0.0.1:{port}") for port in ports]
                assert group.poll() is None, (tmp_path / "log").read_text()
                if any(info.get("raftLeaderReady") == "true" for info in infos) and all(infos):
                    break
                await asyncio.sleep(0.1)
        assert sorted(info["raftSelfId"] for info in infos) == ["n0", "n1", "n2"]
        assert sum(info["raftRole"] == "leader" for info in infos) == 1
        stores = re.findall(r"storePathRootDir=(\S+)", script)
        votes = {(tmp_path / store / "raft" / "hardstate").stat().st_ino for store in stores}
        assert len(votes) == 3
    finally:
        with contextlib.suppress(ProcessLookupError):  # or the log's assertion is not seen
            os.killpg(group.pid, signal.SIGKILL)
        group.wait(PATIENCE_S)
        held.close()
