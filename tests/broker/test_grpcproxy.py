"""`grpcPort`: the proxy that a broker starts, watches and ends."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from raftmq import Admin, ClientError
from raftmq.broker.config import build_config
from raftmq.broker.grpcproxy import environment_of, proxy_process
from raftmq.broker.process import serve
from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.ops.options import ConfigError
from raftmq.ops.settings import parse_properties
from raftmq.packages import PROXY_PACKAGES
from raftmq.proxy.config import OPTIONS, load
from raftmq.proxy.protocol import messaging_pb2 as pb
from tests.proxy.world import Caller
from tests.waiting import until


def config(text):
    return build_config(parse_properties(text, "broker.conf"))


async def test_grpc_proxy_serves_restarts_and_ends_with_its_broker(tmp_path):
    held = HeldPorts("127.0.0.1")
    listen, raft, port = held.choose(3, random.Random())
    names = NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False))
    await names.start()
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"listenPort={listen}\ngrpcPort={port}\nnamesrvAddr={names.address}\nhttpEnable=false\n"
        f"enableDLegerCommitLog=true\ndLegerPeers=n0-127.0.0.1:{raft}\ndLegerSelfId=n0\n"
        f"storePathRootDir={tmp_path / 'store'}\nmappedFileSizeCommitLog=16MiB\n"
    )
    log = tmp_path / "log"
    with log.open("w") as written:
        broker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "raftmq.broker.cli", "-c", str(conf)),
            stdout=subprocess.DEVNULL,
            stderr=written,
        )

    def started() -> list[int]:
        lines = [line for line in log.read_text().splitlines() if "grpc_proxy_started" in line]
        return [int(line.rpartition("pid=")[2].split()[0]) for line in lines]

    answers = []

    async def sent() -> bool:
        # Otherwise a new channel waits as long as the one before, which found nobody there.
        alone = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(f"ipv4:127.0.0.1:{port}", alone)
        try:
            async with Caller(SimpleNamespace(port=port), channel=channel) as caller:
                answers.append(await caller.send("T"))
        except grpc.RpcError as error:
            answers.append(error)
            return False
        return bool(answers[-1].status.code == pb.Code.OK)

    async def made() -> bool:
        try:
            async with Admin(names.address) as admin:
                await admin.topic.create("T", queues=1)
        except ClientError:
            return False  # nobody leads yet
        return True

    try:
        await until(made)
        await until(sent, lambda: answers[-1:])
        (first,) = started()
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(started()) == 2)
        await until(sent, lambda: answers[-1:])
        assert "grpc_proxy_ended" in log.read_text()
        broker.kill()  # nobody tells the proxy: it sees its standard input end
        await until(lambda: not alive(started()[1]))
    finally:
        if broker.returncode is None:
            broker.kill()
        await broker.wait()
        await names.stop()
        held.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended since the opening
        return False


async def test_stopped_broker_ends_its_grpc_proxy(tmp_path):
    held = HeldPorts("127.0.0.1")
    (port,) = held.choose(1, random.Random())
    requested = config(f"grpcPort={port}\nnamesrvAddr=127.0.0.1:1\n")

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    async with proxy_process(requested, os.environ):
        await until(listens)
    assert not await listens()
    held.close()


def test_grpc_proxy_gets_only_the_brokers_settings() -> None:
    text = "grpcPort=8081\nnamesrvAddr=a:1;b:2\nmaxMessageSize=2MiB\naclEnable=true\n"
    text += 'innerClientAuthenticationCredentials={"accessKey":"k","secretKey":"s3cret"}\n'
    own = {"PATH": "/bin", "RAFTMQ_HTTP_PORT": "1", "RAFTMQ_STORE_PATH_ROOT_DIR": "/x"}
    environment = environment_of(config(text), own)
    proxy = load(None, [], environment).config
    assert (proxy.port, proxy.namesrv, proxy.bind) == (8081, "a:1;b:2", "0.0.0.0")
    assert (proxy.message_size_max, proxy.acl_enable) == (2 << 20, True)
    assert proxy.inner_credentials is not None
    assert proxy.inner_credentials.secret_key == "s3cret"
    assert not proxy.http_enable
    assert environment["PATH"] == "/bin"
    variables = {one.variable for one in OPTIONS.values()}
    assert {name for name in environment if name.startswith("RAFTMQ_")} <= variables | {
        "RAFTMQ_CLIENTS_MAX"
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("grpcPort=8081\n", "needs namesrvAddr"),
        ("grpcPort=8081\nnamesrvAddr=a:1\naclEnable=true\n", "innerClientAuthentication"),
    ],
)
def test_invalid_grpc_proxy_settings_are_rejected(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(text)


@pytest.mark.parametrize("missing", PROXY_PACKAGES)
def test_missing_grpc_extra_is_reported_before_the_store_is_opened(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: str,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    store = tmp_path / "store"
    settings = ("grpcPort=8081", f"storePathRootDir={store}")
    assert serve(None, "127.0.0.1:1", settings, None, None) == 2
    assert "pip install 'raftmq[proxy]'" in capsys.readouterr().err
    assert not store.exists()
