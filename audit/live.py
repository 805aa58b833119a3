"""Audits running brokers; each replica of a Raft group is read at the same commit index.

audit.read.live_stores opens each replica as a store, which is judged like the store of a stopped
broker. An additional check compares the queue ends that consumers see with the log.

Brokers in classic mode, and Apache's, have no such commit index. Their topics are pulled and judged
(`audit.pull_audit`).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from raftmq.broker.backup.manifest import BackupError
from raftmq.client.errors import ClientError
from raftmq.client.route import BrokerData
from raftmq.remoting.errors import RemotingError
from raftmq.spark.options import Connection

from .checks.acknowledged import count_acknowledged, refuse_unjudged
from .engine.choice import EngineOptions, Engines
from .engine.frames import EngineFailed
from .pull_audit import pulled_report
from .read.history import HistoryUnfit
from .read.live_stores import NotAudited, admin_of, is_raft, live_group
from .read.replica import LOST, ReplicaLost
from .read.staging import directory_for_tables
from .read.store_files import StoreError
from .read.tables import size_bytes_of
from .report.report import AuditReport
from .run import AuditOptions, run

DEFAULTS = AuditOptions()
BYTES_PER_S = 32 << 20  # per replica; a quarter of a slow disk's read rate


def audit_cluster(
    connection: Connection,
    options: AuditOptions = DEFAULTS,
    *,
    engines: Engines | None = None,
    group: str | None = None,
    bytes_per_s: int = BYTES_PER_S,
    on_report: Callable[[AuditReport], None] = lambda report: None,
) -> list[AuditReport]:
    """Audit every broker group of a running cluster, or `group` alone; return a report of each.

    `options.incremental` only affects Raft groups. `on_report(report)` receives each report at
    once, even if this function raises for a different group later. Raises NotAudited, ClientError,
    StoreError, HistoryUnfit, JavaNotFound, EngineFailed, ValueError, OSError.
    """
    if engines is None:
        with Engines(EngineOptions(scratch=options.scratch)) as started:
            return audit_cluster(
                *(connection, options),
                engines=started,
                group=group,
                bytes_per_s=bytes_per_s,
                on_report=on_report,
            )
    options.check()
    groups = asyncio.run(_groups(connection, group))
    acknowledged, count = options.acknowledged, 0
    if options.history is not None or acknowledged is not None:
        compared = asyncio.run(_raft_groups(connection, groups))
        if not compared:
            raise HistoryUnfit(
                f"what was sent is compared with the logs of Raft groups, and {', '.join(groups)} "
                "are none: stop the brokers, and name their stores"
            )
    if acknowledged is not None:
        engine, every = engines.of(0, acknowledged), group is None
        counts = count_acknowledged(engine, acknowledged)
        count = sum(counts.values())
        refuse_unjudged(counts, acknowledged, groups, every=every)
        what = "are no Raft groups, whose logs alone are compared"
        refuse_unjudged(counts, acknowledged, compared, every=every, what=what)
    reports, refused = [], []
    for name, replicas in sorted(groups.items()):
        try:
            given = engines, connection, name, replicas, options, bytes_per_s, count
            report = _Group(*given).report()
        except NotAudited as error:
            refused.append(str(error))
        except (ClientError, RemotingError, StoreError) as error:
            refused.append(f"{name}: {error}")
        else:
            reports.append(report)
            on_report(report)
    if refused:
        raise NotAudited("; ".join(refused))
    return reports


@dataclass(frozen=True, slots=True)
class _Group:
    """A broker group to audit, by `options.acknowledged` with `acknowledged_count` rows, if any."""

    engines: Engines
    connection: Connection
    name: str
    replicas: BrokerData
    options: AuditOptions
    bytes_per_s: int
    acknowledged_count: int

    def report(self) -> AuditReport:
        """Audit the group, again if a replica stops answering, which is then down. Raises
        NotAudited, ClientError, StoreError, EngineFailed."""
        try:
            return self._report()
        except (ReplicaLost, EngineFailed) as error:
            if LOST not in str(error):
                raise
            self._progress(f"{error}: the audit begins again")
        except BackupError as error:
            raise NotAudited(f"{self.name}: {error}") from error
        try:
            return self._report()
        except (ReplicaLost, BackupError) as error:
            raise NotAudited(f"{self.name}: {error}") from error

    def _report(self) -> AuditReport:
        options = replace(self.options, progress=self._progress)
        with (
            tempfile.TemporaryDirectory(prefix="mqaudit-", dir=options.scratch) as directory,
            live_group(self.connection, self.replicas, Path(directory), self.bytes_per_s) as group,
        ):
            if group is None:
                return self._pulled()
            if options.retention_hours is None:
                options = replace(options, retention_hours=group.retention_hours)
            stores, staging = group.stores, options.staging
            engine = self.engines.of(size_bytes_of(stores), options.acknowledged, staging)
            if staging is None:
                engine = engine.without_files()
            with directory_for_tables(staging, Path(directory)) as table_directory:
                report = run(
                    *(engine, stores, group.subject, options, table_directory, group.ends),
                    self.acknowledged_count,
                )
            return replace(report, not_judged=(*group.unseen, *report.not_judged))

    def _pulled(self) -> AuditReport:
        """Audit a group that is no Raft group."""
        topics = asyncio.run(_topics(self.connection, self.replicas))
        self._progress(f"pulling {len(topics)} topics")
        report = pulled_report(self.engines.of(0), self.connection, self.name, topics)
        if self.options.history is not None or self.options.acknowledged is not None:
            unasked = "what was sent: only the logs of Raft groups are compared with that"
            report = replace(report, not_judged=(unasked, *report.not_judged))
        return report

    def _progress(self, what: str) -> None:
        self.options.progress(f"{self.name}: {what}")


async def _groups(connection: Connection, group: str | None) -> dict[str, BrokerData]:
    async with admin_of(connection) as admin:
        brokers = dict((await admin.cluster.info()).brokers)
    if not brokers:
        raise NotAudited(f"the name server {connection.namesrv} knows no broker")
    if group is not None and group not in brokers:
        raise NotAudited(
            f"there is no broker group {group}; there are {', '.join(sorted(brokers))}"
        )
    return brokers if group is None else {group: brokers[group]}


async def _raft_groups(connection: Connection, groups: Mapping[str, BrokerData]) -> set[str]:
    """Return the names of Raft groups and unreachable groups. Raises ClientError."""
    async with admin_of(connection) as admin:

        async def may_be(replicas: BrokerData) -> bool:
            try:
                return await is_raft(admin, replicas)
            except (ClientError, NotAudited):
                return True

        return {name for name, replicas in groups.items() if await may_be(replicas)}


async def _topics(connection: Connection, group: BrokerData) -> list[str]:
    """Return the topics of a master. Raises NotAudited, ClientError."""
    if not group.leader:
        raise NotAudited(f"{group.broker_name} has no master")
    async with admin_of(connection) as admin:
        return sorted(await admin.topic.configs(group.leader))
