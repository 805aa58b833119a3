"""A cluster from the rendered chart: its commands, files and environments, on this machine's
loopback address in the place of pods. Its probes, its hook before a stop and its test pod's script
do what the chart wants of them."""

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.certificates import Authority
from tests.helm.objects import Pod, Rendered
from tests.helm.rendering import NAMESPACE
from tests.ports import bound
from tests.waiting import until

PODS = {"StatefulSet": {"mq-raftmq-namesrv": 2, "mq-raftmq-broker-0": 3}}
PODS["Deployment"] = {"mq-raftmq-proxy": 1}
HOST = re.compile(rf"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.{NAMESPACE}\.svc\.cluster\.local")
BESIDE = os.path.dirname(sys.executable)  # where the commands are
LISTENED = {  # the variable that moves a port, which a pod has to itself, and its usual place
    "client": ("RAFTMQ_LISTEN_PORT", 10911),
    "remoting": ("RAFTMQ_LISTEN_PORT", 9876),
    "grpc": ("RAFTMQ_GRPC_SERVER_PORT", 8081),
    "http": ("RAFTMQ_HTTP_PORT", 0),
    "raft": ("", 40911),
}


@dataclass(slots=True)
class Running:
    """A pod's container as a process of this machine."""

    pod: Pod
    root: Path  # in the place of /
    ports: dict[str, int]
    environment: dict[str, str]
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [self.placed(word) for word in self.pod.container["command"]]
        with (self.root / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                os.path.join(BESIDE, command[0]), *command[1:], env=self.environment,
                stdout=log, stderr=log,
            )  # fmt: skip

    def placed(self, word: str) -> str:
        return f"{self.root}{word}" if word.startswith("/") else word

    async def end(self, how: signal.Signals = signal.SIGKILL) -> int | None:
        if self.process is None:
            return None
        if self.process.returncode is None:
            self.process.send_signal(how)
        return await asyncio.wait_for(self.process.wait(), 60)

    async def probe(self, name: str) -> int:
        """The status that a kubelet's probe sees; 0 if nobody answers."""
        get = self.pod.container[f"{name}Probe"]["httpGet"]
        url = f"{get['scheme'].lower()}://127.0.0.1:{self.ports[get['port']]}{get['path']}"
        try:
            async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def node(self) -> dict[str, Any]:
        token = self.pod.secret("mq-raftmq-secrets")["metrics.token"]
        context = ssl.create_default_context(cafile=self.root / "etc/raftmq/tls/ca.crt")
        url = f"https://127.0.0.1:{self.ports['http']}/api/v1/node"
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession() as session:
            async with session.get(url, headers=headers, ssl=context) as answer:
                view: dict[str, Any] = await answer.json()
                return view

    def prestop(self, seconds: float) -> subprocess.CompletedProcess[str]:
        *_, script, _ = self.pod.container["lifecycle"]["preStop"]["exec"]["command"]
        more = {
            "PRESTOP_DIRECTORY": str(self.root / "etc/raftmq"),
            "PRESTOP_PORT": str(self.ports["http"]),
        }
        return subprocess.run(
            [sys.executable, self.placed(script), str(seconds)],
            env=self.environment | more, capture_output=True, text=True, timeout=120,
        )  # fmt: skip


class Cluster:
    """The pods of the case `proxies`, those of its second group left out."""

    def __init__(self, root: Path) -> None:
        rendered = Rendered.of("proxies")
        certificates = issued(root)
        self.pods: dict[str, Running] = {}
        addresses: dict[str, str] = {}
        holders: list[socket.socket] = []
        for kind, owners in PODS.items():
            for name, count in owners.items():
                for index in range(count):
                    pod = Pod(rendered, rendered.named(kind, name), index, certificates)
                    taken = {
                        port["name"]: bound()
                        for port in pod.container["ports"]
                        if port["name"] in LISTENED
                    }
                    holders += taken.values()
                    ports = {name: one.getsockname()[1] for name, one in taken.items()}
                    self.pods[pod.name] = Running(pod, root / pod.name, ports, {})
                    for at, port in ports.items():
                        usual = LISTENED[at][1] or http_port(pod)
                        addresses[f"{pod.name}:{usual}"] = f"127.0.0.1:{port}"
        for one in holders:
            one.close()
        for running in self.pods.values():
            place(running, addresses)

    def of(self, name: str) -> list[Running]:
        return [one for pod, one in self.pods.items() if name in pod]

    async def leader(self) -> Running | None:
        for one in self.of("broker"):
            if one.process and one.process.returncode is None:
                if (await one.node())["role"] == "leader":
                    return one
        return None


def http_port(pod: Pod) -> int:
    (port,) = [one["containerPort"] for one in pod.container["ports"] if one["name"] == "http"]
    assert isinstance(port, int)
    return port


def issued(root: Path) -> dict[str, dict[str, str]]:
    """The Secrets of certificates; these are for 127.0.0.1."""
    result = {}
    for name in ("tls", "raft-tls"):
        authority = Authority(root, name)
        cert, key = authority.issue(f"{name}-server")
        texts = [Path(path).read_text() for path in (cert, key, authority.path)]
        result[f"mq-raftmq-{name}"] = dict(
            zip(("tls.crt", "tls.key", "ca.crt"), texts, strict=True)
        )
    return result


def place(running: Running, addresses: dict[str, str]) -> None:
    """Write a pod's files, and set its environment, with directories and addresses of this
    machine."""
    root = running.root
    running.pod.write_files(root)
    (root / "var/lib/raftmq").mkdir(parents=True)
    for path in (root / "etc/raftmq/config").iterdir():
        text = path.read_text().replace("0.0.0.0", "127.0.0.1")
        path.write_text(re.sub(r"=(/(?:etc|var)/)", rf"={root}\1", text))

    def local(value: str) -> str:
        value = re.sub(
            rf"({HOST.pattern}):(\d+)",
            lambda match: addresses[f"{match[1].split('.')[0]}:{match[2]}"],
            re.sub(r"\b(n\d)-", r"\1=", value),
        )
        value = HOST.sub("127.0.0.1", value)
        return f"{root}{value}" if value.startswith("/etc/") else value

    environment = {key: local(value) for key, value in running.pod.environment().items()}
    for name, (variable, _) in LISTENED.items():
        if name in running.ports and variable:
            environment[variable] = str(running.ports[name])
    inherited = {key: os.environ[key] for key in os.environ if key.startswith("RAFTMQ_DISK")}
    search = f"{BESIDE}{os.pathsep}{os.environ['PATH']}"
    running.environment = {**inherited, "PATH": search, "HOME": str(root), **environment}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    result = Cluster(tmp_path)
    try:
        for one in result.pods.values():
            await one.start()
        yield result
    finally:
        for one in result.pods.values():
            await one.end()
        shutil.rmtree(tmp_path, ignore_errors=True)


async def ready(pods: list[Running]) -> bool:
    return all([await one.probe("readiness") == 200 for one in pods])


async def test_chart_makes_a_cluster_that_serves(cluster: Cluster) -> None:
    everybody = list(cluster.pods.values())
    await until(lambda: ready(everybody), pause_s=0.2)
    assert [await one.probe("liveness") for one in everybody] == [200] * 6
    assert [await one.probe("startup") for one in everybody] == [200] * 6
    for one in cluster.of("broker"):
        view = await one.node()
        assert view["peersProveThemselves"] and view["membership"] == "voter"

    await the_test_pod_sends_and_reads(cluster)

    # The hook moves leadership away; a follower may stop at once.
    leader = await cluster.leader()
    assert leader is not None
    moved = await asyncio.to_thread(leader.prestop, 60)
    assert (moved.returncode, moved.stdout + moved.stderr) == (0, "")
    assert (await leader.node())["role"] == "follower"
    assert (await asyncio.to_thread(leader.prestop, 60)).returncode == 0
    assert await leader.end(signal.SIGTERM) == 0

    # One is away: the hook of another waits, and says for whom.
    successor = await until(cluster.leader)
    waited = await asyncio.to_thread(successor.prestop, 0.1)
    assert waited.returncode == 1
    assert re.match(r"stops although n\d is (not connected|.* frames behind)", waited.stdout)

    # A pod that starts again is ready again, and then the other may go.
    await leader.start()
    await until(lambda: ready(everybody), pause_s=0.2)
    assert (await asyncio.to_thread(successor.prestop, 60)).returncode == 0


async def the_test_pod_sends_and_reads(cluster: Cluster) -> None:
    rendered = Rendered.of("proxies")
    pod = Pod(rendered, rendered.named("Pod", "mq-raftmq-test"))
    broker = cluster.pods["mq-raftmq-broker-0-0"]
    script = broker.root / "message.sh"
    script.write_text(pod.files()["/etc/raftmq/config/message.sh"])
    reported = pod.environment()
    assert reported["BROKER_GROUPS"] == "broker-0 broker-1"
    tools = {key: broker.environment[key] for key in reported if key in broker.environment}
    assert tools.keys() >= {"NAMESRV_ADDR", "RAFTMQ_TLS_CONFIG_FILE", "RAFTMQ_SECRET_KEY"}
    environment = {
        **reported,
        **tools,
        "BROKER_GROUPS": "broker-0",
        "PATH": broker.environment["PATH"],
    }
    result = await asyncio.to_thread(
        subprocess.run, ["sh", str(script)], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("broker-0: sent and read\n")
