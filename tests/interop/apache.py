"""Apache RocketMQ's own broker and name server, unmodified, each in a JVM of its own, from 5.3.3
back to 3.2.6, the only one of 3.x in the registry; 4.9.7 is the last of 4.9 there.

Their jars come as the client's do (tests.interop.jvm). Times are short, files small, and what a
slave of ours would not see anyway (timer wheel, tiered store, the VIP port's clients) is off.
"""

import glob
import random
import signal
from pathlib import Path

from py4j.java_gateway import JavaObject

from raftmq.chaos.cluster.ports import HeldPorts, choose_ports
from tests.interop.jvm import Jvm, fetch

IVY_FILE = Path(__file__).with_name("ivy-broker.xml")
JARS = "rocketmq-broker-5.3.3"
TOOLS_IVY_FILE = Path(__file__).with_name("ivy-tools.xml")
TOOLS_JARS = "rocketmq-tools-5.3.3"
OLDER_IVY_FILE = Path(__file__).with_name("ivy-servers.xml")
OLDER = {"3.2": "3.2.6", "4.3": "4.3.2", "4.9": "4.9.7", "5.1": "5.1.4"}
NAMESRV_IVY_FILE = Path(__file__).with_name("ivy-namesrv.xml")
NAMESRV_JARS = "rocketmq-namesrv-5.3.3"
VERSIONS = (*OLDER, "5.3")
ORGANISATIONS = {"3": "com.alibaba.rocketmq"} | dict.fromkeys("45", "org.apache.rocketmq")
STOP_S = 240  # a bound against hanging
PATIENCE_MS = "120000"  # a bound against hanging
SETTINGS = {
    "brokerClusterName": "InteropCluster",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "60000",
    "maxMessageSize": "65536",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "timerWheelEnable": "false",
    "haSendHeartbeatInterval": "500",
    "registerNameServerPeriod": "10000",
    "diskMaxUsedSpaceRatio": "95",
    "slaveReadEnable": "true",
    "enableScheduleMessageStats": "false",
    # What waited for 200 ms in its queue is refused, else; so is all while one append takes 1 s.
    "waitTimeMillsInSendQueue": PATIENCE_MS,
    "waitTimeMillsInPullQueue": PATIENCE_MS,
    "waitTimeMillsInHeartbeatQueue": PATIENCE_MS,
    "waitTimeMillsInTransactionQueue": PATIENCE_MS,
    "waitTimeMillsInAdminBrokerQueue": PATIENCE_MS,
    "osPageCacheBusyTimeOutMills": PATIENCE_MS,
    "syncFlushTimeout": PATIENCE_MS,
    "slaveTimeout": PATIENCE_MS,  # a slave that follows is waited for
}


LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/logs/rocketmqlogs/broker.log</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


def jars(version: str) -> list[str]:
    """A broker's of that version, and its name server's."""
    if older := OLDER.get(version):
        wanted = {"organisation": ORGANISATIONS[version[0]], "version": older}
        return fetch(OLDER_IVY_FILE, f"rocketmq-broker-{older}", wanted)
    return fetch(IVY_FILE, JARS) + fetch(NAMESRV_IVY_FILE, NAMESRV_JARS)


def ports():
    """A port for the broker whose neighbours (VIP listener, HA listener) are free, too."""
    return choose_ports(1, "127.0.0.1", random.Random())[0]


class ApacheBroker:
    """One broker below `directory`; `start` returns when it takes requests."""

    def __init__(
        self,
        directory: Path,
        namesrv: str,
        root: str = "",
        *,
        version: str = "5.3",
        **settings: str,
    ) -> None:
        """`root`: a store directory that is there already; else one is made."""
        self.version = version
        self.directory = directory
        self.store = Path(root) if root else directory / "store"
        self.held = HeldPorts("127.0.0.1")  # until it is stopped: a JVM takes long to listen
        self.port = self.held.choose(1, random.Random())[0]
        self.address = f"127.0.0.1:{self.port}"
        self.jvm: Jvm | None = None
        self.more_jars: list[str] = []  # on its class path, besides its own
        self.more_properties: dict[str, str] = {}  # of its JVM
        self.heap = "256m"
        self.controller: JavaObject | None = None
        self.settings = {
            **SETTINGS,
            "namesrvAddr": namesrv,
            "listenPort": str(self.port),
            "haListenPort": str(self.port + 1),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            **settings,
        }

    def start(self) -> None:
        """Raises when it does not start; its log is in the exception."""
        assert self.jvm is None
        self.held.hold(range(self.port - 2, self.port + 2))
        home = self.directory / "home" / "conf"
        home.mkdir(parents=True, exist_ok=True)
        (home / "logback_broker.xml").write_text(LOGBACK)  # up to 4.9 none starts without one
        conf = self.directory / "broker.conf"
        older = {key.replace("mapped", "maped"): value for key, value in self.settings.items()}
        settings = self.settings | older  # in the spelling of 3.x and 4.3, too
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        properties = {
            "rocketmq.home.dir": str(self.directory / "home"),
            "user.home": str(self.directory),  # its logs go there
            **self.more_properties,
        }
        self.jvm = Jvm(properties, jars(self.version) + self.more_jars, self.heap)
        java = self.jvm.gateway.jvm
        arguments = self.jvm.gateway.new_array(java.String, 2)
        arguments[0], arguments[1] = "-c", str(conf)
        alibaba = java.com.alibaba.rocketmq
        rocketmq = alibaba if self.version == "3.2" else self.jvm.rocketmq
        startup = rocketmq.broker.BrokerStartup
        try:
            self.controller = startup.createBrokerController(arguments)
            startup.start(self.controller)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.log_text()}") from error

    def sync_metadata(self) -> None:
        """Do what a slave does every 60 s."""
        assert self.controller is not None
        self.controller.getSlaveSynchronize().syncAll()

    def save_offsets(self) -> None:
        """Do what a master does every 5 s."""
        assert self.controller is not None
        self.controller.getConsumerOffsetManager().persist()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """SIGTERM stops it in order, SIGKILL does not ask."""
        self.held.close()
        if self.jvm is not None:
            jvm, self.jvm, self.controller = self.jvm, None, None
            jvm.process.send_signal(number)
            jvm.process.wait(timeout=STOP_S)
            jvm.close()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def log_text(self) -> str:
        """The ends of its logs."""
        logs = glob.glob(str(self.directory / "logs/rocketmqlogs/**/*.log"), recursive=True)
        texts = {path: Path(path).read_text(errors="replace") for path in sorted(logs)}
        lines = [
            f"{Path(path).name}: {line}"
            for path, text in texts.items()
            for line in text.splitlines()
            if " ERROR " in line or " WARN " in line or "Exception" in line
        ]
        return "\n".join(lines[-60:])

    def log_bytes(self, begin: int = 0) -> bytes:
        """The CommitLog's files from that offset on, one behind the other."""
        paths = sorted((self.store / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in paths if int(path.name) >= begin)

    def units(self, topic: str, queue: int) -> bytes:
        """The units of a queue whose first file is its only one."""
        (path,) = (self.store / "consumequeue" / topic / str(queue)).iterdir()
        data = path.read_bytes()
        count = next(n for n in range(0, len(data), 20) if not any(data[n : n + 20]))
        return data[:count]


class ApacheNameServer:
    """One name server below `directory`; it listens when it is made."""

    def __init__(self, directory: Path, version: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        home = str(directory)
        self.jvm = Jvm({"rocketmq.home.dir": home, "user.home": home}, jars(version))
        rocketmq = self.jvm.rocketmq
        network = rocketmq.remoting.netty.NettyServerConfig()
        network.setListenPort(0)
        config = rocketmq.common.namesrv.NamesrvConfig()
        self.controller = rocketmq.namesrv.NamesrvController(config, network)
        assert self.controller.initialize()
        self.controller.start()
        self.address = f"127.0.0.1:{self.controller.getRemotingServer().localListenPort()}"

    def kill(self) -> None:
        self.jvm.close()
