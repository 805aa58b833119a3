"""Opens the replicas of a running Raft group as stores that an audit can read.

The leader commits a marker frame behind all acknowledged messages. As for a backup
(broker.backup.online_source), each replica supplies its tables as of a frame behind the marker, and
its log up to the latest of these frames. So the log covers every table, and all of it is committed.
Sends continue. A store's directory has config/ alone; the log stays at the replica
(audit.read.replica), which keeps it during the audit. A replica that does not reach the marker in
time lags: it is read as far as it has come.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from raftmq.broker.backup.manifest import BackupError
from raftmq.broker.backup.online_source import Offer, RemoteSource
from raftmq.broker.backup.protocol import BEHIND
from raftmq.broker.tables.snapshot import DIRECTORY, FILES
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.bodies import topic_offsets
from raftmq.client.errors import ClientError
from raftmq.client.instance import successful
from raftmq.client.route import BrokerData
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object
from raftmq.spark.cluster import instance_config
from raftmq.spark.options import Connection

from .cluster_info import RAFT, Subject
from .replica import FAILURES, Replica, connected
from .store_files import Store, replicas_of
from .system_topics import MULTI_QUEUE_PREFIX

REQUESTS_AT_ONCE_MAX = 32
KEEP_S = 30.0  # a replica forgets a session that is silent for two minutes
_NODE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")  # it becomes a directory's name


class NotAudited(Exception):
    """Running brokers cannot be audited; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """The stores of a running group. `unseen` lists the other replicas with reasons. `ends` has the
    queue ends at the leader before its marker frame, `retention_hours` is the leader's."""

    stores: Mapping[str, Store]
    subject: Subject
    unseen: tuple[str, ...]
    ends: Mapping[tuple[str, int], int]
    retention_hours: int


@dataclass(frozen=True, slots=True)
class _Session:
    """A replica's session, its offer, and the directory of its store."""

    source: RemoteSource
    session: str
    offer: Offer
    directory: Path


def admin_of(connection: Connection) -> Admin:
    return Admin(connection.namesrv, instance_config=instance_config(connection))


@contextmanager
def live_group(
    connection: Connection, group: BrokerData, root: Path, bytes_per_s: int
) -> Iterator[LiveGroup | None]:
    """Open the replicas of a Raft group, with their tables below `root`; None if it is no Raft
    group. Their logs are kept until the end of the block. Raises NotAudited, ClientError."""
    opened = asyncio.run(_opened(connection, group, root, bytes_per_s))
    replicas = replicas_of(opened.stores) if opened is not None else []
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(replicas, ended), daemon=True)
    keeper.start()
    try:
        yield opened
    finally:
        ended.set()
        keeper.join()
        asyncio.run(_end(replicas))


async def _opened(
    connection: Connection, group: BrokerData, root: Path, bytes_per_s: int
) -> LiveGroup | None:
    leader = group.leader
    async with admin_of(connection) as admin:
        if not await is_raft(admin, group):
            return None
        if not leader:
            raise NotAudited(
                f"{group.broker_name} has no leader: what it acknowledged is not known"
            )
        ends = await _queue_ends(admin, leader)
        retention_hours = int((await admin.broker.config(leader))["fileReservedTime"])
    async with connected(connection) as client:
        sources = {}
        for address in (leader, *sorted({*group.addresses.values()} - {leader})):
            session, confirm = secrets.token_hex(16), address == leader
            sources[session] = RemoteSource(
                client, address, bytes_per_s=bytes_per_s, confirm=confirm, shared=session
            )
        try:
            opened, last, unseen = await _sessions(sources, root)
        except FAILURES as error:
            for source in sources.values():
                await source.end()
            raise NotAudited(f"{group.broker_name}: {error}") from error
    end = min(each.offer.end for each in opened if each.offer.facts.index >= last)
    stores = {}
    for each in opened:
        facts, snapshot = each.offer.facts, each.offer.snapshot
        replica = Replica(
            *(facts.node, each.source.address, connection, each.session, facts.index),
            *(snapshot.position, min(end, each.offer.end), snapshot.segment_size_bytes),
            bytes_per_s,
        )
        stores[facts.node] = Store(facts.node, str(each.directory), replica)
    members = frozenset(
        member.rpartition("-")[0] for each in opened for member in each.offer.facts.members
    )
    nodes = {name: name for name in stores}
    subject = Subject(RAFT, group.broker_name, members, nodes, "its replicas", queues=False)
    return LiveGroup(stores, subject, tuple(unseen), ends, retention_hours)


async def _sessions(
    sources: Mapping[str, RemoteSource], root: Path
) -> tuple[list[_Session], int, list[str]]:
    """Write the replicas' tables below `root`. Return the replicas by node, the frame of the latest
    tables, and messages about replicas that do not answer. The leader's source is the first. Raises
    BackupError, Overtaken."""
    unseen: list[str] = []

    async def start(source: RemoteSource, index: int) -> Offer | None:
        try:
            return await source.start(index)
        except FAILURES as error:
            if index and BEHIND in str(error):
                return await start(source, 0)
            unseen.append(f"the replica at {source.address}: {error}")
            return None

    async def reach(each: _Session, index: int) -> _Session | None:
        if each.offer.facts.index >= index:
            return each
        offer = await start(each.source, index)
        return None if offer is None else replace(each, offer=offer)

    (leader, *others) = sources.items()
    first = await leader[1].start(0)
    offers = [first, *await asyncio.gather(*(start(each, first.facts.index) for _, each in others))]
    seen = [
        _Session(source, session, offer, _written(offer, root))
        for (session, source), offer in zip(sources.items(), offers, strict=True)
        if offer is not None
    ]
    last = max(each.offer.facts.index for each in seen)
    reaching = await asyncio.gather(*(reach(each, last) for each in seen))
    opened = [each for each in reaching if each is not None]
    return sorted(opened, key=lambda each: each.offer.facts.node), last, unseen


def _keep(replicas: Sequence[Replica], ended: threading.Event) -> None:
    """Ask for the replicas' sessions again, so that none is silent for long."""

    async def ask() -> None:
        async with connected(replicas[0].connection) as client:
            renewals = (each.renew_by(client) for each in replicas)
            await asyncio.gather(*renewals, return_exceptions=True)  # a reader reports the failure

    while replicas and not ended.wait(KEEP_S):
        asyncio.run(ask())


async def _end(replicas: Sequence[Replica]) -> None:
    for replica in replicas:
        async with connected(replica.connection) as client:
            with suppress(*FAILURES):  # a silent session expires there
                await replica.end_by(client)


def _written(offer: Offer, root: Path) -> Path:
    """Write a replica's tables as its store's config/; return the store. Raises BackupError."""
    node = offer.facts.node
    if not _NODE.fullmatch(node):
        raise BackupError(f"a replica calls itself {node!r}")
    store = root / node / "store"
    try:
        tables = orjson.loads(offer.snapshot.state)["tables"]
        there = {name: orjson.dumps(tables[name]) for name in FILES if name in tables}
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"the tables of {node} cannot be read: {error!r}") from error
    (store / DIRECTORY).mkdir(parents=True)
    for name, data in there.items():
        (store / DIRECTORY / name).write_bytes(data)
    return store


async def is_raft(admin: Admin, group: BrokerData) -> bool:
    """Return whether the group's brokers report a Raft role. Raises ClientError if none answers."""
    complaint: ClientError | None = None
    for address in group.addresses.values():
        try:
            return "raftRole" in await admin.broker.runtime_info(address)
        except ClientError as error:
            complaint = error
    raise complaint or NotAudited(f"{group.broker_name} has no brokers")


async def _queue_ends(admin: Admin, leader: str) -> dict[tuple[str, int], int]:
    """Return the ends of the non-empty queues at a leader, by topic and number."""
    requests, ends = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX), {}

    async def ask(topic: str) -> None:
        async with requests:
            answer = await admin.invoke(leader, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return  # the template of topics, or a deleted topic
        for queue, offsets in topic_offsets(loads_object(successful(answer, leader).body)).items():
            if offsets.max_offset > offsets.min_offset:
                ends[topic, queue.queue_id] = offsets.max_offset

    topics = await admin.topic.configs(leader)
    await asyncio.gather(*(ask(name) for name in topics if not name.startswith(MULTI_QUEUE_PREFIX)))
    return ends
