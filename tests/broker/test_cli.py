"""The process: one line when it listens, exit codes, a clean stop on SIGTERM, kill -9 and back."""

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import cast

import pytest

from raftmq.broker.broker import Broker
from raftmq.broker.process import _on_exception
from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import SendHeader, SendResponseHeader
from tests.present import present

PATIENCE_S = 120.0  # only a hang takes so long


@pytest.fixture
def port():
    """A port that nobody else is given meanwhile."""
    held = HeldPorts("127.0.0.1")
    yield held.choose(1, random.Random())[0]
    held.close()


def run(*arguments):
    command = [sys.executable, "-m", "raftmq.broker.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--help"], 0, "mqbroker -c broker.conf"),
        (["--set", "brokerNam=x"], 2, "did you mean brokerName?"),
        (["-c", "nowhere.conf"], 2, "cannot read configuration file nowhere.conf"),
        (["-p", "--set", "brokerName=x"], 0, "brokerName=x\n"),
        (["-m", "--enable-proxy", "-n", "h:1"], 0, "grpcPort=8081\nnamesrvAddr=h:1\n"),
    ],
)
def test_mqbroker_command_line(arguments, code, part):
    done = run(*arguments)
    assert done.returncode == code
    assert part in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (["brokerRole=SLAVE"], "a SLAVE needs a brokerId of its own"),
        (["brokerId=1"], "a master's brokerId is 0, and brokerRole is ASYNC_MASTER"),
    ],
)
def test_broker_role_and_broker_id_must_agree(tmp_path, settings, part):
    given = [f"storePathRootDir={tmp_path}", "listenPort=0", *settings]
    done = run(*(part for setting in given for part in ("--set", setting)))
    assert done.returncode == 2
    assert part in done.stderr


async def test_broker_process_starts_stops_and_restarts(tmp_path, port):
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "enableDLegerCommitLog=true\nlistenPort=0\nflushDiskType=SYNC_FLUSH\n"
        f"dLegerPeers=n0-127.0.0.1:{port}\nstorePathRootDir={tmp_path / 'store'}\n"
        "mappedFileSizeCommitLog=8388608\ndiskSpaceWarningLevelRatio=100\n"
    )
    client = RemotingClient()
    try:
        for offset, number in enumerate((signal.SIGKILL, signal.SIGTERM)):
            process = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs on this loop)
                [
                    sys.executable,
                    "-m",
                    "tests.broker.node",
                    "-c",
                    str(conf),
                    "--log-level",
                    "ERROR",
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                line = present(process.stdout).readline()
                assert line.startswith("mqbroker broker-a/n0 listens on 127.0.0.1:")
                address = line.split()[-1]
                assert await send(client, address) == offset
            finally:
                process.send_signal(number)
                code = process.wait(timeout=PATIENCE_S)
                present(process.stdout).close()
            clean = number is signal.SIGTERM
            assert code == (0 if clean else -signal.SIGKILL)
            assert (tmp_path / "store" / "abort").exists() is not clean
    finally:
        await client.close()


@contextlib.contextmanager
def broker_process(conf):
    """A running mqbroker and the address it listens on; SIGTERM ends it, in order."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.broker.node", "-c", str(conf), "--log-level", "ERROR"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = present(process.stdout).readline()
        assert line.startswith("mqbroker broker-a/")
        yield line.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=PATIENCE_S)
        present(process.stdout).close()
    assert code == 0


async def test_classic_roles_start_from_broker_conf(tmp_path, port):
    common = "bindAddress=127.0.0.1\nlistenPort=0\n"
    common += "mappedFileSizeCommitLog=8388608\ndiskSpaceWarningLevelRatio=100\n"
    master, slave = tmp_path / "master.conf", tmp_path / "slave.conf"
    master.write_text(
        f"{common}brokerRole=SYNC_MASTER\nbrokerId=0\nflushDiskType=SYNC_FLUSH\n"
        "slaveTimeout=60000\n"
        f"haListenPort={port}\nstorePathRootDir={tmp_path / 'm'}\n"
    )
    slave.write_text(
        f"{common}brokerRole=SLAVE\nbrokerId=1\nflushDiskType=ASYNC_FLUSH\n"
        f"haMasterAddress=127.0.0.1:{port}\nstorePathRootDir={tmp_path / 's'}\n"
    )
    header = SendHeader("pg", "T", "TBW102", 4, 0, 0, 1, 0, "").to_ext(310)
    client = RemotingClient()
    codes = []
    try:
        with broker_process(master) as address, broker_process(slave):
            async with asyncio.timeout(PATIENCE_S):
                while ResponseCode.SUCCESS not in codes:  # until the slave counts
                    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"x")
                    codes.append((await client.invoke(address, request, 90_000)).code)
                    await asyncio.sleep(0.01)
    finally:
        await client.close()
    assert set(codes) <= {ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE}
    logs = [(tmp_path / name / "commitlog" / f"{0:020d}").read_bytes() for name in "ms"]
    assert logs[0] == logs[1]


async def send(client, address):
    """Send one message, trying until the broker leads; returns its queue offset."""
    header = SendHeader("pg", "T", "TBW102", 4, 0, 0, 1, 0, "UNIQ_KEY\x01K\x02").to_ext(310)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"x")
            response = await client.invoke(address, command, 60_000)
            if response.code == 0:
                return SendResponseHeader.parse(response.ext).queue_offset
            assert response.remark.startswith("[NOT_LEADER]")
            await asyncio.sleep(0.02)


async def test_failed_lookup_after_its_dial_is_no_error(caplog):
    """Found by a container that was taken off its network: its peers gave up dialling first."""
    caplog.set_level("INFO")
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(partial(_on_exception, cast(Broker, None)))
    lookup = socket.gaierror(-2, "unknown")
    loop.call_exception_handler({"message": "never retrieved", "exception": lookup})
    assert [record.levelname for record in caplog.records] == ["INFO"]
    caplog.clear()
    loop.call_exception_handler({"message": "never retrieved", "exception": OSError("another")})
    loop.set_exception_handler(None)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def lines_of(log, *events):
    return [line for line in log.splitlines() if any(f" {event} " in line for event in events)]


async def test_default_broker_serves_only_loopback_and_keeps_files_private(tmp_path, port):
    """And says so, as it says which secrets were open to others before."""
    conf, store = tmp_path / "broker.conf", tmp_path / "deep" / "store"
    secret = 'innerClientAuthenticationCredentials={"accessKey":"a","secretKey":"12345678"}\n'
    conf.write_text(
        f"enableDLegerCommitLog=true\nlistenPort=0\ndLegerPeers=n0-127.0.0.1:{port}\n"
        f"storePathRootDir={store}\nmappedFileSizeCommitLog=8388608\n" + secret
    )
    conf.chmod(0o644)
    command = [sys.executable, "-m", "tests.broker.node", "-c", str(conf)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs on this loop)
            command, stdout=subprocess.PIPE, stderr=log, text=True, umask=0
        )
    try:
        address = present(process.stdout).readline().split()[-1]
        listening = int(address.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", listening))
        client = RemotingClient()
        await send(client, address)
        await client.close()
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=PATIENCE_S)
        present(process.stdout).close()
    assert code == 0
    said = lines_of((tmp_path / "log").read_text(), "serves_this_machine_only", "open_to_others")
    assert [f"path={conf}" in line for line in said] == [False, True]
    modes = {path: path.stat().st_mode & 0o777 for path in (store.parent, *store.parent.rglob("*"))}
    assert len(modes) > 10
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o027} == {}
