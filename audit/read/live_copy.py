"""Copies the replicas of a running Raft group into stores that an audit can read.

The leader commits a marker frame behind all acknowledged messages. As for a backup
(broker.backup.online_source), each replica supplies its tables as of a frame behind the marker, and
then its log up to the latest of these frames. So the log covers every table, and all of it is
committed. Sends continue. The scratch directory then has commitlog/, config/ and a checkpoint for
each replica.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from raftmq.broker.backup.manifest import BackupError
from raftmq.broker.backup.online_source import Offer, Overtaken, RemoteSource
from raftmq.broker.backup.protocol import READ_BYTES_MAX
from raftmq.broker.tables.snapshot import DIRECTORY, FILES
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.bodies import topic_offsets
from raftmq.client.errors import ClientError
from raftmq.client.instance import InstanceConfig, successful
from raftmq.client.route import BrokerData
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.tls import Renewed
from raftmq.spark.layout import CHECKPOINT_CONFIRM_AT
from raftmq.spark.options import Connection

from .cluster_info import RAFT, Subject
from .system_topics import MULTI_QUEUE_PREFIX

REQUESTS_AT_ONCE_MAX = 32
CHECKPOINT_BYTES = 4096
_NODE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")  # it becomes a directory's name
_FAILURES = (BackupError, Overtaken, RemotingError)


class NotAudited(Exception):
    """Running brokers cannot be audited; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The stores copied from a group's replicas, and its `leader`'s address. `unseen` lists the
    other replicas with reasons. `ends` has the queue ends at the leader before its marker frame,
    `retention_hours` is the leader's."""

    stores: Mapping[str, str]
    subject: Subject
    unseen: tuple[str, ...]
    leader: str
    ends: Mapping[tuple[str, int], int]
    retention_hours: int


@dataclass(frozen=True, slots=True)
class _Replica:
    """A replica, its offer of a copy, and the directory of its store."""

    source: RemoteSource
    offer: Offer
    store: Path


def admin_of(connection: Connection) -> Admin:
    config = InstanceConfig(credentials=connection.credentials, tls=connection.tls)
    return Admin(connection.namesrv, instance_config=config)


async def copied_stores(
    connection: Connection, group: BrokerData, root: Path, bytes_per_s: int, start: int
) -> Copied | None:
    """Copy tables, and logs from `start` on, of a Raft group's replicas below `root`. Return None
    if it is no Raft group. Raises NotAudited, ClientError."""
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
    tls = connection.tls
    client = RemotingClient(
        credentials=connection.credentials,
        tls=None if tls is None else await asyncio.to_thread(Renewed, tls, "client"),
    )
    sources = [
        RemoteSource(client, each, bytes_per_s=bytes_per_s, confirm=each == leader)
        for each in (leader, *sorted({*group.addresses.values()} - {leader}))
    ]
    try:
        replicas, unseen = await _started(sources, root)
        end = min(each.offer.end for each in replicas)  # the end of the latest tables
        _check_free_space(root, replicas, end)
        await asyncio.gather(*(_read(each, max(start, _start(each)), end) for each in replicas))
    except _FAILURES as error:
        raise NotAudited(f"{group.broker_name}: {error}") from error
    finally:
        for source in sources:
            await source.end()
        await client.close()
    members = frozenset(
        member.rpartition("-")[0] for each in replicas for member in each.offer.facts.members
    )
    directories = {each.offer.facts.node: str(each.store) for each in replicas}
    nodes = {name: name for name in directories}
    subject = Subject(RAFT, group.broker_name, members, nodes, "its replicas", queues=False)
    return Copied(directories, subject, tuple(unseen), leader, ends, retention_hours)


async def _started(sources: Sequence[RemoteSource], root: Path) -> tuple[list[_Replica], list[str]]:
    """Write the replicas' tables below `root`. Return the replicas that offer their log as far as
    every table, and messages about the rest. The leader's source is the first. Raises
    BackupError, Overtaken."""
    first = await sources[0].start(0)
    seen = [_Replica(sources[0], first, _written(first, root))]
    unseen = []

    async def start(source: RemoteSource, index: int) -> Offer | None:
        try:
            return await source.start(index)
        except _FAILURES as error:
            unseen.append(f"the replica at {source.address}: {error}")
            return None

    offers = await asyncio.gather(*(start(each, first.facts.index) for each in sources[1:]))
    for source, offer in zip(sources[1:], offers, strict=True):
        if offer is not None:
            seen.append(_Replica(source, offer, _written(offer, root)))
    last = max(each.offer.facts.index for each in seen)
    replicas = []
    for replica in seen:
        offer = replica.offer
        if offer.facts.index < last:
            offer = await start(replica.source, last)
        if offer is not None:
            replicas.append(_Replica(replica.source, offer, replica.store))
    return sorted(replicas, key=lambda each: each.offer.facts.node), unseen


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


def _start(replica: _Replica) -> int:
    return replica.offer.snapshot.position


def _check_free_space(root: Path, replicas: Sequence[_Replica], end: int) -> None:
    needed = sum(end - _start(each) for each in replicas)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise NotAudited(
            f"{root} has {free >> 20} MiB free, and the replicas' logs have {needed >> 20}: "
            "name a directory with room (--scratch)"
        )


async def _read(replica: _Replica, start: int, end: int) -> None:
    """Copy a range of a replica's log to its store. Raises BackupError, Overtaken."""
    log, segment_bytes = replica.store / "commitlog", replica.offer.snapshot.segment_size_bytes
    log.mkdir()
    position = start
    while position < end:
        base = position - position % segment_bytes
        size = min(READ_BYTES_MAX, base + segment_bytes - position, end - position)
        data = await replica.source.read(position, size)
        await asyncio.to_thread(_append, log / f"{max(base, start):020d}", data)
        position += len(data)
    checkpoint = bytearray(CHECKPOINT_BYTES)
    checkpoint[CHECKPOINT_CONFIRM_AT : CHECKPOINT_CONFIRM_AT + 8] = end.to_bytes(8, "big")
    (replica.store / "checkpoint").write_bytes(checkpoint)


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


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
