"""The programs of a world, as they are started on real machines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from raftmq.broker import process as broker_process
from raftmq.broker.config import BrokerConfig, build_config
from raftmq.broker.durations import Durations
from raftmq.dledger.node.rollback_detection import NOTES_FILE
from raftmq.dledger.transport.peer_info_message import Held
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.ops.options import Setting
from raftmq.store.disk import OsDisk
from tests.notes import notes_in
from tests.simulator.cluster.machine import DiskOfProcess
from tests.simulator.cluster.network import HOST
from tests.simulator.cluster.process import Process
from tests.simulator.disk import SimDisk

NAMESRV_PORT = 42_001
NAMESRV = f"{HOST}:{NAMESRV_PORT}"
SECOND_NAMESRV_PORT = 42_003  # of worlds with several broker groups
SECOND_NAMESRV = f"{HOST}:{SECOND_NAMESRV_PORT}"
NO_NAMESRV_PORT = 42_002
NO_NAMESRV = f"{HOST}:{NO_NAMESRV_PORT}"
GROUP = "group-a"
DURATIONS = Durations(snapshot=2_000, retention=1_000)
STORE = "store"
STRANGE_STORE = "strange"
RAFT_PORTS = range(41_000, 42_000)


def notes_of(disk: SimDisk) -> dict[str, Held]:
    """Return the notes that a replica has durably on its disk."""
    return notes_in(disk.durable(f"{STORE}/raft/{NOTES_FILE}"))


def is_empty(disk: SimDisk) -> bool:
    """Return whether a broker has no store on this disk."""
    return not any(path.startswith(f"{STORE}/") for path in disk.image(True))


def client_port(number: int) -> int:
    """Return a broker's listenPort. Brokers also listen on the port two below."""
    return 43_000 + 10 * number


def raft_port(number: int) -> int:
    return RAFT_PORTS[number]


def broker_config(settings: Mapping[str, str]) -> BrokerConfig:
    """Return a configuration as broker.conf gives it. Raises ConfigError."""
    return build_config([Setting(key, value, "the world") for key, value in settings.items()])


def peers_of(numbers: Mapping[str, int]) -> str:
    """Return dLegerPeers of these nodes, by their numbers."""
    return ";".join(f"{name}-{HOST}:{raft_port(i)}" for name, i in numbers.items())


async def broker(process: Process, settings: Mapping[str, str]) -> int:
    """Run `mqbroker`; return its exit status."""
    machine = process.machine
    config = broker_config(settings)
    disk = DiskOfProcess(process, config.store_path_root_dir)
    seen = broker_process.Machine(cast(OsDisk, disk), machine.wall_ms, durations=DURATIONS)
    lock: Any = None  # the broker takes it
    return await broker_process.run(config, seen, lock, {})


async def name_server(_: Process, port: int = NAMESRV_PORT) -> None:
    """Run `mqnamesrv` until it is killed."""
    server = NameServer(NameServerConfig(bind=HOST, port=port, http_enable=False))
    await server.start()
    await asyncio.get_running_loop().create_future()
