"""Copies the replicas of a running Raft group, so that they are judged like stores of stopped ones.

The leader marks a frame so that all that was acknowledged until then is at or below it. By request
30003, as a backup does, each replica is asked for a copy of its tables as they were at a moment
behind that frame, and then for its log up to the frame of the last of these copies: so the log
leads to every table, and all of it is committed. Sends go on. What stands in a scratch directory
afterwards is, for each replica, commitlog/, config/ and a checkpoint.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from raftmq.audit.subject import RAFT, Subject
from raftmq.broker.tables.snapshot import DIRECTORY, FILES
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.bodies import topic_offsets
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.instance import InstanceConfig, successful
from raftmq.client.route import BrokerData
from raftmq.dledger.snapshotinstall import (
    GROUP_SNAPSHOT_BYTES_MAX,
    GroupSnapshotDamaged,
    decode_group_snapshot,
)
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fastjson import loads_object
from raftmq.spark.options import Connection

READ_BYTES_MAX = 1 << 20  # as the request allows
WAIT_S = 30.0  # for a leader, and for replicas to apply what it marked
RETRY_S = 0.2
TIMEOUT_MS = 20_000
ASKED_AT_ONCE_MAX = 32
LMQ_PREFIX = "%LMQ%"  # queues of messages that stand in other topics
CHECKPOINT_BYTES = 4096
CONFIRM_AT = 32
_NODE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")  # it names a directory here


class NotAudited(Exception):
    """Running brokers that cannot be audited; the text says why."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of which a copy can be read: its log in [begin, end), in `session` at `address`,
    and its tables as of frame `index`, in a parcel of `parcel_bytes`. `members`: the ids of the
    group's members as it knows them."""

    node: str
    address: str
    session: str
    begin: int
    end: int
    index: int
    parcel_bytes: int
    segment_bytes: int
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Copied:
    """The stores that one group's replicas became. `unseen`: replicas that are not among them, and
    why. `leader`: its address. `ends`: where queues ended there before it marked a frame."""

    stores: Mapping[str, str]
    subject: Subject
    unseen: tuple[str, ...]
    leader: str
    ends: Mapping[tuple[str, int], int]


def admin_of(connection: Connection) -> Admin:
    config = InstanceConfig(credentials=connection.credentials, tls=connection.tls)
    return Admin(connection.namesrv, instance_config=config)


async def copied_stores(
    connection: Connection, group: BrokerData, root: Path, bytes_per_s: int, start: int
) -> Copied | None:
    """Copy tables and logs, these from `start` on, of a Raft group's replicas below `root`; None if
    it is no Raft group. Raises NotAudited, ClientError."""
    async with admin_of(connection) as admin:
        if not await _is_raft(admin, group):
            return None
        leader = group.leader
        if not leader:
            raise NotAudited(
                f"{group.broker_name} has no leader: what it acknowledged is not known"
            )
        ends = await _queue_ends(admin, leader)
        index = await _mark(admin, leader)
        addresses = sorted(group.addresses.values())
        seen = await asyncio.gather(*(_tables(admin, each, index, root) for each in addresses))
        unseen = [each for each in seen if isinstance(each, str)]
        last = max(
            (each for each in seen if isinstance(each, Replica)),
            key=lambda each: each.index,
            default=None,
        )
        if last is None:
            raise NotAudited("; ".join(unseen))
        begun = await asyncio.gather(
            *(_begin(admin, each.address, last.index) for each in seen if isinstance(each, Replica))
        )
        unseen += [each for each in begun if isinstance(each, str)]
        replicas = [
            replace(each, begin=max(each.begin, start))
            for each in begun
            if isinstance(each, Replica)
        ]
        if not replicas:
            raise NotAudited("; ".join(unseen))
        stores = {each.node: root / each.node / "store" for each in replicas}
        try:
            _check_room(root, replicas, last.end)
            await asyncio.gather(
                *(_read(admin, each, last.end, stores[each.node], bytes_per_s) for each in replicas)
            )
        finally:
            for each in replicas:
                await _let_go(admin, each)
    members = frozenset().union(*(each.members for each in replicas))
    subject = Subject(
        RAFT, group.broker_name, members, {n: n for n in stores}, "its replicas", queues=False
    )
    directories = {name: str(path) for name, path in stores.items()}
    return Copied(directories, subject, tuple(unseen), leader, ends)


async def _is_raft(admin: Admin, group: BrokerData) -> bool:
    """Ask the group's brokers which kind they are. Raises ClientError if none answers."""
    complaint: ClientError | None = None
    for address in group.addresses.values():
        try:
            return "raftRole" in await admin.broker.runtime_info(address)
        except ClientError as error:
            complaint = error
    raise complaint or NotAudited(f"{group.broker_name} has no brokers")


async def _mark(admin: Admin, address: str) -> int:
    """Return a frame so that all that was acknowledged until now is at or below it."""
    answer = await _patiently(admin, address, {"op": "mark"})
    return int(loads_object(answer.body)["index"])


async def _begin(admin: Admin, address: str, index: int) -> Replica | str:
    """Begin to read a replica, once it has applied a frame; in words why that cannot be."""
    try:
        answer = await _patiently(admin, address, {"op": "begin", "atLeast": str(index)})
    except ClientError as error:
        return f"the replica at {address}: {error}"
    facts, ext = loads_object(answer.body), answer.ext or {}
    if not _NODE.fullmatch(str(facts["node"])):
        return f"the replica at {address} calls itself {facts['node']!r}"
    return Replica(
        node=str(facts["node"]),
        address=address,
        session=ext["session"],
        begin=int(facts["begin"]),
        end=int(ext["end"]),
        index=int(facts["index"]),
        parcel_bytes=int(ext["size"]),
        segment_bytes=int(facts["settings"]["mappedFileSizeCommitLog"]),
        members=frozenset(str(each).partition("-")[0] for each in facts["members"]),
    )


async def _tables(admin: Admin, address: str, index: int, root: Path) -> Replica | str:
    """Write a replica's tables, once they reflect a frame, as its store's config/; in words why
    that cannot be."""
    replica = await _begin(admin, address, index)
    if isinstance(replica, str):
        return replica
    try:
        if replica.parcel_bytes > GROUP_SNAPSHOT_BYTES_MAX:
            return f"the tables of {address} have {replica.parcel_bytes} bytes"
        parcel = b""
        while len(parcel) < replica.parcel_bytes:
            ext = {"op": "state", "session": replica.session, "offset": str(len(parcel))}
            answer = await _patiently(admin, address, ext)
            if not answer.body:
                return f"the tables of {address} end at {len(parcel)} of {replica.parcel_bytes}"
            parcel += answer.body
        tables = orjson.loads(decode_group_snapshot(parcel).state)["tables"]
    except ClientError as error:
        return f"the replica at {address}: {error}"
    except (GroupSnapshotDamaged, ValueError, KeyError, TypeError) as error:
        return f"the tables of {address} cannot be read: {error!r}"
    finally:
        await _let_go(admin, replica)
    directory = root / replica.node / "store" / DIRECTORY
    directory.mkdir(parents=True)
    for name in FILES:
        if name in tables:
            (directory / name).write_bytes(orjson.dumps(tables[name]))
    return replica


async def _patiently(admin: Admin, address: str, ext: dict[str, str]) -> RemotingCommand:
    """Ask until it succeeds, at a leader that an answer names if need be. Raises ClientError."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            answer = await admin.invoke(address, RequestCode.BACKUP, ext, b"", TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS:
                return answer
            refusal: ClientError = BrokerRefused(answer.code, answer.remark or "", address)
            if answer.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                raise refusal
            if ext["op"] == "mark":
                address = (answer.ext or {}).get("leaderAddr") or address
        except ClientError as error:
            if isinstance(error, BrokerRefused):
                raise
            refusal = error
        if time.monotonic() >= deadline:
            raise refusal
        await asyncio.sleep(RETRY_S)


def _check_room(root: Path, replicas: Sequence[Replica], end: int) -> None:
    needed = sum(end - each.begin for each in replicas)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise NotAudited(
            f"{root} has {free >> 20} MiB free, and the replicas' logs have {needed >> 20}: "
            "name a directory with room (--scratch)"
        )


async def _read(admin: Admin, replica: Replica, end: int, store: Path, bytes_per_s: int) -> None:
    """Write a replica's log up to `end` as a store's, at most so many bytes a second."""
    (store / "commitlog").mkdir(parents=True)
    position, begun = replica.begin, time.monotonic()
    while position < end:
        base = position - position % replica.segment_bytes
        segment_end = min(base + replica.segment_bytes, end)
        path = store / "commitlog" / f"{max(base, replica.begin):020d}"
        while position < segment_end:
            ext = {
                "op": "read",
                "session": replica.session,
                "position": str(position),
                "size": str(min(READ_BYTES_MAX, segment_end - position)),
            }
            answer = await _patiently(admin, replica.address, ext)
            if not answer.body:
                raise NotAudited(f"{replica.address} has nothing at {position}")
            await asyncio.to_thread(_append, path, answer.body)
            position += len(answer.body)
            ahead_s = (position - replica.begin) / bytes_per_s - (time.monotonic() - begun)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
    checkpoint = bytearray(CHECKPOINT_BYTES)
    checkpoint[CONFIRM_AT : CONFIRM_AT + 8] = end.to_bytes(8, "big")
    (store / "checkpoint").write_bytes(checkpoint)


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


async def _let_go(admin: Admin, replica: Replica) -> None:
    try:
        ext = {"op": "end", "session": replica.session}
        await admin.invoke(replica.address, RequestCode.BACKUP, ext, b"", TIMEOUT_MS)
    except ClientError:
        pass  # it forgets a silent one after a while


async def _queue_ends(admin: Admin, leader: str) -> dict[tuple[str, int], int]:
    """Return where the queues end at a leader, by topic and number; not of empty ones."""
    room, found = asyncio.Semaphore(ASKED_AT_ONCE_MAX), {}

    async def ask(topic: str) -> None:
        async with room:
            answer = await admin.invoke(leader, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return  # the template of topics, or deleted just now
        for queue, offsets in topic_offsets(loads_object(successful(answer, leader).body)).items():
            if offsets.max_offset > offsets.min_offset:
                found[topic, queue.queue_id] = offsets.max_offset

    topics = await admin.topic.configs(leader)
    await asyncio.gather(*(ask(name) for name in topics if not name.startswith(LMQ_PREFIX)))
    return found
