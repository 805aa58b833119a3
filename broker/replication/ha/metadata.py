"""The tables that a classic slave copies from its master: topics (21), consumer offsets, popped
messages and ends of queues (43), delay progress (45) and subscription groups (201), every
`slaveSyncMetadataIntervalMs`.

Changes on the master since the last round are lost with it: that is the classic design, and
`last_sync_ms` says how old the copy is. An Apache master's delay progress says nothing of timer
messages: its check point (60) does. Topics and groups become the master's; its offsets win over the
slave's own, which consumers may have committed while the master was away. Popped messages are
copied with the offsets, as of one moment (broker.tables.pop_sync), and so are the ends of queues
that no message here tells of (broker.tables.queue_ends_sync). Offsets, pops, ends and progress are
taken once the log here has what they speak of, which comes by another connection: a master that was
this slave would else take for done what it cannot know to be done.

Nothing is taken but from a master whose log this slave follows: one that has lost its log, or has
another, has other tables, too. So the link has to be up from a round's beginning to each load, and
as it may be up for a while after its master's end, no table is loaded before the master has said
that its log is no shorter than this one.

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
from ...tables import timer_check as timercheck
from ...tables.config_files import ConfigFiles, refused_text
from ...tables.state import BrokerState
from ...tables.timer_wheel import NOTHING, Progress
from .slave import SECOND_BYTE, LogsDiffer

log = logging.getLogger("raftmq.broker.ha.metadata")

T = TypeVar("T")
REQUEST_TIMEOUT_MS = 3_000
RETRY_MS = 1_000  # after a round that failed
REACH_S = 5.0  # that a round waits for the log
NO_RECORD = "can not find message by"  # SYSTEM_ERROR says no more, here and at Apache's brokers


class MetadataError(RemotingError):
    """The master's answer is not what was asked for."""


class MasterClient:
    """Sends requests to the master. `address()` is "" while it is not known."""

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
    """Copies the tables in a task of its own: call `start` and `stop` once each."""

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
        """`master_has_all()` returns if the master's log has what is here, `log_has_all()` once
        the log here has what the master's has by now, too; may raise RemotingError."""
        self.last_sync_ms = 0  # wall clock; 0: never
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
        self._link: object | None = None  # stands for the link that is up
        self._refused: dict[str, str] = {}  # entries of the master's tables, in the last round
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def link_changed(self, up: bool) -> None:
        """Sync now, because a link to the master has begun; or no more, because it has ended."""
        self._link = object() if up else None
        if up:
            self._wanted.set()

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
                    await self._wanted.wait()
            except TimeoutError:
                continue  # the next round is due
            finally:
                self._wanted.clear()

    async def sync(self) -> None:
        """Do one round. Raises RemotingError, StateError, OSError; loaded tables stay."""
        ask, state, link = self._master.ask, self._state, self._link
        before = dict(state.topics.entries), dict(state.topics.begins)
        refused: dict[str, str] = {}
        # Groups are requested before the topics and loaded after them. So no group is known here
        # without its retry topic, for which its consumers would ask in vain without a master.
        groups = _object(await ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        topics = _object(await ask(RequestCode.GET_ALL_TOPIC_CONFIG))
        await self._master_has_all()
        self._check(link)
        _load(topics, lambda: state.topics.load(topics, state.topics.applied_index, refused))
        if (state.topics.entries, state.topics.begins) != before:
            self._on_topics()
        _load(groups, lambda: state.groups.load(groups, state.groups.applied_index, refused))
        offsets = _object(await ask(RequestCode.GET_ALL_CONSUMER_OFFSET))
        delays = _object(await ask(RequestCode.GET_ALL_DELAY_OFFSET))
        if not delays.get("timer"):
            delays["timer"] = (await self._timer_progress())._asdict()
        ends = _load(offsets, lambda: queueends.told(offsets))
        await self._log_has_all()
        self._check(link)
        await queueends.take(self._queues, ends)
        self._check(link)
        _load(offsets, lambda: popcopy.take(state.offsets, state.pops, offsets, refused))
        _load(delays, lambda: state.delays.load(delays, state.delays.applied_index, refused))
        self._warn(refused)
        await self._files.saved()
        self.last_sync_ms = self._wall_ms()
        self.rounds += 1

    def _warn(self, refused: dict[str, str]) -> None:
        """Log which entries of the master's tables were left out, once."""
        if refused and refused != self._refused:
            path, told = self._master.address(), refused_text(refused)
            log.warning("entries_refused path=%s count=%d: %s", path, len(refused), told)
        self._refused = refused

    def _check(self, link: object | None) -> None:
        """Raise MetadataError if that link is not up any more."""
        if link is None or link is not self._link:
            raise MetadataError("the link to the master has ended: its tables are not taken")

    async def _timer_progress(self) -> Progress:
        """Return what the master's check point tells, or what is known here if it has none: one of
        ours has none, nor has it a `timer` before it delivered any. Raises RemotingError."""
        known = self._state.delays.timer
        try:
            answer = await self._master.ask(RequestCode.GET_TIMER_CHECK_POINT)
        except MetadataError:
            return known
        told = timercheck.progress_of(answer.body)
        return known if told == NOTHING else told


class LogComparison:
    """Compares this log's end with the master's log."""

    def __init__(
        self,
        master: MasterClient,
        commitlog: CommitLog,
        last_record: Callable[[], int | None],
        *,
        address_follows: Callable[[], bool] = lambda: True,
    ) -> None:
        """`last_record()` returns where the last record of this log begins; None: not known.
        `address_follows()`: name servers will send the master's address."""
        self._address_follows = address_follows
        self.master_end = 0  # the master's log end, last time it was asked
        self.own_from: int | None = None  # what it stores itself begins there; None: not ours
        self._master_begin = 0
        self._master = master
        self._commitlog = commitlog
        self._last_record = last_record
        self._grew = asyncio.Event()

    async def look(self) -> None:
        """Ask how far the master is. Raises RemotingError."""
        table = _object(await self._master.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).get("table")
        try:
            self.master_end = int((table or {})["commitLogMaxOffset"])
            self._master_begin = int((table or {})["commitLogMinOffset"])
            own_from = (table or {}).get("masterFromOffset")
            self.own_from = None if own_from is None else int(own_from)
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"runtime info without commitLogMaxOffset: {error!r}") from error

    async def covered(self) -> None:
        """Return if the master's log is no shorter than this one. Raises RemotingError."""
        end = self._commitlog.max_offset  # this log may grow while the master is asked
        await self.look()
        if self.master_end < end:
            text = f"this log has {end} bytes, the master's has {self.master_end}"
            raise MetadataError(f"{text}: its tables are not taken")

    async def reach(self) -> None:
        """Return once this log has what the master's has now. Raises RemotingError, also if that
        takes long or the master has less."""
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
        """Call this when this log has become longer."""
        self._grew.set()

    async def first_request(self) -> int:
        """Return the offset that an empty log requests; 0 leaves the choice to the master. Raises
        RemotingError.

        Apache's master sends its last segment alone to a slave that requests 0, and everything from
        any other offset on. Its log is requested from its first byte, or from its second one if the
        first one has offset 0 (`SECOND_BYTE` in broker/replication/ha/slave.py)."""
        if not self._master.address():
            if self._address_follows():
                raise MetadataError(
                    "the master's log cannot be requested yet: no name server has said where the "
                    "master takes requests"
                )
            return 0
        await self.look()
        return 0 if self.own_from is not None else max(SECOND_BYTE, self._master_begin)

    async def verify(self) -> None:
        """Return if this log is a prefix of the master's, as far as its length and its last record
        tell. Raises LogsDiffer if not; RemotingError when the master cannot be asked."""
        if not self._commitlog.max_offset:
            return  # a prefix of any
        if not self._master.address():
            raise MetadataError(
                "the logs cannot be compared yet: masterAddress is not set, and no name server has "
                "said where the master takes requests"
            )
        await self.look()
        end = self._commitlog.max_offset
        if end > self.master_end:
            raise LogsDiffer(
                f"this log has {end} bytes, the master's has {self.master_end}: the master lost "
                "its tail, or it is another log"
            )
        if end < self._master_begin:
            raise LogsDiffer(
                f"this log ends at {end}, the master's begins at {self._master_begin}: what lies "
                "between is gone"
            )
        position = self._last_record()
        if position is None or position < self._master_begin:
            return  # the master has deleted it: its next bytes must tell
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
