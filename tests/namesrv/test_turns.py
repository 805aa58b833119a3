"""No request keeps a name server's loop for long: every request code with its largest legal input
and its worst illegal one, at a name server with large tables. A turn of the loop is measured by the
processor time of the loop's own thread, which load beside it does not change much."""

from __future__ import annotations

import asyncio
import gc
import mmap
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import orjson
import pytest

from raftmq.namesrv.kv import VALUE_BYTES_MAX
from raftmq.namesrv.processor import CONFIG_BYTES_MAX
from raftmq.namesrv.routes import Registration
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.blocking_request import ask
from raftmq.remoting.codes import BODY_BYTES_MAX, RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.registration import (
    BODY_BYTES_MAX as REGISTRATION_BYTES_MAX,
)
from raftmq.remoting.registration import (
    TOPICS_MAX,
    DataVersion,
    RegisterBrokerHeader,
    TopicConfig,
    encode_register_body,
)
from tests.waiting import until

TURN_MAX_S = 0.020
TOPICS, GROUPS, VALUES = 100_000, 3_000, 20_000
COMMON = "everywhere"  # a topic of all groups
BIG = "big"  # the group with many topics
Case = tuple[dict[str, str], bytes]
TEXT = "t" * 400_000


class Loop(asyncio.SelectorEventLoop):
    """Notes the processor time of its longest turn."""

    longest_s = 0.0

    def _run_once(self) -> None:
        started_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_s = max(self.longest_s, time.thread_time() - started_s)


class Server:
    """A name server with large tables, in a thread of its own."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.server: NameServer | None = None
        self._thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> Server:
        self._thread.start()
        self.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        assert self.server is not None
        self.call(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def call(self, work: object) -> object:
        future: Future[object] = asyncio.run_coroutine_threadsafe(work, self.loop)  # type: ignore[arg-type]
        return future.result(300)

    async def _start(self) -> None:
        self.server = server = NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False))
        await server.start()
        topics = [TopicConfig(f"topic-{number:06d}", 4, 4, 6, 3) for number in range(TOPICS)]
        self._register(BIG, topics)
        for number in range(GROUPS):
            self._register(f"g{number}", [TopicConfig(COMMON, 4, 4, 6)])
        assert server.processor is not None
        for number in range(VALUES):
            server.processor.kv.put("many", f"key-{number:06d}", "v" * 100)
            server.processor.kv.put("ORDER_TOPIC_CONFIG", f"topic-{number:06d}", "big:4")
        await until(lambda: server.table.under_way(BIG) is None)

    def _register(self, name: str, topics: list[TopicConfig]) -> None:
        assert self.server is not None
        claim = Registration("c", name, f"{name}.example:1", 0, topics=topics, timeout_ms=10**9)
        self.server.table.register(claim, time.monotonic_ns() // 1_000_000)

    def ask(self, code: int, case: Case) -> tuple[RemotingCommand, float]:
        """Return the answer and the longest turn meanwhile."""
        assert self.server is not None
        self.loop.longest_s = 0.0
        answer = ask(self.server.address, RemotingCommand.request(code, *case), 300)
        return answer, self.loop.longest_s


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    gc.collect()
    gc.freeze()
    gc.disable()  # mqnamesrv hardly ever looks for cycles either, and this process has others'
    try:
        with Server() as running:
            yield running
    finally:
        gc.enable()
        gc.unfreeze()


def plain(count: int) -> bytes:
    return encode_register_body(DataVersion(1, 0, 1), topics(count), compressed=False)


def packed(count: int) -> bytes:
    return encode_register_body(DataVersion(2, 0, 1), topics(count), compressed=True)


def topics(count: int) -> list[TopicConfig]:
    return [TopicConfig(f"own-{number:06d}", 4, 4, 6) for number in range(count)]


def registers(body: bytes, compressed: bool) -> Case:
    header = RegisterBrokerHeader("new", "new.example:1", "c", "", 0, compressed)
    return header.to_ext(), body


def queue_datas(count: int) -> bytes:
    made = [
        {"brokerName": f"g{number}", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}
        for number in range(count)
    ]
    return orjson.dumps({"queueDatas": made})


def filled(text: bytes, before: bytes = b"") -> bytes:
    """Repeat a text up to the largest body of a registration."""
    start = before + b'{"x":'
    return start + text * ((REGISTRATION_BYTES_MAX - len(start)) // len(text))


BROKER = {"brokerName": BIG, "brokerAddr": f"{BIG}.example:1", "clusterName": "c", "brokerId": "0"}
SMALL = {"brokerName": "g0", "brokerAddr": "g0.example:1", "clusterName": "c", "brokerId": "0"}
KEY = {"namespace": "many", "key": "key-000001"}
NOTHING: Case = ({}, b"x" * BODY_BYTES_MAX)  # a body that nobody wants
# Created in the tests, since collecting them need not take a second and 150 MB.
CASES: dict[int, Callable[[], list[Case]]] = {
    RequestCode.REGISTRATION_NONCE: lambda: [NOTHING],
    RequestCode.REGISTER_BROKER: lambda: [
        registers(plain(TOPICS_MAX), False),
        registers(packed(TOPICS_MAX), True),
        registers(plain(10), False),  # its many topics go
        registers(filled(b"["), False),
        registers(filled(b" "), False),
        registers(filled(b'"'), False),
        registers(filled(b"1"), False),
        registers(filled(b'"a":1,'), False),
        registers(filled(b'{"a":', b'{"topicConfigSerializeWrapper":{"topicConfigTable":'), False),
        registers(zlib.compress(bytes(100 << 20)), True),
        registers(zlib.compress(b"\x7f" * (REGISTRATION_BYTES_MAX - 1)), True),
        registers(bytes(REGISTRATION_BYTES_MAX + 1), False),
        (registers(b"", False)[0] | {"topicDeltaBase": TEXT}, b""),
    ],
    RequestCode.QUERY_DATA_VERSION: lambda: [(SMALL, b"[" * BODY_BYTES_MAX), (SMALL, b"{}")],
    RequestCode.BROKER_HEARTBEAT: lambda: [
        (SMALL, NOTHING[1]), (SMALL | {"brokerName": TEXT}, b"")],
    RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda: [
        ({"topic": COMMON, "watchRoutes": "true"}, b""), ({"topic": TEXT}, b"")],
    RequestCode.GET_BROKER_CLUSTER_INFO: lambda: [NOTHING],
    RequestCode.GET_BROKER_MEMBER_GROUP: lambda: [
        (BROKER, b""), (BROKER | {"clusterName": TEXT}, b"")],
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda: [NOTHING],
    RequestCode.GET_TOPICS_BY_CLUSTER: lambda: [({"cluster": "c"}, b""), ({"cluster": TEXT}, b"")],
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda: [NOTHING],
    RequestCode.GET_UNIT_TOPIC_LIST: lambda: [NOTHING],
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: lambda: [NOTHING],
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lambda: [NOTHING],
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: lambda: [
        ({"topic": "T"}, queue_datas(GROUPS)),
        ({"topic": "T"}, b'{"queueDatas":[%s{}]}' % (b"{}," * 340_000)),
        ({"topic": "T"}, b"[" * BODY_BYTES_MAX)],
    RequestCode.DELETE_TOPIC_IN_NAMESRV: lambda: [({"topic": "T"}, b""), ({"topic": TEXT}, b"")],
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: lambda: [(BROKER, b""), ({"brokerName": TEXT}, b"")],
    RequestCode.ADD_WRITE_PERM_OF_BROKER: lambda: [(BROKER, b""), ({"brokerName": TEXT}, b"")],
    RequestCode.PUT_KV_CONFIG: lambda: [
        (KEY | {"value": "v" * VALUE_BYTES_MAX}, b""), (KEY | {"value": TEXT}, b"")],
    RequestCode.GET_KV_CONFIG: lambda: [(KEY, b""), (KEY | {"key": TEXT}, b"")],
    RequestCode.DELETE_KV_CONFIG: lambda: [(KEY, b""), (KEY | {"key": TEXT}, b"")],
    RequestCode.GET_KVLIST_BY_NAMESPACE: lambda: [(KEY, b""), (KEY | {"namespace": TEXT}, b"")],
    RequestCode.GET_NAMESRV_CONFIG: lambda: [NOTHING],
    RequestCode.UPDATE_NAMESRV_CONFIG: lambda: [
        ({}, b"logLevel=INFO\n"), ({}, b"a=b\n" * (CONFIG_BYTES_MAX // 4)),
        ({}, b"a=b\n" * (BODY_BYTES_MAX // 4))],
    RequestCode.UNREGISTER_BROKER: lambda: [  # the last: its topics go
        (BROKER | {"brokerName": TEXT}, b""), (BROKER, NOTHING[1])],
}  # fmt: skip


BODY = b"x" * REGISTRATION_BYTES_MAX  # pages of its own: zeros would all be one


def copied_to_new_pages() -> None:
    """Copy as a server does: an allocator gives memory that was freed here again."""
    with mmap.mmap(-1, len(BODY)) as pages:
        pages.write(BODY)


# Work to compare machines by, with its processor time on a machine that holds TURN_MAX_S. The
# largest turn copies a body, and memory may be slower than the cores.
UNITS: tuple[tuple[Callable[[], object], float], ...] = (
    (lambda: orjson.loads(orjson.dumps([{"name": str(n)} for n in range(20_000)])), 0.010),
    (copied_to_new_pages, 0.018),
)


def allowance() -> float:
    """Return the longest turn allowed on this machine."""
    slower = 1.0
    for unit, unit_s in UNITS:
        times = []
        for _ in range(3):
            started_s = time.thread_time()
            unit()
            times.append(time.thread_time() - started_s)
        slower = max(slower, sorted(times)[1] / unit_s)
    return TURN_MAX_S * slower


def test_load_cases_cover_every_request_code(server: Server) -> None:
    assert server.server is not None and server.server.processor is not None
    assert list(CASES) and set(CASES) == set(server.server.processor.handlers())


@pytest.mark.parametrize("code", CASES, ids=[RequestCode(code).name for code in CASES])
def test_no_request_blocks_the_event_loop_for_long(server: Server, code: int) -> None:
    for number, case in enumerate(CASES[code]()):
        for attempt in range(20):  # a page fault or a neighbour is no fault of ours
            time.sleep(0.1 * attempt)  # a neighbour's work ends
            answer, longest_s = server.ask(code, case)
            allowed_s = allowance()
            if longest_s <= allowed_s:
                break
        said = f"case {number} ({answer.code} {answer.remark and answer.remark[:100]})"
        assert longest_s <= allowed_s, f"{said}: a turn of {longest_s * 1e3:.0f} ms"
        print(f"{RequestCode(code).name} {said}: {longest_s * 1e3:.1f} ms")
