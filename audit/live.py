"""Audits brokers that run: each replica of a Raft group is read at one commit index.

A leader marks a frame so that all that was acknowledged until then is at or below it; every replica
is then read up to the smallest end that all of them have reached, by request 30003, as a backup
reads them: from committed frames only, while sends go on. The bytes of each replica become a store
of their own in a scratch directory, and are judged there like the stores of stopped brokers. What
can be asked only of running brokers is asked as well: whether their queues end where the log says,
and whether groups' offsets lie within them.

Brokers in classic mode, and Apache's, cannot be read so: their topics are pulled, and judged by
what pulls tell (`audit.pulled`).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from raftmq.audit.acknowledged import read_acknowledged
from raftmq.audit.history import HistoryUnfit
from raftmq.audit.job import run
from raftmq.audit.pulled import pulled_report
from raftmq.audit.report import AuditReport, CheckResult, Offender
from raftmq.audit.since import TAIL_BYTES, Kept
from raftmq.audit.subject import RAFT, Subject
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.bodies import consume_stats, topic_offsets
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.instance import InstanceConfig, successful
from raftmq.client.route import BrokerData
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fastjson import loads_object
from raftmq.spark.options import Connection

READ_BYTES_MAX = 1 << 20  # as the request allows
BYTES_PER_S = 32 << 20  # of each replica: a quarter of what a slow disk reads
WAIT_S = 30.0  # for a leader, and for replicas to apply what it marked
RETRY_S = 0.2
TIMEOUT_MS = 20_000
ASKED_AT_ONCE_MAX = 32
LMQ_PREFIX = "%LMQ%"  # queues of messages that stand in other topics
CHECKPOINT_BYTES = 4096
CONFIRM_AT = 32


class NotAudited(Exception):
    """Running brokers that cannot be audited; the text says why."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of which a copy can be read: its log in [begin, end), in `session` at `address`.
    `members`: the ids of the group's members as it knows them."""

    node: str
    address: str
    session: str
    begin: int
    end: int
    segment_bytes: int
    members: frozenset[str]


def audit_cluster(
    spark: SparkSession,
    connection: Connection,
    *,
    group: str | None = None,
    history: str | None = None,
    topic: str = "",
    acknowledged: str | None = None,
    bytes_per_s: int = BYTES_PER_S,
    scratch: Path | None = None,
    progress: Callable[[str], None] = lambda what: None,
    results: Path | None = None,
    incremental: bool = False,
) -> list[AuditReport]:
    """Audit every broker group of a running cluster, or `group` alone; return a report of each.

    `scratch` must have room for the logs of one group's replicas; it is emptied again.
    `progress(what)` is told what is done next. `results`: a directory for what the next audit has
    to know of this one; `incremental`: of Raft groups only that is read what they hold since the
    audit before that noted its end there (audit.since). Raises NotAudited, ClientError, StoreError,
    HistoryUnfit, ValueError, OSError."""
    if incremental and (results is None or history is not None):
        raise ValueError("an incremental audit needs the results before, and has no history")
    groups = asyncio.run(_groups(connection, group))
    if acknowledged is not None and len(groups) > 1:
        nameless = read_acknowledged(spark, acknowledged).where("broker is null").count()
        if nameless:
            raise HistoryUnfit(
                f"{acknowledged} has {nameless} rows without broker, and there are several groups"
            )
    reports = []
    for name, replicas in sorted(groups.items()):
        with tempfile.TemporaryDirectory(prefix="mqaudit-", dir=scratch) as directory:
            root = Path(directory)
            progress(f"{name}: copying the replicas' logs")
            kept = None if results is None else Kept(results, name)
            since = kept.ended() if kept and incremental else None
            start = max(0, since.position - TAIL_BYTES) if since else 0
            copied = asyncio.run(_copy(connection, replicas, root, bytes_per_s, start))
            if copied is None:
                topics = asyncio.run(_topics(connection, replicas))
                progress(f"{name}: pulling {len(topics)} topics")
                report = pulled_report(spark, connection, name, topics)
                if history is not None or acknowledged is not None:
                    unasked = "what was sent: only the logs of Raft groups are compared with that"
                    report = replace(report, not_judged=(unasked, *report.not_judged))
                reports.append(report)
                continue
            (root / "tables").mkdir()
            report = run(
                *(spark, copied.stores, history, topic),
                *(root / "tables", copied.subject, acknowledged),
                progress=partial(_told_of, progress, name),
                kept=kept,
                incremental=incremental,
                shown=copied.ends,
            )
            offsets = asyncio.run(_offsets_check(connection, copied.leader))
            reports.append(
                replace(
                    report,
                    checks=(*report.checks, offsets),
                    not_judged=(*copied.unseen, *report.not_judged),
                )
            )
    return reports


def _told_of(progress: Callable[[str], None], group: str, what: str) -> None:
    progress(f"{group}: {what}")


@dataclass(frozen=True, slots=True)
class _Copied:
    """The stores that one group's replicas became. `unseen`: replicas that are not among them, and
    why. `leader`: its address. `ends`: where queues ended there before it marked a frame."""

    stores: Mapping[str, str]
    subject: Subject
    unseen: tuple[str, ...]
    leader: str
    ends: Mapping[tuple[str, int], int]


async def _groups(connection: Connection, group: str | None) -> dict[str, BrokerData]:
    async with _admin(connection) as admin:
        found = dict((await admin.cluster.info()).brokers)
    if group is not None and group not in found:
        raise NotAudited(f"there is no broker group {group}; there are {', '.join(sorted(found))}")
    return found if group is None else {group: found[group]}


async def _topics(connection: Connection, group: BrokerData) -> list[str]:
    """Return the topics of a master. Raises NotAudited, ClientError."""
    if not group.leader:
        raise NotAudited(f"{group.broker_name} has no master")
    async with _admin(connection) as admin:
        return sorted(await admin.topic.configs(group.leader))


def _admin(connection: Connection) -> Admin:
    config = InstanceConfig(credentials=connection.credentials, tls=connection.tls)
    return Admin(connection.namesrv, instance_config=config)


# -- copying ---------------------------------------------------------------------------------------


async def _copy(
    connection: Connection, group: BrokerData, root: Path, bytes_per_s: int, start: int
) -> _Copied | None:
    """Copy the logs of a Raft group's replicas from `start` on; None if it is none. Raises
    NotAudited, ClientError."""
    async with _admin(connection) as admin:
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
        begun = await asyncio.gather(*(_begin(admin, each, index) for each in addresses))
        replicas = [
            replace(each, begin=max(each.begin, start))
            for each in begun
            if isinstance(each, Replica)
        ]
        unseen = tuple(each for each in begun if isinstance(each, str))
        if not replicas:
            raise NotAudited("; ".join(unseen))
        end = min(each.end for each in replicas)
        stores = {each.node: root / each.node / "store" for each in replicas}
        try:
            _check_room(root, replicas, end)
            await asyncio.gather(
                *(_read(admin, each, end, stores[each.node], bytes_per_s) for each in replicas)
            )
        finally:
            for each in replicas:
                await _let_go(admin, each)
    members = frozenset().union(*(each.members for each in replicas))
    subject = Subject(
        RAFT, group.broker_name, members, {n: n for n in stores}, "its replicas", queues=False
    )
    directories = {name: str(path) for name, path in stores.items()}
    return _Copied(directories, subject, unseen, leader, ends)


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
    return Replica(
        node=str(facts["node"]),
        address=address,
        session=ext["session"],
        begin=int(facts["begin"]),
        end=int(ext["end"]),
        segment_bytes=int(facts["settings"]["mappedFileSizeCommitLog"]),
        members=frozenset(str(each).partition("-")[0] for each in facts["members"]),
    )


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


# -- what is asked of running brokers --------------------------------------------------------------


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


async def _offsets_check(connection: Connection, leader: str) -> CheckResult:
    """Check that no group has committed an offset behind its queue's end."""
    offenders: list[Offender] = []
    room = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
    async with _admin(connection) as admin:

        async def ask(group: str) -> None:
            async with room:
                ext = {"consumerGroup": group}
                answer = await admin.ask(leader, RequestCode.GET_CONSUME_STATS, ext)
            for queue, progress in consume_stats(loads_object(answer.body)).queues.items():
                if progress.behind < 0:
                    place = {"topic": queue.topic, "queue_id": queue.queue_id}
                    ends = {"offset": progress.consumer_offset, "end": progress.broker_offset}
                    offenders.append({"group": group} | place | ends)

        await asyncio.gather(*(ask(name) for name in await admin.group.configs(leader)))
    title = "offsets that groups have committed behind their queue's end"
    return CheckResult.of_faults("group_offsets", title, offenders)
