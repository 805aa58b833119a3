"""Copies of the master's tables on a classic slave, every `slaveSyncMetadataIntervalMs`.

They are topics (21), consumer offsets, pops and queue ends (43), delay progress (45) and groups
(201). Changes since the last round are lost with the master, as in Apache's classic mode;
`last_sync_ms` is the time of the copy. An Apache master's progress of timer messages is in its
checkpoint (60). Topics and groups become the master's. Its offsets override the slave's own, which
consumers may have committed while the master was away. Pops (broker.tables.pop_sync) and queue ends
(broker.tables.queue_ends_sync) are copied at the same moment as the offsets. Offsets, pops, ends
and progress are applied once this log has the messages that they refer to, because the log arrives
over a different connection.

Tables are loaded only from the master that this slave follows, since a master that lost its log has
different tables. So the link must be up during a whole round, and the master must first confirm
that its log is no shorter.

`LogComparison` asks the same master whether this slave's log is a prefix of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.tls import Renewed
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.consumequeue.consumequeue import ConsumeQueueStore

from ...errors import StateError
from ...tables import pop_sync as popcopy
from ...tables import queue_ends_sync as queueends
from ...tables.config_files import ConfigFiles, refused_text
from ...tables.state import BrokerState
from ...tables.timer_wheel import NOTHING, Progress, progress_of
from .slave import SECOND_BYTE, LogsDiffer

log = logging.getLogger("raftmq.broker.ha.metadata")

T = TypeVar("T")
REQUEST_TIMEOUT_MS = 3_000
RETRY_MS = 1_000  # after a failed round
REACH_S = 5.0  # limit of a round's wait for the log
NO_RECORD = "can not find message by"  # SYSTEM_ERROR alone says no more


class MetadataError(RemotingError):
    """An unexpected answer of the master."""


class MasterClient:
    """Sends requests to the master. `address()` is "" while it is unknown."""

    def __init__(
        self,
        address: Callable[[], str],
        credentials: Credentials | None = None,
        tls: Renewed | None = None,
    ) -> None:
        self.address = address
        self._client = RemotingClient(
            connect_timeout_ms=REQUEST_TIMEOUT_MS, credentials=credentials, tls=tls
        )

    async def ask(self, code: RequestCode, ext: dict[str, str] | None = None) -> RemotingCommand:
        """Return the successful answer. Raises RemotingError."""
        request = RemotingCommand.request(code, ext)
        response = await self._client.invoke(self.address(), request, REQUEST_TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            raise MetadataError(f"{code.name}: {response.remark}", code=response.code)
        return response

    async def close(self) -> None:
        await self._client.close()


class MetadataSync:
    """Copies the tables in a task, between one `start` and one `stop`."""

    def __init__(
        self,
        master: MasterClient,
        state: BrokerState,
        queues: ConsumeQueueStore,
        files: ConfigFiles,
        *,
        interval_ms: int,
        wall_ms: Callable[[], int],
        on_topics: Callable[[], None],
        master_has_all: Callable[[], Awaitable[None]],
        log_has_all: Callable[[], Awaitable[None]],
    ) -> None:
        """`master_has_all()` returns once the master's log has this log, `log_has_all()` once this
        log has the master's current log. Both may raise RemotingError."""
        self.last_sync_ms = 0  # wall clock, or 0
        self.rounds = 0
        self._master = master
        self._state = state
        self._queues = queues
        self._files = files
        self._interval_ms = interval_ms
        self._wall_ms = wall_ms
        self._on_topics = on_topics
        self._master_has_all = master_has_all
        self._log_has_all = log_has_all
        self._link: object | None = None  # represents the link that is up
        self._refused: dict[str, str] = {}  # entries of the master's tables in the last round
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def link_changed(self, up: bool) -> None:
        """Start to sync after a new link to the master, or stop after its end."""
        self._link = object() if up else None
        if up:
            self._due.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        failing = False
        while True:
            wait_ms = RETRY_MS
            if self._link is not None and self._master.address():
                try:
                    await self.sync()
                    wait_ms, failing = self._interval_ms, False
                except (RemotingError, StateError, OSError) as error:
                    level = logging.DEBUG if failing else logging.WARNING
                    log.log(
                        level, "metadata_not_synced master=%s: %s", self._master.address(), error
                    )
                    failing = True
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._due.wait()
            except TimeoutError:
                continue  # the next round is due
            finally:
                self._due.clear()

    async def sync(self) -> None:
        """Do a round. Raises RemotingError, StateError, OSError; loaded tables stay."""
        ask, state, link = self._master.ask, self._state, self._link
        before = dict(state.topics.entries), dict(state.topics.starts)
        refused: dict[str, str] = {}
        # Groups are requested before the topics and loaded after them. So every group has its retry
        # topic here, which its consumers would otherwise request in vain without a master.
        groups = _object(await ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        topics = _object(await ask(RequestCode.GET_ALL_TOPIC_CONFIG))
        await self._master_has_all()
        self._check(link)
        _load(topics, lambda: state.topics.load(topics, state.topics.applied_index, refused))
        if (state.topics.entries, state.topics.starts) != before:
            self._on_topics()
        _load(groups, lambda: state.groups.load(groups, state.groups.applied_index, refused))
        offsets = _object(await ask(RequestCode.GET_ALL_CONSUMER_OFFSET))
        delays = _object(await ask(RequestCode.GET_ALL_DELAY_OFFSET))
        if not delays.get("timer"):
            delays["timer"] = (await self._timer_progress())._asdict()
        ends = _load(offsets, lambda: queueends.decode(offsets))
        await self._log_has_all()
        self._check(link)
        await queueends.apply_ends(self._queues, ends)
        self._check(link)
        _load(offsets, lambda: popcopy.apply_answer(state.offsets, state.pops, offsets, refused))
        _load(delays, lambda: state.delays.load(delays, state.delays.applied_index, refused))
        self._warn(refused)
        await self._files.saved()
        self.last_sync_ms = self._wall_ms()
        self.rounds += 1

    def _warn(self, refused: dict[str, str]) -> None:
        """Log the omitted entries of the master's tables, once."""
        if refused and refused != self._refused:
            path, text = self._master.address(), refused_text(refused)
            log.warning("entries_refused path=%s count=%d: %s", path, len(refused), text)
        self._refused = refused

    def _check(self, link: object | None) -> None:
        """Raise MetadataError if that link has ended."""
        if link is None or link is not self._link:
            raise MetadataError("the link to the master has ended: its tables are not taken")

    async def _timer_progress(self) -> Progress:
        """Return the progress in the master's checkpoint, or this slave's if it has none. Our
        masters have none, nor a `timer` before the first delivery. Raises RemotingError."""
        known = self._state.delays.timer
        try:
            answer = await self._master.ask(RequestCode.GET_TIMER_CHECK_POINT)
        except MetadataError:
            return known
        progress = progress_of(answer.body)
        return known if progress == NOTHING else progress


class LogComparison:
    def __init__(
        self,
        master: MasterClient,
        commitlog: CommitLog,
        last_record: Callable[[], int | None],
        *,
        address_follows: Callable[[], bool] = lambda: True,
    ) -> None:
        """`last_record()` returns the start of this log's last record, or None. `address_follows()`
        returns whether name servers will send the master's address."""
        self._address_follows = address_follows
        self.master_end = 0  # the master's log end at the last request
        self.own_from: int | None = None  # the start of its own writes; None for Apache's
        self.log_start = ""  # the part of the master's log that this log does not have, or ""
        self._master_start = 0
        self._master = master
        self._commitlog = commitlog
        self._last_record = last_record
        self._grew = asyncio.Event()

    async def poll(self) -> None:
        """Request the end of the master's log. Raises RemotingError."""
        table = _object(await self._master.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).get("table")
        try:
            self.master_end = int((table or {})["commitLogMaxOffset"])
            self._master_start = int((table or {})["commitLogMinOffset"])
            own_from = (table or {}).get("masterFromOffset")
            self.own_from = None if own_from is None else int(own_from)
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"runtime info without commitLogMaxOffset: {error!r}") from error
        first, end = self._commitlog.min_offset, self._commitlog.max_offset
        missing = f"the log begins at {first}, the master's at {self._master_start}"
        self.log_start = missing if end and first > self._master_start else ""

    async def covered(self) -> None:
        """Return if the master's log is no shorter than this log. Raises RemotingError."""
        end = self._commitlog.max_offset  # this log may grow during the request
        await self.poll()
        if self.master_end < end:
            text = f"this log has {end} bytes, the master's has {self.master_end}"
            raise MetadataError(f"{text}: its tables are not taken")

    async def reach(self) -> None:
        """Return once this log has the master's. Raises RemotingError, also after REACH_S."""
        await self.covered()
        end = self.master_end
        try:
            async with asyncio.timeout(REACH_S):
                while self._commitlog.max_offset < end:
                    self._grew.clear()
                    await self._grew.wait()
        except TimeoutError:
            behind = end - self._commitlog.max_offset
            text = f"the log is {behind} bytes behind: offsets and progress are taken after them"
            raise MetadataError(text) from None

    def grew(self) -> None:
        self._grew.set()

    async def first_request(self) -> int:
        """Return the offset that an empty log requests; 0 leaves the choice to the master. Raises
        RemotingError.

        Apache's master sends only its last segment after a request of 0, and everything from any
        different offset on. Its log is requested from its first byte, or from the second if the
        first has offset 0 (`SECOND_BYTE` in broker.replication.ha.slave)."""
        if not self._master.address():
            if self._address_follows():
                raise MetadataError(
                    "the master's log cannot be requested yet: no name server has said where the "
                    "master takes requests"
                )
            return 0
        await self.poll()
        return 0 if self.own_from is not None else max(SECOND_BYTE, self._master_start)

    async def verify(self) -> None:
        """Return if this log is a prefix of the master's, by its length and last record. Raises
        LogsDiffer, or RemotingError if the master cannot be asked."""
        if not self._commitlog.max_offset:
            return  # a prefix of any log
        if not self._master.address():
            raise MetadataError(
                "the logs cannot be compared yet: masterAddress is not set, and no name server has "
                "said where the master takes requests"
            )
        await self.poll()
        end = self._commitlog.max_offset
        if end > self.master_end:
            raise LogsDiffer(
                f"this log has {end} bytes, the master's has {self.master_end}: the master lost "
                "its tail, or it is another log"
            )
        if end < self._master_start:
            raise LogsDiffer(
                f"this log ends at {end}, the master's begins at {self._master_start}: what lies "
                "between is gone"
            )
        position = self._last_record()
        if position is None or position < self._master_start:
            return  # deleted by the master; its next bytes decide
        mine = self._commitlog.record_at(position)
        try:
            answer = await self._master.ask(
                RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)}
            )
        except MetadataError as error:
            if NO_RECORD not in str(error):
                raise
            raise LogsDiffer(
                f"the master has no record at {position}, where this log's last one stands "
                f"({error})"
            ) from error
        if mine is None or bytes(answer.body) != mine:
            raise LogsDiffer(
                f"the master's record at {position} is another one than this log's last: the "
                "logs have parted"
            )


def _object(response: RemotingCommand) -> dict[str, Any]:
    return loads_object(response.body)


def _load(value: Mapping[str, Any], load: Callable[[], T]) -> T:
    try:
        return load()
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise MetadataError(f"the master's table is no table: {error!r}") from error
