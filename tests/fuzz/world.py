"""The servers that are attacked: processes, started as in production, all on loopback.

| node | what it is |
|---|---|
| names | name server |
| n0 n1 n2 | Raft group `raft3`, TLS permissive |
| solo | Raft group of one `raft1`, without TLS |
| lone | Raft group of one `raft0`; on its Raft port attackers have its secret; nobody uses it |
| master slave | classic pair `classic` |
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raftmq.chaos.cluster.ports import HeldPorts
from tests.certificates import Authority

ROOT = Path(__file__).parent.parent.parent
HOST = "127.0.0.1"
GROUPS = {"raft3": ("n0", "n1", "n2"), "raft1": ("solo",), "raft0": ("lone",),
          "classic": ("master", "slave")}  # fmt: skip
GROUP_OF = {node: group for group, nodes in GROUPS.items() for node in nodes}
MIB = 1 << 20
KILL_WAIT_S = 60.0
Route = Callable[[str, int], int]  # (what is spoken, port) → the port to be dialled for it


@dataclass(slots=True)
class Node:
    """One process. `ports` by what is spoken there: remoting, http, raft, ha."""

    name: str
    ports: dict[str, int]
    program: str
    arguments: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    planted: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def rss(self) -> int:
        """Bytes of memory, now."""
        return self._status("VmRSS")

    def peak(self) -> int:
        """The most since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")

    def loop_ns(self) -> int:
        """CPU time that the loop's thread has had."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text(encoding="ascii")
        return int(text.split()[0])

    def _status(self, key: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        return 0  # it has ended: its memory is given back


class World:
    """`with World(directory, names) as world:` runs the nodes called so."""

    def __init__(
        self,
        directory: Path,
        names: Sequence[str],
        *,
        product: Path = ROOT,
        planted: str = "",
        route: Route = lambda _, port: port,
    ) -> None:
        """`product`: where the servers' code is; `planted`: the fault put back into it; `route`:
        what nodes dial in place of each other's ports."""
        self.directory = directory
        self.nodes: dict[str, Node] = {}
        self._product = product
        self._planted = planted
        self._route = route
        self._held = HeldPorts(HOST)
        self._ca = Authority(directory)
        self._cert = self._ca.issue("server")
        self.secret = secrets.token_hex(16).encode()  # of all groups
        self._secret_file = _private(directory / "secret", self.secret)
        self._key_file = _private(directory / "key", secrets.token_hex(16).encode())
        everybody = [n for n in ("names", *GROUP_OF) if n in names]
        numbers = iter(self._held.choose(3 * len(everybody), random.Random()))
        self._ports = {
            name: {"remoting": next(numbers), "http": next(numbers), "raft": next(numbers)}
            for name in everybody
        }
        for name in everybody:
            self.nodes[name] = self._name_server() if name == "names" else self._broker(name)

    def __enter__(self) -> World:
        for name in self.nodes:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.process.kill()
        for node in self.nodes.values():
            if node.process is not None:
                node.process.wait(timeout=KILL_WAIT_S)
        self._held.close()

    @property
    def namesrv(self) -> str:
        return f"{HOST}:{self._route('names', self._ports['names']['remoting'])}"

    @property
    def ca(self) -> str:
        """Path of the certificate that servers' certificates are checked with."""
        return self._ca.path

    def address(self, name: str) -> str:
        """Where clients reach it."""
        return f"{HOST}:{self._ports[name]['remoting']}"

    def groups(self) -> list[str]:
        """Groups whose every node is here."""
        return [group for group, nodes in GROUPS.items() if set(nodes) <= self.nodes.keys()]

    def start(self, name: str) -> None:
        node = self.nodes[name]
        planted = ["tests.fuzz.planted", self._planted, "--"] if self._planted else []
        environment = {**os.environ, "PYTHONPATH": str(self._product), "PYTHONUNBUFFERED": "1",
                       "PYTHONFAULTHANDLER": "1"}  # fmt: skip
        with node.log.open("ab") as output:
            node.process = subprocess.Popen(
                [sys.executable, "-P", "-m", *planted, node.program, *node.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.directory,
            )

    def _name_server(self) -> Node:
        ports = self._ports["names"]
        settings = {
            "bindAddress": HOST,
            "listenPort": ports["remoting"],
            "httpPort": ports["http"],
            "registrationKeyFile": self._key_file,
            **self._tls(),
        }
        arguments = [f"--set={key}={value}" for key, value in settings.items()]
        return Node("names", ports, "raftmq.namesrv.cli", arguments, self.directory / "names.log")

    def _broker(self, name: str) -> Node:
        ports, group = self._ports[name], GROUP_OF[name]
        ports["ha"] = ports["remoting"] + 1
        settings = {
            "brokerClusterName": "FuzzCluster",
            "brokerName": group,
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": ports["remoting"],
            "httpPort": ports["http"],
            "advertisedPort": self._route("broker", ports["remoting"]),
            "namesrvAddr": self.namesrv if "names" in self._ports else "",
            "registerNameServerPeriod": 1_000,
            "storePathRootDir": self.directory / name,
            "mappedFileSizeCommitLog": 64 * MIB,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 100_000,
            "waitingBytesMax": 16 * MIB,
            "registrationKeyFile": self._key_file,
            "peerSecretFile": self._secret_file,
            "diskMaxUsedSpaceRatio": 95,
            "diskSpaceWarningLevelRatio": 100,
            "messageDelayLevel": "1s 5s",
            "enablePropertyFilter": "true",
            "transactionTimeOut": 1_000,
            "transactionCheckInterval": 1_000,
        }
        settings |= self._classic(name) if group == "classic" else self._raft(name)
        conf = self.directory / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return Node(
            name, ports, "tests.fuzz.broker", ["-c", str(conf)], self.directory / f"{name}.log"
        )

    def _raft(self, name: str) -> dict[str, object]:
        def port(peer: str) -> int:
            own = self._ports[peer]["raft"]
            return own if peer == name else self._route("raft", own)

        members = GROUPS[GROUP_OF[name]]
        settings: dict[str, object] = {
            "enableDLegerCommitLog": "true",
            "dLegerPeers": ";".join(f"{peer}-{HOST}:{port(peer)}" for peer in members),
            "dLegerSelfId": name,
            # A machine that is busy with other things for seconds shall change no leader.
            "electionTimeoutMinMs": 2_000,
            "electionTimeoutMaxMs": 4_000,
        }
        if len(members) == 1:
            return settings | {"electionTimeoutMinMs": 200, "electionTimeoutMaxMs": 400}
        return settings | self._tls()

    def _classic(self, name: str) -> dict[str, object]:
        ha = self._ports["master"]["remoting"] + 1
        settings: dict[str, object] = {"haListenPort": self._ports[name]["remoting"] + 1}
        if name == "master":
            return settings | {
                "brokerId": 0,
                "brokerRole": "SYNC_MASTER",
                "slaveReadEnable": "true",
            }
        master = f"{HOST}:{self._route('broker', self._ports['master']['remoting'])}"
        return settings | {
            "brokerId": 1,
            "brokerRole": "SLAVE",
            "haMasterAddress": f"{HOST}:{self._route('ha', ha)}",
            "masterAddress": master,
            "slaveSyncMetadataIntervalMs": 2_000,
        }

    def _tls(self) -> dict[str, object]:
        cert, key = self._cert
        return {
            "tls.server.mode": "permissive",
            "tls.server.certPath": cert,
            "tls.server.keyPath": key,
            "tls.server.keyPassword": "",
        }


def _private(path: Path, content: bytes) -> Path:
    """A file that nobody else may read."""
    path.touch(0o600)
    path.write_bytes(content)
    return path
