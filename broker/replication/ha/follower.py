"""A slave's metadata, and its log comparison before each link.

Every registration returns the addresses from a name server; `haMasterAddress` overrides them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.tls import Renewed
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.consumequeue.consumequeue import ConsumeQueueStore
from raftmq.store.record import walk_records

from ...tables.config_files import ConfigFiles
from ...tables.state import BrokerState
from .metadata import LogComparison, MasterClient, MetadataSync

_WINDOW_BYTES = 4 << 20


class Follower:
    def __init__(
        self,
        commitlog: CommitLog,
        state: BrokerState,
        queues: ConsumeQueueStore,
        files: ConfigFiles,
        pool: Executor,
        *,
        master_address: Callable[[], str],
        interval_ms: int,
        wall_ms: Callable[[], int],
        on_topics: Callable[[], None],
        address_follows: Callable[[], bool],
        credentials: Credentials | None = None,
        tls: Renewed | None = None,
    ) -> None:
        """`master_address()` is the master's request address, or "". `address_follows()` returns
        whether name servers will send it."""
        self._commitlog = commitlog
        self._pool = pool
        self._client = MasterClient(master_address, credentials, tls)
        self.last_record: int | None = None  # start of the log's last record
        self._known = False  # whether last_record is up to date
        self.comparison = LogComparison(
            self._client, commitlog, lambda: self.last_record, address_follows=address_follows
        )
        self.metadata = MetadataSync(
            self._client,
            state,
            queues,
            files,
            interval_ms=interval_ms,
            wall_ms=wall_ms,
            on_topics=on_topics,
            master_has_all=self.comparison.covered,
            log_has_all=self.comparison.reach,
        )

    def start(self) -> None:
        self.metadata.start()

    async def stop(self) -> None:
        await self.metadata.stop()
        await self._client.close()

    def appended(self, last_record: int) -> None:
        self.last_record = last_record
        self._known = True
        self.comparison.grew()

    async def verify(self) -> int:
        """Compare the end of this log with the master's log; return the offset to request, 0 for an
        empty log if the master decides. Raises LogsDiffer, RemotingError."""
        if not self._known:
            loop = asyncio.get_running_loop()
            self.last_record = await loop.run_in_executor(
                self._pool, last_record_of, self._commitlog
            )
            self._known = True
        await self.comparison.verify()
        return self._commitlog.max_offset or await self.comparison.first_request()


def last_record_of(commitlog: CommitLog) -> int | None:
    """Return the start of the last record of a classic log, or None. Blocks while it reads its
    segment, to which nothing may be appended during the call."""
    for segment in reversed(commitlog.segments()):
        position, last = segment.start, None
        while position < min(segment.end, commitlog.max_offset):
            data = commitlog.read(position, _WINDOW_BYTES)
            walk = walk_records(data, position, check_body=False)
            for offset, _ in walk:
                last = position + offset
            if walk.end == 0:
                record = commitlog.record_at(position)  # longer than the window, or the end
                if record is None:
                    break
                last, walk.end = position, len(record)
            position += walk.end
        if last is not None:
            return last
    return None
