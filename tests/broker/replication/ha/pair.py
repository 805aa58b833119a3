"""A classic group on this loop: one master and its slaves, over loopback sockets."""

from dataclasses import replace
from functools import partial

from raftmq.broker.broker import open_broker
from raftmq.broker.config import build_config
from raftmq.broker.replication.ha.metadata import MasterClient
from raftmq.ops.options import Setting
from tests.broker.cluster import Group
from tests.ports import bound
from tests.waiting import until

SEGMENT = 256 << 10
TIMEOUT_MS = 600_000


class Classic(Group):
    """`master`, `slave1`, `slave2`, … The slaves know the master's HA port; `introduce` tells them
    where it takes requests, as a name server would."""

    durations = replace(
        Group.durations,
        sync_flush=TIMEOUT_MS,
        ha_silence=2 * TIMEOUT_MS,
        ha_heartbeat=50,
        config_files=100,
    )

    def __init__(self, root, slaves=1, role="SYNC_MASTER", names=None, **settings):
        super().__init__(root, 0, **settings)
        self.role = role
        self.names = ["master", *(f"slave{n}" for n in range(1, slaves + 1))]
        self.sockets = {"master": bound()}
        self.ports = {"master": self.sockets["master"].getsockname()[1]}
        self.own = names or {}

    def config(self, name):
        number = self.names.index(name)
        values = {
            "brokerName": "group-a",
            "brokerClusterName": "TestCluster",
            "listenPort": "0",
            "httpPort": "0",
            "brokerRole": self.role if number == 0 else "SLAVE",
            "brokerId": str(number),
            "flushDiskType": "SYNC_FLUSH",
            "haMasterAddress": "" if number == 0 else f"127.0.0.1:{self.ports['master']}",
            "mappedFileSizeCommitLog": str(SEGMENT),
            "maxMessageSize": str(64 << 10),
            "mappedFileSizeConsumeQueue": "20000",
            "diskSpaceWarningLevelRatio": "100",
            # Who waits for a slave or a disk is answered by them, however slow the machine is;
            # tests of these time-outs skip the time.
            "slaveTimeout": str(TIMEOUT_MS),
            "slaveSyncMetadataIntervalMs": "100",
        }
        values |= {key: str(value) for key, value in self.settings.items()}
        values |= {key: str(value) for key, value in self.own.get(name, {}).items()}
        return build_config([Setting(key, value, "test") for key, value in values.items()])

    async def start(self, name):
        listener = None
        if name == "master":
            listener = self.listener(name)
        disk = self.disk(str(self.root / name))
        broker = await open_broker(
            self.config(name),
            disk,
            replication_socket=listener,
            clock_ms=self.clock.whole_ms,
            wall_ms=partial(self.wall_ms, name),
            durations=self.durations,
        )
        self.brokers[name] = broker
        if name != "master":
            self.introduce()  # before its first request
        await broker.start()
        self.introduce()
        return broker

    def introduce(self):
        master = self.brokers.get("master")
        if master is not None:
            for name, broker in self.brokers.items():
                if name != "master":
                    broker.roles.hint_master(master.address, master.log.classic.master.address)

    @property
    def master(self):
        return self.brokers["master"]

    @property
    def slave(self):
        return self.brokers["slave1"]

    async def caught_up(self, *names):
        """The slaves have all of the log and report it."""
        for name in names or self.names[1:]:
            slave = self.brokers[name]
            await until(
                lambda s=slave: s.log.classic.reported() == self.master.store.commitlog.max_offset
            )

    async def followed(self):
        """Every slave is connected and served."""
        await self.master_serves(len(self.names) - 1)

    async def master_serves(self, count):
        links = self.master.log.classic.master.links
        await until(lambda: sum(link.serving for link in links) == count)


def log_bytes(broker):
    """The whole log, files one behind the other, up to its end."""
    log, parts = broker.store.commitlog, []
    position = log.min_offset
    while position < log.max_offset:
        parts.append(log.read(position, 1 << 20))
        position += len(parts[-1])
    return b"".join(parts)


def answer_as(monkeypatch, answer):
    """Let `answer(ask, code)` give what slaves get for a question to their master, where
    `await ask(code)` is the master's own answer."""
    honest = MasterClient.ask

    async def asked(self, code, ext=None):
        return await answer(lambda same: honest(self, same, ext), code)

    monkeypatch.setattr(MasterClient, "ask", asked)
