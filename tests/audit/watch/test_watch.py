"""`mqaudit watch` over scripted brokers: what it finds, once, through restarts."""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raftmq.audit.engine.local_engine import local_engine
from raftmq.audit.watch import watch as watching
from raftmq.audit.watch.results import Results
from raftmq.audit.watch.state import State, StateError
from raftmq.audit.watch.watch import Subject, Watch
from raftmq.client import ClientError, Message, Producer
from raftmq.spark.options import connection_of
from raftmq.store.record import decode_record, encode_record
from tests.client.fakes import FakeCluster, SharedLog, queue

MINUTE = 60.0


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A group g0 with topic T and, in Audit, the acknowledgements of eight messages."""
    async with FakeCluster({"g0": 1}) as made:
        made.name_server.topics["Audit"] = {"g0": (1, 6)}
        async with Producer("p", made.namesrv, audit_topic="Audit") as producer:
            for number in range(8):
                await producer.send(Message("T", b"message %d" % number), queue=queue(number % 4))
        yield made


def changed(log: SharedLog, queue_id: int, offset: int, **fields: bytes) -> None:
    records = log.records["T", queue_id]
    records[offset] = encode_record(replace(decode_record(records[offset]), **fields))  # type: ignore[arg-type]


class Runs:
    """Runs of a watch over one directory."""

    def __init__(
        self,
        cluster: FakeCluster,
        directory: Path,
        tables: Path | None = None,
        groups: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        topic = "" if tables else "Audit"
        self.subject = Subject(connection_of({"namesrv": cluster.namesrv}), topic, tables, groups)

    async def run(self, wait_s: float = 0.0) -> list[str]:
        """The lines of a run over what is there: kind, queue, offset, reason."""
        return await asyncio.to_thread(self._run, wait_s)

    def _run(self, wait_s: float) -> list[str]:
        with State(self.directory, str(self.subject)) as state, local_engine() as engine:
            watch = Watch(self.subject, engine, state, wait_s)
            try:
                while not watch.round():
                    pass
            finally:
                rows = Results(state).publish(int(time.time() * 1000))
            return [
                f"{r['kind']} {r.get('queue_id')} {r.get('queue_offset')}: {r['what']}"
                for r in rows
            ]

    def metric(self, name: str) -> float:
        lines = (self.directory / "mqaudit_watch.prom").read_text().splitlines()
        (value,) = (line.split()[-1] for line in lines if line.startswith(f"raftmq_watch_{name} "))
        return float(value)

    def page(self) -> str:
        return re.sub(r"</?t[dr][^>]*>", " ", (self.directory / "watch.html").read_text())

    def findings(self) -> int:
        return (self.directory / "findings.jsonl").read_bytes().count(b"\n")


async def test_watch_of_whole_messages_finds_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    runs = Runs(cluster, tmp_path)
    assert await runs.run() == []
    assert runs.metric("acknowledged_total") == 8
    assert runs.metric("waiting") == 0
    assert time.time() - 600 < runs.metric("time_seconds") < time.time()
    assert await runs.run() == []
    assert runs.metric("acknowledged_total") == 8
    assert "No finding in the 24 hours before" in runs.page()
    end = len(cluster.logs["g0"].records["Audit", 0])
    assert cluster.logs["g0"].offsets == {("mqaudit-watch", "Audit", 0): end}


async def test_missing_and_altered_messages_are_found_once(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    log, runs = cluster.logs["g0"], Runs(cluster, tmp_path)
    changed(log, 1, 0, body=b"something else")
    changed(log, 2, 0, properties=b"UNIQ_KEY\x01ANOTHER")
    del log.records["T", 3][1]
    assert await runs.run() == [
        f"altered 1 0: the stored body has the CRC {zlib.crc32(b'something else')}",
        "missing 2 0: message ANOTHER is stored at its place",
        "missing 3 1: its queue ends before it, or lacks it",
    ]
    assert await runs.run() == []
    assert runs.findings() == 3
    assert runs.metric('findings{kind="missing"}') == 2
    assert runs.metric('findings{kind="altered"}') == 1


async def test_message_acknowledged_twice_is_found_once(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    log, runs = cluster.logs["g0"], Runs(cluster, tmp_path)
    del log.records["T", 3][1]
    again = decode_record(log.records["Audit", 0][0]).body
    log.append("Audit", 0, again)
    assert len(await runs.run()) == 1
    log.append("Audit", 0, again)
    assert await runs.run() == []
    assert runs.findings() == 1 and runs.metric('findings{kind="missing"}') == 1


async def test_queue_that_a_group_does_not_consume_is_found_until_it_is(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    log, runs = cluster.logs["g0"], Runs(cluster, tmp_path, groups=("billing",))
    with pytest.raises(ClientError, match="does not exist"):
        await runs.run()
    assert runs.metric("acknowledged_total") == 8 and runs.metric("time_seconds") == 0
    log.offsets |= {("billing", "T", queue_id): 2 - queue_id for queue_id in range(3)}
    found = ["1 1: group billing has not consumed 1", "2 0: group billing has not consumed 2"]
    lines = await runs.run()
    assert [line.partition(" messages")[0] for line in lines] == [f"unconsumed {f}" for f in found]
    assert runs.metric('unconsumed{group="billing",topic="T"}') == 3
    assert "billing  T  g0  1  1  1" in runs.page()

    cluster.name_server.groups["g0"] = {1: cluster.brokers["g0"][0]}  # no leader
    with pytest.raises(ClientError):
        await runs.run()
    assert runs.metric('unconsumed{group="billing",topic="T"}') == 3
    cluster.lead("g0", 0, tell_route=True)
    log.offsets["billing", "T", 2] = 2
    assert await runs.run() == []
    assert runs.metric('unconsumed{group="billing",topic="T"}') == 1


async def test_absent_message_is_judged_after_the_wait_and_over_restarts(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    log, runs = cluster.logs["g0"], Runs(cluster, tmp_path)
    lost, kept = log.records["T", 3].pop(), log.records["T", 2].pop()
    assert await runs.run(MINUTE) == []
    assert runs.metric("waiting") == 2 and runs.metric("acknowledged_total") == 6
    log.records["T", 2].append(kept)
    assert await runs.run(MINUTE) == []
    assert runs.metric("waiting") == 1 and runs.metric("acknowledged_total") == 7
    assert [line[:11] for line in await runs.run()] == ["missing 3 1"]
    log.records["T", 3].append(lost)
    assert await runs.run() == []
    assert runs.metric("acknowledged_total") == 8


async def test_messages_of_a_group_that_is_away_are_late_then_judged(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(cluster, tmp_path)
    topic = cluster.name_server.topics.pop("T")
    assert await runs.run(MINUTE) == []
    late = await runs.run()
    assert len(late) == 8 and all("no name server has a route" in line for line in late)
    assert await runs.run() == []
    cluster.name_server.topics["T"] = topic
    changed(cluster.logs["g0"], 1, 0, body=b"something else")
    assert [line[:11] for line in await runs.run()] == ["altered 1 0"]
    assert runs.metric("waiting") == 0 and runs.metric("acknowledged_total") == 8


async def test_removed_messages_are_counted_and_not_judged(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    log, runs = cluster.logs["g0"], Runs(cluster, tmp_path)
    log.first["T", 0] = 1
    del log.records["T", 0][0]
    assert await runs.run() == []
    assert runs.metric('not_judged_total{reason="removed"}') == 1


@pytest.mark.parametrize("body", [b"no JSON", b'{"msg_id": ["A"], "topic": []}'])
async def test_unreadable_acknowledgements_are_a_finding(
    cluster: FakeCluster, tmp_path: Path, body: bytes
) -> None:
    cluster.logs["g0"].append("Audit", 0, body)
    (line,) = await Runs(cluster, tmp_path).run()
    assert line.startswith("unread None None: Audit g0 queue 0 offset 1: ")


async def test_acknowledgements_that_were_removed_are_a_finding(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    log, runs = cluster.logs["g0"], Runs(cluster, tmp_path)
    assert await runs.run() == []
    log.first["Audit", 0] = 3
    record = decode_record(log.records["Audit", 0][0])
    log.records["Audit", 0] = [encode_record(replace(record, queue_offset=3))]
    (line,) = await runs.run()
    assert line.startswith("unread None None: queue 0 of topic Audit at g0")


async def test_each_table_is_judged_once(cluster: FakeCluster, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    runs = Runs(cluster, tmp_path / "state", tables)
    columns = {"topic": ["T", "T"], "broker": ["g0", None], "queue_id": [0, 0]}
    columns |= {"queue_offset": [0, 1], "msg_id": ["A", "B"]}
    pq.write_table(pa.table(columns), tables / "1.parquet")
    (line,) = await runs.run()
    assert line.startswith("missing 0 0: message ")
    (tables / "2.parquet").write_bytes(b"no table")
    pq.write_table(pa.table({"msg_id": ["A"]}), tables / "3.parquet")
    assert [line.partition(str(tables))[2][:10] for line in await runs.run()] == [
        "/2.parquet",
        "/3.parquet",
    ]
    assert await runs.run() == []
    assert runs.metric('not_judged_total{reason="unplaced"}') == 1


async def test_killed_watch_repeats_and_omits_no_line(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ROUND_MESSAGES", 1)
    changed(cluster.logs["g0"], 1, 0, body=b"something else")
    runs = Runs(cluster, tmp_path)

    class Killed(Exception):
        pass

    def killed(*_: object) -> None:
        raise Killed

    for victim, method in ((State, "commit"), (Results, "publish")):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(victim, method, killed)
            await runs.run()
    (tmp_path / "findings.jsonl").write_bytes(b'{"kind":')
    assert [line[:11] for line in await runs.run()] == ["altered 1 0"]
    assert runs.findings() == 1


def test_directory_belongs_to_one_watch_at_a_time(tmp_path: Path) -> None:
    with State(tmp_path, "Audit"):
        with pytest.raises(StateError, match="is in use"):
            State(tmp_path, "Audit")
    with pytest.raises(StateError, match="watch over Audit, not Told"):
        State(tmp_path, "Told")
