"""The official Java client, unmodified, driven from Python: one JVM behind a py4j gateway.

The jars come from the Maven registry through Ivy, which PySpark ships; they are fetched once and
kept beside the virtual environment. Nothing is compiled, so a JRE is enough.
"""

import fcntl
import glob
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyspark
from py4j.java_gateway import (
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
    JavaObject,
    launch_gateway,
)
from py4j.protocol import Py4JJavaError

from tests.waiting import retrying

PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"
IVY_FILE = Path(__file__).with_name("ivy.xml")
JAR_DIRECTORY = Path(sys.prefix) / "interop-jars"
JARS = "rocketmq-client-5.3.3"
FETCH_TIMEOUT_S = 600
# A short life: what the second compiler of the JVM, and collectors of its own threads, would gain
# it costs first.
SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# A bound against hanging. Java's own patience is 3 s, the first look-up, the connection and the
# loading of classes included: too little for a JVM that has just started on a busy machine.
PATIENCE_MS = 120_000
# Up to 4.9 they look into what Java 17 keeps closed: their Netty, and the end of a mapped file.
OPENED = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED"
    for name in ("java.nio", "jdk.internal.ref", "sun.nio.ch")
]
DEFAULTS = {
    "com.rocketmq.remoting.client.connect.timeout": str(PATIENCE_MS),
    "rocketmq.client.rebalance.waitInterval": "2000",  # ms; else what failed is tried after 20 s
}
NO_ROUTE = "No route info of this topic"
NO_MESSAGE = "query message by key finished, but no message"
PACE_S = 0.05


def java_command() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"


def fetch_jars() -> list[str]:
    """The client's jars."""
    return fetch(IVY_FILE, JARS)


def fetch(ivy_file: Path, name: str, wanted: Mapping[str, str] | None = None) -> list[str]:
    """The jars' paths, with `wanted` in place of the file's variables; fetched into the directory
    `name` on first use, complete or not at all, by one process of those that want them at a
    time."""
    directory = JAR_DIRECTORY / name
    directory.mkdir(parents=True, exist_ok=True)
    done = directory / ".complete"
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _retrieve(ivy_file, directory, wanted or {})
            done.touch()
    return sorted(glob.glob(str(directory / "*.jar")))


def _retrieve(ivy_file: Path, directory: Path, wanted: Mapping[str, str]) -> None:
    (ivy,) = glob.glob(str(PYSPARK_JARS / "ivy-*.jar"))
    result = subprocess.run(
        [
            java_command(),
            *SHORT_LIVED,
            *(f"-D{key}={value}" for key, value in wanted.items()),
            "-jar",
            ivy,
            "-cache",
            str(directory / "cache"),
            "-ivy",
            str(ivy_file),
            "-retrieve",
            str(directory / "[artifact]-[revision](-[classifier]).[ext]"),
        ],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


class Jvm:
    """A JVM with the client on its class path; `close` ends it."""

    def __init__(
        self,
        properties: dict[str, str] | None = None,
        jars: list[str] | None = None,
        heap: str = "256m",
    ) -> None:
        """`jars`: others than the client's."""
        (py4j_jar,) = glob.glob(str(PYSPARK_JARS / "py4j-*.jar"))
        given = {**DEFAULTS, **(properties or {})}
        options = [f"-D{name}={value}" for name, value in given.items()]
        self._log = open(os.devnull, "w")  # py4j hands it text
        port, self.process = launch_gateway(
            jarpath=py4j_jar,
            classpath=os.pathsep.join(jars or fetch_jars()),
            javaopts=[
                *SHORT_LIVED,
                *OPENED,
                f"-Xmx{heap}",
                "-Drocketmq.client.logLevel=ERROR",
                *options,
            ],
            java_path=java_command(),
            die_on_exit=True,
            redirect_stdout=self._log,
            redirect_stderr=self._log,
            return_proc=True,
        )
        self.gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(port=0),
        )
        # The gateway learns the call-back server's port only after it has chosen one.
        self.gateway.java_gateway_server.resetCallbackClient(
            self.gateway.java_gateway_server.getCallbackClient().getAddress(),
            self.gateway.get_callback_server().get_listening_port(),
        )
        self.rocketmq = self.gateway.jvm.org.apache.rocketmq

    def message(self, topic: str, tags: str, keys: str, body: bytes) -> JavaObject:
        return self.rocketmq.common.message.Message(topic, tags, keys, body)

    def producer(self, group: str, namesrv: str, retries: int = 2) -> JavaObject:
        """`retries`: Java makes them at once, without a pause; 2 unless it is told."""
        made = self.rocketmq.client.producer.DefaultMQProducer(group)
        producer = patient_producer(made, namesrv)
        producer.setInstanceName(f"{group}-{id(producer)}")
        producer.setRetryTimesWhenSendFailed(retries)
        producer.start()
        return producer

    def close(self) -> None:
        self.gateway.shutdown()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self._log.close()


def patient(client: JavaObject, namesrv: str) -> JavaObject:
    """A producer or consumer that asks there, and waits for answers as long as they take."""
    client.setNamesrvAddr(namesrv)
    client.setMqClientApiTimeout(PATIENCE_MS)
    return client


def sent(producer: JavaObject, *arguments: object) -> JavaObject:
    """Return what `producer.send` returns; again while it found no route, and so sent nothing:
    it waits 3 s, whatever it is set to, for another thread of its own that looks one up."""
    return _again(producer.send, NO_ROUTE, *arguments)


def viewed(producer: JavaObject, topic: str, message_id: str) -> JavaObject:
    """Return what `producer.viewMessage` returns; again while nothing is found: it waits 3 s, and
    takes a broker's silence for that."""
    return _again(producer.viewMessage, NO_MESSAGE, topic, message_id)


def _again(method: Callable[..., JavaObject], while_said: str, *arguments: object) -> JavaObject:
    def transient(error: BaseException) -> bool:
        return isinstance(error, Py4JJavaError) and while_said in error.java_exception.toString()

    return retrying(transient, patience_s=PATIENCE_MS / 1000, pause_s=PACE_S)(method, *arguments)


def patient_producer(producer: JavaObject, namesrv: str) -> JavaObject:
    patient(producer, namesrv).setSendMsgTimeout(PATIENCE_MS)
    return producer


def patient_consumer(consumer: JavaObject, namesrv: str) -> JavaObject:
    """Return a consumer that commits what its listener took when it shuts down, however long
    that takes."""
    patient(consumer, namesrv).setAwaitTerminationMillisWhenShutdown(PATIENCE_MS)
    return consumer
