"""Classic stores change hands: what our MessageStore wrote Apache's broker serves, and back.

Each message is asked for by offset, by key, by time and by id, and compared byte for byte. The
Java client, unmodified, sends to Apache's broker and looks up in between.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from raftmq.broker.broker import Broker, open_broker
from raftmq.broker.config import OPTIONS, build_config
from raftmq.broker.tables.topics import TopicConfig, TopicTable
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.ops.options import Setting
from raftmq.remoting.admin_headers import QueryMessageHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullHeader, QueueOffsetHeader
from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.disk import OsDisk
from raftmq.store.get_message import GetStatus
from raftmq.store.index.index_keys import keys_of
from raftmq.store.index.index_limits import IndexLimits
from raftmq.store.message_store import MessageStore
from raftmq.store.properties import decode_properties, encode_properties
from raftmq.store.record import MessageRecord, decode_record, offset_message_id, walk_records
from raftmq.store.store_lock import StoreInUse
from tests.interop.apache import SETTINGS, VERSIONS, ApacheBroker, jars
from tests.interop.jvm import SHORT_LIVED, Jvm, java_command, sent, viewed
from tests.store.make import PLAIN, append_classic, drained
from tests.waiting import wait_until

WAIT_S = 240  # a bound against hanging, not an expectation
POLL_S = 0.05
ASKS_MAX = 64
TOPICS = {"Orders": 4, "Events": 2, "Large": 1}
SMALL_QUEUES = {"mappedFileSizeConsumeQueue": "1000", "reviveQueueNum": "1"}  # 50 units a file
GROUP = {"consumerGroup": "reader", "topic": "Way", "queueId": "0"}
FOREVER_MS = (1 << 63) - 1
pytestmark = pytest.mark.timeout(900)
T = TypeVar("T")
Queues = dict[tuple[str, int], list[bytes]]


class Loop:
    """A loop in a thread, with a name server and a raw client on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client, self._server = self.run(self._start())
        self.namesrv = f"127.0.0.1:{self._server.port}"

    @staticmethod
    async def _start() -> tuple[RemotingClient, NameServer]:
        server = NameServer(NameServerConfig(bind="127.0.0.1", port=0))
        await server.start()
        return RemotingClient(), server

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def ask(self, address: str, code: int, ext: dict[str, str]) -> RemotingCommand:
        command = RemotingCommand.request(code, ext)
        return self.run(self.client.invoke(address, command, WAIT_S * 1000))

    def ask_all(self, address: str, code: int, exts: list[dict[str, str]]) -> list[RemotingCommand]:
        """Several at one time: no more than a broker takes from one connection."""
        positions = asyncio.Semaphore(ASKS_MAX)

        async def asked(ext: dict[str, str]) -> RemotingCommand:
            async with positions:
                command = RemotingCommand.request(code, ext)
                return await self.client.invoke(address, command, WAIT_S * 1000)

        async def all_asked() -> list[RemotingCommand]:
            return await asyncio.gather(*map(asked, exts))

        return self.run(all_asked())

    def close(self) -> None:
        self.run(self.client.close())
        self.run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


# -- ours ------------------------------------------------------------------------------------------


def open_ours(root: Path) -> MessageStore:
    config = StoreConfig(
        mode=StoreMode.CLASSIC,
        segment_size_bytes=int(SETTINGS["mappedFileSizeCommitLog"]),
        entries_per_file=int(SMALL_QUEUES["mappedFileSizeConsumeQueue"]) // 20,
        index_limits=IndexLimits(
            int(SETTINGS["maxHashSlotNum"]), int(SETTINGS["maxIndexNum"]) // 4
        ),
    )
    store = MessageStore(OsDisk(str(root)), config)
    store.open()
    return store


def write_topics(root: Path) -> None:
    """config/topics.json as our broker writes it."""
    table = TopicTable()
    for name, count in TOPICS.items():
        table.put(TopicConfig(name, count, count), 1_700_000_000_000)
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_text(json.dumps(table.to_json()))


def message(rng: random.Random, number: int, port: int) -> MessageRecord:
    topic = rng.choice(["Orders", "Orders", "Events", "Large"])
    properties = {
        "UNIQ_KEY": f"7F0000010001{number:020X}",
        "KEYS": f"order-{number} group-{number % 7} 键{number % 3}",
        "TAGS": rng.choice(["TagA", "TagB", "标签"]),
        "WAIT": "true",
        "note": "ä" * rng.randrange(1, 40),
    }
    if number % 11 == 0:
        del properties["KEYS"]
    body = rng.randbytes(20_000 if topic == "Large" else rng.randrange(300))
    born = ("2001:db8::7", 4711) if number % 13 == 0 else ("127.0.0.1", 50_000)
    sys_flag = 0x10 if ":" in born[0] else 0
    return replace(
        PLAIN,
        topic=topic,
        body=body,
        queue_id=rng.randrange(TOPICS[topic]),
        properties=encode_properties(properties),
        flag=number,
        sys_flag=sys_flag | (8 if number % 17 == 0 else 0),  # some are committed transactions
        born_host=born,
        store_host=("127.0.0.1", port),
    )


def append_ours(store: MessageStore, first: int, count: int, port: int) -> None:
    """So many messages, in batches; store times go on up to now."""
    rng = random.Random(first)
    now_ms = int(time.time() * 1000)
    number = first
    while number < first + count:
        batch = [message(rng, number + n, port) for n in range(rng.randrange(1, 6))]
        stamp = now_ms - 500 * max(0, first + count - number)
        append_classic(store, batch, stamp)
        number += len(batch)


def served_by_ours(store: MessageStore) -> Queues:
    actual: Queues = {}
    for queue in store.queues.queues():
        rows = actual[queue.topic, queue.queue_id] = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.reads.get_messages(queue.topic, queue.queue_id, offset, 32, 1 << 20)
            assert result.status is GetStatus.FOUND
            rows += cut(b"".join(result.buffers))
            offset = result.next_offset
    return actual


def cut(body: bytes) -> list[bytes]:
    return [body[at : at + size] for at, size in walk_records(body)]


# -- Apache's --------------------------------------------------------------------------------------


def served_by(loop: Loop, address: str, queues: Queues, count: int) -> Queues:
    """All that pulls get from these queues, once there are `count` messages in them."""
    deadline = time.monotonic() + WAIT_S
    while True:
        result = pulled(loop, address, queues)
        if sum(map(len, result.values())) >= count or time.monotonic() > deadline:
            return result
        time.sleep(POLL_S)


def pulled(loop: Loop, address: str, queues: Queues) -> Queues:
    result: Queues = {}
    for topic, queue_id in queues:
        rows = result[topic, queue_id] = []
        offset = 0
        while True:
            header = PullHeader("reader", topic, queue_id, offset, 32, 0x4, 0, 0, "*", 0)
            response = loop.ask(address, RequestCode.PULL_MESSAGE, header.to_ext())
            if response.code != 0:
                break
            rows += cut(response.body)
            assert response.ext is not None
            offset = int(response.ext["nextBeginOffset"])
    return result


def same_lookups(loop: Loop, address: str, ours: MessageStore | None, all_: Queues) -> None:
    """By key, by time and by id the broker finds what there is to find, as our store does."""
    same_keys(loop, address, ours, all_)
    for (topic, queue_id), rows in all_.items():
        for at, data in list(enumerate(rows))[:: max(1, len(rows) // 5)]:
            record = decode_record(data)
            ext = {"offset": str(record.physical_offset)}
            assert loop.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, ext).body == data
            stamps = [decode_record(row).store_timestamp_ms for row in rows]
            at_ms = record.store_timestamp_ms
            requested = (stamps[0] - 1, at_ms, at_ms + 1, stamps[-1] + 1)
            exts = [
                QueueOffsetHeader(topic, queue_id, stamp, boundary).to_ext()
                for stamp in requested
                for boundary in ("LOWER", "UPPER")
            ]
            by_time = loop.ask_all(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, exts)
            offsets = [int((answer.ext or {})["offset"]) for answer in by_time]
            for stamp, found_first, found_last in zip(
                requested, offsets[::2], offsets[1::2], strict=True
            ):
                first = sum(s < stamp for s in stamps)
                last = max(0, sum(s <= stamp for s in stamps) - 1)
                assert (found_first, found_last) == (first, last), (topic, queue_id, at, stamp)
                if ours is not None:
                    assert ours.reads.offset_by_time(topic, queue_id, stamp) == first
                    assert ours.reads.last_offset_by_time(topic, queue_id, stamp) == last


def same_keys(
    loop: Loop, address: str, ours: MessageStore | None, all_: Queues, *, unique: bool = True
) -> None:
    """By key, and by `unique` key, the broker finds what there is to find, as our store does."""
    by_key: dict[tuple[str, str], set[bytes]] = {}
    for (topic, _), rows in all_.items():
        for data in rows:
            properties = decode_properties(decode_record(data).properties)
            for key in keys_of(properties):
                if unique or key != properties["UNIQ_KEY"]:
                    by_key.setdefault((topic, key), set()).add(data)
    newest = {
        key: sorted(expected, key=lambda data: decode_record(data).physical_offset)[-64:]
        for key, expected in by_key.items()
    }
    exts = [QueryMessageHeader(*key, 64, 0, FOREVER_MS).to_ext() for key in newest]
    deadline = time.monotonic() + WAIT_S
    while True:
        answers = loop.ask_all(address, RequestCode.QUERY_MESSAGE, exts)
        result = {
            key: cut(answer.body) if answer.code == 0 else answer.remark
            for key, answer in zip(newest, answers, strict=True)
        }
        if result == newest or time.monotonic() > deadline:  # the index is made behind the log
            break
        time.sleep(POLL_S)
    assert result == newest
    for (topic, key), expected in newest.items():
        if ours is not None:
            assert drained(ours.derived.query(topic, key, 64, 0, FOREVER_MS)).records == expected


def java_sends(jvm: Jvm, loop: Loop, topic: str, count: int) -> list[bytes]:
    producer = jvm.producer(f"pg-{topic}-{time.monotonic_ns()}", loop.namesrv)
    try:
        bodies = [b"java-%d-" % n + b"j" * (9 * n) for n in range(count)]
        for n, body in enumerate(bodies):
            result = sent(producer, jvm.message(topic, "TagJ", f"java-{n} java", body))
            assert result.getSendStatus().toString() == "SEND_OK"
        return bodies
    finally:
        producer.shutdown()


def java_finds(jvm: Jvm, loop: Loop, data: bytes, port: int, by_key: bool) -> None:
    """One of our messages through the Java client: by id, and by one of its KEYS."""
    record = decode_record(data)
    properties = decode_properties(record.properties)
    producer = jvm.producer(f"finder-{time.monotonic_ns()}", loop.namesrv)
    try:
        message_id = offset_message_id(("127.0.0.1", port), record.physical_offset)
        seen = [viewed(producer, record.topic, message_id)]
        if by_key:
            key = properties["KEYS"].split(" ")[0]
            result = producer.queryMessage(record.topic, key, 32, 0, FOREVER_MS)
            seen += list(result.getMessageList())
            assert len(seen) == 2
        for actual in seen:
            assert bytes(actual.getBody() or b"") == record.body  # Java has null for an empty one
            assert actual.getQueueOffset() == record.queue_offset
            assert actual.getStoreTimestamp() == record.store_timestamp_ms
            assert actual.getKeys() == properties["KEYS"]
            assert actual.getTags() == properties["TAGS"]
            assert actual.getUserProperty("note") == properties["note"]
    finally:
        producer.shutdown()


def until_routed(loop: Loop, topic: str, address: str) -> None:

    def routed() -> bool:
        response = loop.ask(loop.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return response.code == 0 and address.encode() in response.body

    wait_until(routed, patience_s=WAIT_S, pause_s=POLL_S)


def apache_broker(root: Path, loop: Loop, version: str = "5.3") -> ApacheBroker:
    settings = SMALL_QUEUES | {"maxIndexNum": str(int(SETTINGS["maxIndexNum"]) // 4)}
    settings["brokerName"] = root.name
    return ApacheBroker(root, loop.namesrv, version=version, **settings)


def close_store(apache: ApacheBroker) -> None:
    """Stop the broker in order, as far as its store goes; the five seconds that it then waits for
    its own connections are nobody's."""
    assert apache.jvm is not None
    apache.jvm.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + WAIT_S
    while not has_closed(apache.store) and apache.jvm.process.poll() is None:
        assert time.monotonic() < deadline, apache.log_text()
        time.sleep(POLL_S)
    apache.stop(signal.SIGKILL)


def has_closed(store: Path) -> bool:
    """Whether the store is closed and no table under config/, written after it, is half written."""
    tables = (store / "config").glob("*.json")
    return not (store / "abort").exists() and all(table.stat().st_size for table in tables)


# -- the tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_classic_store_is_served_by_ours_then_apaches_then_ours(
    tmp_path: Path, jvm: Jvm, loop: Loop, clean: bool
) -> None:
    root = tmp_path / f"ours-{clean}"
    apache = apache_broker(root, loop)
    write_topics(root / "store")
    store = open_ours(root / "store")
    append_ours(store, 0, 180, apache.port)
    store.derived.index_all()
    store.flush()
    append_ours(store, 200, 40, apache.port)
    written = served_by_ours(store)
    assert len(store.commitlog.segments()) >= 4
    assert sum(map(len, written.values())) >= 220
    if clean:
        store.close()
        assert len(list((root / "store" / "index").iterdir())) >= 2
    else:
        store.close_unclean()  # as a kill: tails and slots in memory are gone
    lock = root / "store" / "lock"
    lock.write_bytes(b"ours")

    apache.start()
    try:
        count = sum(map(len, written.values()))
        assert served_by(loop, apache.address, written, count) == written
        if clean:  # after an unclean stop it drops index files, and makes again what it rereads
            same_lookups(loop, apache.address, None, written)
        until_routed(loop, "Orders", apache.address)
        known = next(d for d in reversed(written["Orders", 0]) if b"KEYS" in d)
        java_finds(jvm, loop, known, apache.port, clean)
        bodies = java_sends(jvm, loop, "Events", 30)
        served = served_by(loop, apache.address, written, count + len(bodies))
    finally:
        if clean:
            close_store(apache)
        else:
            apache.stop(signal.SIGKILL)

    assert lock.read_bytes()[:4] == b"lock"  # so it is seen who had the store
    store = open_ours(root / "store")
    assert store.last_stop_clean is clean
    ours = served_by_ours(store)
    assert {key: ours[key] for key in served} == served
    got = [decode_record(d).body for q in (0, 1) for d in ours["Events", q]]
    assert set(bodies) <= set(got)
    before = {(q.topic, q.queue_id): q.max_offset for q in store.queues.queues()}
    append_ours(store, 400, 20, apache.port)
    for queue in store.queues.queues():
        assert queue.max_offset >= before.get((queue.topic, queue.queue_id), 0)
    store.derived.index_all()
    result = drained(store.derived.query("Events", "java", 64, 0, FOREVER_MS)).records
    assert {decode_record(data).body for data in result} == set(bodies)
    everything = {key: rows for key, rows in served_by_ours(store).items() if key in written}
    store.close()
    if not clean:
        return

    apache.start()
    try:
        count = sum(map(len, everything.values()))
        assert served_by(loop, apache.address, everything, count) == everything
        store = open_copy(root / "store", tmp_path / "copy")
        same_lookups(loop, apache.address, store, everything)
        store.close()
    finally:
        apache.stop(signal.SIGKILL)


def open_copy(root: Path, to: Path) -> MessageStore:
    """Our store over a copy of the files that Apache's broker has open."""
    for path in root.rglob("*"):
        if path.is_file() and path.parent.name != "config" and path.name != "lock":
            target = to / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    store = open_ours(to)
    store.derived.index_all()
    return store


def test_classic_store_of_apaches_is_served_by_ours(tmp_path: Path, jvm: Jvm, loop: Loop) -> None:
    """Nothing but Apache's: topics made on the way, Java's messages, its own config files."""
    root = tmp_path / "apaches"
    apache = apache_broker(root, loop)
    apache.start()
    try:
        until_routed(loop, "TBW102", apache.address)
        for topic in ("Made", "Made2"):
            bodies = java_sends(jvm, loop, topic, 60)
        queues: Queues = {(topic, q): [] for topic in ("Made", "Made2") for q in range(4)}
        served = served_by(loop, apache.address, queues, 120)
        assert sum(map(len, served.values())) == 120
        same_lookups(loop, apache.address, None, served)
    finally:
        close_store(apache)
    table = TopicTable()
    table.load(json.loads((root / "store" / "config" / "topics.json").read_text()), 0)
    assert {"Made", "Made2"} <= set(table.entries)
    index = [path.read_bytes() for path in sorted((root / "store" / "index").iterdir())]
    store = open_ours(root / "store")
    assert store.last_stop_clean
    assert {key: served_by_ours(store)[key] for key in served} == served
    for n, body in enumerate(bodies):
        (data,) = drained(store.derived.query("Made2", f"java-{n}", 64, 0, FOREVER_MS)).records
        assert decode_record(data).body == body
    store.close()
    assert [p.read_bytes() for p in sorted((root / "store" / "index").iterdir())] == index

    broker = loop.run(started(root / "store", loop, apache.settings))
    try:
        assert served_by(loop, broker.address, served, 120) == served
        same_lookups(loop, broker.address, None, served)
        until_routed(loop, "Made", broker.address)
        more = java_sends(jvm, loop, "Made", 30)
        now = served_by(loop, broker.address, served, 120 + len(more))
        for key, rows in served.items():
            assert now[key][: len(rows)] == rows
        bodies_now = {decode_record(data).body for rows in now.values() for data in rows}
        assert set(more) <= bodies_now
        same_lookups(loop, broker.address, None, now)
    finally:
        loop.run(broker.stop())


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_classic_store_returns_to_each_apache_version(
    tmp_path: Path, jvm: Jvm, loop: Loop, version: str
) -> None:
    """Apache's broker, ours, and Apache's again on the same directory: all messages, the lookups,
    the topics and the progress of a group."""
    root = tmp_path / f"way-{version}"
    apache = apache_broker(root, loop, version)
    queues: Queues = {("Way", q): [] for q in range(4)}
    count = 0
    unique = version != "3.2"  # which has no index of unique keys

    def used(address: str) -> Queues:
        """Send more and commit, then return all that is served."""
        nonlocal count
        until_routed(loop, "TBW102", address)
        java_sends(jvm, loop, "Way", 60)
        count += 60
        served = served_by(loop, address, queues, count)
        assert sum(map(len, served.values())) == count
        same_keys(loop, address, None, served, unique=unique)
        progress = {**GROUP, "commitOffset": str(count // 10)}
        assert loop.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, progress).code == 0
        return served

    def same(address: str, served: Queues) -> None:
        assert served_by(loop, address, served, count) == served
        same_keys(loop, address, None, served, unique=unique)
        answer = loop.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, GROUP)
        assert answer.ext == {"offset": str(count // 10)}

    served: Queues = {}
    for _ in range(2):
        apache.start()
        try:
            if served:
                same(apache.address, served)
            served = used(apache.address)
            apache.save_offsets()
        finally:
            close_store(apache)
        broker = loop.run(started(root / "store", loop, apache.settings))
        try:
            same(broker.address, served)
            served = used(broker.address)
        finally:
            loop.run(broker.stop())


async def started(root: Path, loop: Loop, settings: dict[str, str]) -> Broker:
    """Our classic master over an Apache broker's store, with its settings."""
    known = {key: value for key, value in settings.items() if key in OPTIONS}
    ours = {**known, "brokerRole": "ASYNC_MASTER", "listenPort": "0", "haListenPort": "0"}
    ours["bindAddress"] = "127.0.0.1"
    ours["diskSpaceWarningLevelRatio"] = "100"  # however full the machine's disk is
    config = build_config(Setting(key, value, "test") for key, value in ours.items())
    broker = await open_broker(config, OsDisk(str(root)))
    await broker.start()
    return broker


def refused_by_itself(apache: ApacheBroker) -> int:
    """The exit status of Apache's broker started as its script does it, with the files of `apache`,
    which has run before. (A JVM that ends under py4j takes py4j's patience with it.)"""
    home = apache.directory / "home"
    options = ["-Xmx256m", f"-Drocketmq.home.dir={home}", f"-Duser.home={apache.directory}"]
    path = os.pathsep.join(jars(apache.version))
    started = ["org.apache.rocketmq.broker.BrokerStartup", "-c", f"{apache.directory}/broker.conf"]
    done = subprocess.run(
        [java_command(), *SHORT_LIVED, *options, "-cp", path, *started],
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode


@pytest.mark.parametrize("version", ["5.3", pytest.param("4.9", marks=pytest.mark.long)])
def test_classic_store_in_use_is_opened_by_neither_broker(
    tmp_path: Path, loop: Loop, version: str
) -> None:
    apache = ApacheBroker(
        tmp_path, loop.namesrv, version=version, brokerName="shared", **SMALL_QUEUES
    )
    apache.start()
    try:
        assert apache.jvm is not None
        with pytest.raises(StoreInUse, match=f"process {apache.jvm.process.pid} .*not say what"):
            loop.run(started(apache.store, loop, apache.settings))
        apache.sync_metadata()  # it goes on
    finally:
        close_store(apache)
    broker = loop.run(started(apache.store, loop, apache.settings))
    try:
        assert refused_by_itself(apache) not in (0, -signal.SIGKILL)
    finally:
        loop.run(broker.stop())
    apache.start()  # it is its own again, with what ours left in the lock file
    apache.kill()
