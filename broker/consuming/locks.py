"""Ordered consumption: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), over failovers.

A queue's lock says which consumer of a group may take messages from it. Consumers renew every 20 s
and hold a lock for theirs until 30 s after an answer that came within their time-out (1 s). Apache
keeps locks in one broker's memory: a new leader knows none, grants whoever asks first, and for up
to 30 s two consumers take the same queue. Here not.

The owner of a queue is in the log: a change of it (first grant, unlock, end of a lock that nobody
renewed) is a command, answered once it is applied. So is a renewal, but one that comes less than
a twentieth of `lifetime_ms` (3 s) after the queue's last command in this leadership changes nothing
and is not in the log: it is confirmed by a read barrier. A lock ends `lifetime_ms` (60 s) after the
leader last confirmed it, or after three quarters of that (45 s) where the owner is no member of its
group here: it said goodbye (35), its connection closed, or it was never heard.

A new leader goes on counting where the former one was. Every replica notes when, by its own clock,
it applied the command that last renewed a queue: no earlier than that was proposed. A replica that
restarts applies old commands late and would take old renewals for new ones, so leaders also put
into the log how old, at least, renewals are (`ages`): when a leadership begins, and every 10 s for
the locks that nobody renewed for half a lifetime. A queue whose owner died with the leader is free
about when it would have been without a failover; leaders that change again and again, and replicas
that restart, delay that only by the time for which no replica was up to count. Nothing of this is
written while nobody holds locks, or while all are renewed in time.

Why no two hold at one time:
- Requests are decided in rounds, one after the other. A round decides with all that earlier rounds
  changed applied, since it waits for its command. What became of a command that failed is not known
  (it may be committed still), so the next round first has an empty command applied: all before it
  in the log is applied or dead then.
- A request that waited here in one leadership is not decided in another: a late unlock must not
  undo what its sender was granted meanwhile elsewhere.
- A grant or a renewal is answered after a commit or a barrier that began when the request was
  here, so at a moment after that no other replica was a ready leader. The consumer believes in it
  for 31 s from its request, and so for at most 31 + 3 s from the decision about the queue's last
  command: a barrier confirms nothing later than that. A later leader became ready after the
  request, knows the owner and that command (it was committed, or lay in the log at the time of the
  renewal, hence it is applied), and noted it no earlier than it was decided. Ages are differences
  by the clock of a leader, from such a note to a moment before others apply them: they put nobody's
  note before the decision either. So it gives the queue to another after 45 s at the earliest.
  Whatever a former leader proposed and never saw committed is, when the new one is ready, either
  applied or can never be.
- That stands on all leaders since having had renewals in the log. Each says so, with its term, in
  all its commands. A leader in whose log the term before its own is not the last that said so (a
  replica of an earlier version led, or one that proposed no command of locks in time) knows nothing
  of renewals: they count from its readiness for itself, and for all others from its first command
  (`fresh`, in each of its commands until one is applied).
- An old leader that has not noticed gets neither commit nor barrier and grants nothing; one that
  was stopped between barrier and answer answers a consumer that has stopped waiting.
- Clocks of different replicas are never compared; only monotonic ones are used, so that one that
  is set jumps nothing. One that runs fast by a quarter does no harm, even if the former leader's
  was slow by a fifth; one that stands still while its machine sleeps makes locks last longer.

Why a goodbye frees nothing at once: a closed connection says nothing about a listener that is at
work, and goodbyes (35) are sent with listeners at work: Java's consumers, which unlock before, wait
for no listener by default, and ours leave exactly those queues locked that are still worked on. An
owner that is gone has its belief to its end, but no grace on top of it.

A leader keeps the table clean: locks that ended leave it. Bounds: OWNED_MAX locks,
QUEUES_PER_REQUEST_MAX, WAITING_MAX, SWEPT_MAX, TOLD_MAX. In classic mode the table is this
master's memory, as Apache's, and a slave grants nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from raftmq.broker.errors import Refused
from raftmq.broker.tables.locktable import SEPARATOR, Key, LockTable, OwnerChange, Renewals
from raftmq.broker.tables.state import lock_queues
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.errors import BodyError
from raftmq.remoting.fastjson import loads_object

log = logging.getLogger("raftmq.broker.locks")

# A round ends with the request that reaches the number: its command is below 3 MiB, whatever the
# names are; one may have 4 MiB.
QUEUES_PER_REQUEST_MAX = 5_000
QUEUES_PER_ROUND_MAX = 2_000
SWEPT_MAX = 2_000  # locks at a time
TOLD_MAX = 1_000  # ages in one command, which then is below 4 MiB still
# Parts of a lock's lifetime. The module says why LOGGED and GONE: 45 s by a clock that is fast by a
# quarter are 36, and 3 s by one that is slow by a fifth 3.75; 31 + 3.75 are less.
LOGGED = 1 / 20  # so young, a renewal needs no other in the log
GONE = 3 / 4  # of an owner that is not here
OVERDUE = 1 / 2  # renewals are: 30 s, where consumers renew every 20
TOLD = 1 / 6  # an age is told again when it has grown by so much
WAITING_MAX = 10_000  # requests
OWNED_MAX = 200_000
NAME_BYTES_MAX = 255  # of client id, group, topic


@dataclass(slots=True, eq=False)
class _Request:
    """`ended`: free these queues if nobody renewed them, whoever owns them."""

    group: str
    client: str
    queues: Sequence[tuple[str, int]]
    unlock: bool = False
    ended: bool = False
    granted: list[tuple[str, int]] = field(default_factory=list)
    error: Exception | None = None
    done: bool = False


class LockService:
    """See the module."""

    def __init__(
        self,
        table: Callable[[], LockTable],
        *,
        propose: Callable[[bytes], Awaitable[int]],
        barrier: Callable[[], Awaitable[None]],
        leading: Callable[[], bool],
        not_leader: Callable[[], Refused],
        terms: Callable[[], tuple[int, int | None]],
        present: Callable[[str, str], bool],
        clock_ms: Callable[[], int],
        lifetime_ms: int,
    ) -> None:
        """`propose(payload)` and `barrier()` return when applied, and proven; else they raise.
        `terms()`: of this leadership, and the one before it in the log if that is known.
        `present(group, client)`: the client is here as a member of its group."""
        self._table = table
        self._propose = propose
        self._barrier = barrier
        self._leading = leading
        self._not_leader = not_leader
        self._terms = terms
        self._present = present
        self.clock_ms = clock_ms
        self._lifetime_ms = lifetime_ms
        self._logged_ms = int(lifetime_ms * LOGGED)
        self._leadership = 0  # counted
        self._term = 0
        self._led_since_ms = clock_ms()
        self._since_ms: int | None = None  # nothing is known of renewals before it; None: all is
        self._told = False  # this leadership has said in the log what it knows
        self._telling = False  # it should, again
        self._renewed: dict[Key, int] = {}  # when this leadership last confirmed the owner
        self._logged: dict[Key, int] = {}  # when it decided what it has of that in the log
        self._waiting: deque[_Request] = deque()
        self._round: asyncio.Task[None] | None = None
        self._doubtful = False  # a command may be committed still

    def handlers(self) -> dict[int, Handler]:
        return {
            int(RequestCode.LOCK_BATCH_MQ): self.lock,
            int(RequestCode.UNLOCK_BATCH_MQ): self.unlock,
        }

    async def lock(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        wanted, named = _parsed(request.body)
        await self.settle(wanted)
        body = orjson.dumps({"lockOKMQSet": [named[queue] for queue in wanted.granted]})
        return RemotingCommand.response_to(request, ext={}, body=body)

    async def unlock(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        wanted, _named = _parsed(request.body)
        wanted.unlock = True
        await self.settle(wanted)
        return RemotingCommand.response_to(request, ext={})

    def leadership_changed(self) -> None:
        """This replica became the ready leader, or is not any more."""
        self._leadership += 1
        self._renewed.clear()
        self._logged.clear()
        while self._waiting:
            request = self._waiting.popleft()
            request.error, request.done = self._not_leader(), True
        self._told = self._telling = False
        if self._leading():
            table = self._table()
            self._term, before = self._terms()
            self._led_since_ms = self.clock_ms()
            self._since_ms = None if before == table.term else self._led_since_ms
            if len(table):
                self._telling = True
                self._begin_round()

    def sweep(self) -> None:
        """A chore: locks that nobody renewed leave the table, or have their age told."""
        if not self._leading() or self._waiting:
            return
        table, now_ms = self._table(), self.clock_ms()
        keys = table.keys()
        ended = [key for key in keys if self._is_over(key, now_ms)]
        by_group: dict[str, list[tuple[str, int]]] = {}
        for topic, group, queue_id in ended[:SWEPT_MAX]:
            by_group.setdefault(group, []).append((topic, queue_id))
        self._waiting.extend(
            _Request(group, "", queues, ended=True) for group, queues in by_group.items()
        )
        self._telling = bool(keys and not self._told) or bool(self._untold(now_ms))
        if len(self._renewed) > 2 * len(keys) + SWEPT_MAX:
            for known in (self._renewed, self._logged):
                for key in known.keys() - set(keys):
                    del known[key]
        if ended or self._telling:
            self._begin_round()

    async def stop(self) -> None:
        """When nothing is proposed any more."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait([self._round])

    # ---- rounds -----------------------------------------------------------------------------

    async def settle(self, request: _Request) -> None:
        """Return once the request is decided and that holds. Raises Refused, RaftError."""
        if not self._leading():
            raise self._not_leader()
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, "[BUSY] too many requests for locks wait")
        self._waiting.append(request)
        while not request.done:
            # A round is nobody's: who waits for it may be cancelled, and it goes on.
            await asyncio.shield(self._begin_round())
        if request.error is not None:
            raise request.error

    def _begin_round(self) -> asyncio.Task[None]:
        """The round under way, or the next."""
        if self._round is None or self._round.done():
            self._round = asyncio.get_running_loop().create_task(self._decide_all())
        return self._round

    async def _decide_all(self) -> None:
        while self._waiting or self._telling:
            batch = self._take()
            try:
                await self._decide(batch)
            except Exception as error:  # whatever it is goes to who asked
                log.info("locks_not_decided requests=%d: %s", len(batch), error)
                for request in batch:
                    request.error = error
            finally:
                for request in batch:
                    request.done = True

    def _take(self) -> list[_Request]:
        batch: list[_Request] = []
        count = 0
        while self._waiting and (not batch or count < QUEUES_PER_ROUND_MAX):
            batch.append(self._waiting.popleft())
            count += len(batch[-1].queues)
        return batch

    async def _decide(self, batch: Sequence[_Request]) -> None:
        leadership = self._leadership
        telling, self._telling = self._telling, False
        if self._doubtful:
            await self._propose(lock_queues([]))
            self._doubtful = False
        if leadership != self._leadership or not self._leading():
            raise self._not_leader()
        now_ms = self.clock_ms()
        # Before the changes: what is told is of the table as it is.
        ages = self._untold(now_ms) if telling else {}
        changes, confirmed = self._decisions(batch, now_ms)
        if changes or telling:
            self._doubtful = True
            fresh = self._since_ms is not None and not self._told
            await self._propose(lock_queues(changes, Renewals(self._term, fresh, _by_age(ages))))
            self._doubtful = False
        elif confirmed:
            await self._barrier()
        if leadership != self._leadership or not self._leading():
            for request in batch:
                request.granted.clear()
            raise self._not_leader()
        self._told = self._told or bool(changes) or telling
        confirmed_ms = self.clock_ms()
        for key, logged in confirmed.items():
            self._renewed[key] = confirmed_ms
            if logged:
                self._logged[key] = now_ms

    def _decisions(
        self, batch: Sequence[_Request], now_ms: int
    ) -> tuple[list[OwnerChange], dict[Key, bool]]:
        """What goes into the log, and what is granted or renewed (True: in the log), one request
        after the other."""
        table = self._table()
        owners: dict[Key, str | None] = {}  # as this round has them in the log
        confirmed: dict[Key, bool] = {}
        changes: list[OwnerChange] = []
        ended: list[int] = []  # their ages
        room = OWNED_MAX - len(table)
        for request in batch:
            changed: dict[str, list[int]] = {}
            for topic, queue_id in request.queues:
                key = (topic, request.group, queue_id)
                here = key in owners
                owner = owners[key] if here else table.owner(key)
                over = not (here or key in confirmed) and self._is_over(key, now_ms)
                if over and owner not in (None, request.client):
                    ended.append(self._age_ms(key, now_ms))
                if request.unlock or request.ended:
                    if owner is not None and (owner == request.client or (request.ended and over)):
                        owners[key] = None
                        confirmed.pop(key, None)
                        changed.setdefault(topic, []).append(queue_id)
                    continue
                if owner != request.client:
                    if (owner is not None and not over) or (owner is None and room <= 0):
                        continue
                    room -= owner is None
                if owner != request.client or (not here and self._is_to_be_logged(key, now_ms)):
                    owners[key] = request.client
                    changed.setdefault(topic, []).append(queue_id)
                confirmed[key] = key in owners
                request.granted.append((topic, queue_id))
            if changed:
                client = None if request.unlock or request.ended else request.client
                changes.append(OwnerChange(request.group, client, changed))
        if ended:
            led_ms = now_ms - self._led_since_ms
            log.info("locks_end count=%d age_ms=%d led_ms=%d", len(ended), max(ended), led_ms)
        return changes, confirmed

    # ---- how old renewals are ---------------------------------------------------------------

    def _is_to_be_logged(self, key: Key, now_ms: int) -> bool:
        logged = self._logged.get(key)
        return logged is None or now_ms - logged >= self._logged_ms

    def _age_ms(self, key: Key, now_ms: int) -> int:
        """How long ago, by this clock, its owner was confirmed last; at least."""
        known = [self._table().renewed.get(key, now_ms), self._renewed.get(key)]
        if not self._told:
            known.append(self._since_ms)  # when that is told, the table's note is of after it
        return now_ms - max(moment for moment in known if moment is not None)

    def _is_over(self, key: Key, now_ms: int) -> bool:
        age_ms = self._age_ms(key, now_ms)
        if age_ms <= self._lifetime_ms * GONE:
            return False
        owner = self._table().owner(key)
        present = owner is not None and self._present(key[1], owner)
        return age_ms > self._lifetime_ms or not present

    def _untold(self, now_ms: int) -> dict[Key, int]:
        """Ages that a replica which has only the log does not know, the oldest."""
        if self._since_ms is not None and not self._told:
            return {}  # nor does this one
        aged = self._table().aged
        untold: list[tuple[int, Key]] = []
        for key in self._table().keys():
            age_ms = self._age_ms(key, now_ms)
            known_ms = aged.get(key, 0)
            if self._told:
                wanted = age_ms > self._lifetime_ms * OVERDUE
                wanted = wanted and age_ms - known_ms >= self._lifetime_ms * TOLD
            else:
                wanted = age_ms - known_ms >= self._logged_ms
            if wanted:
                untold.append((age_ms, key))
        return {key: age_ms for age_ms, key in sorted(untold, reverse=True)[:TOLD_MAX]}


def _by_age(ages: dict[Key, int]) -> list[tuple[int, str, dict[str, list[int]]]]:
    """As `Renewals` has them; to a tenth of a second, downwards."""
    alike: defaultdict[tuple[int, str], dict[str, list[int]]] = defaultdict(dict)
    for (topic, group, queue_id), age_ms in ages.items():
        alike[age_ms // 100 * 100, group].setdefault(topic, []).append(queue_id)
    return [(age_ms, group, queues) for (age_ms, group), queues in alike.items()]


def _parsed(body: bytes) -> tuple[_Request, dict[tuple[str, int], dict[str, Any]]]:
    """The request, and its queues as they were named. Raises BodyError, Refused."""
    fields = loads_object(body)
    group, client = _name(fields, "consumerGroup"), _name(fields, "clientId")
    queues = fields.get("mqSet")
    if not isinstance(queues, list):
        raise BodyError("mqSet is not a list")
    if len(queues) > QUEUES_PER_REQUEST_MAX:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"{len(queues)} queues in one request; at most {QUEUES_PER_REQUEST_MAX}",
        )
    named: dict[tuple[str, int], dict[str, Any]] = {}
    for queue in queues:
        queue_id = queue.get("queueId") if isinstance(queue, dict) else None
        if type(queue_id) is not int or not 0 <= queue_id < 1 << 31:
            raise BodyError(f"not a message queue: {queue!r}")
        named[_name(queue, "topic"), queue_id] = queue
    return _Request(group, client, list(named)), named


def _name(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if isinstance(value, str) and value and value.isprintable():
        if len(value.encode()) <= NAME_BYTES_MAX and (key == "clientId" or SEPARATOR not in value):
            return value
    raise BodyError(f"{key} is missing, or no name")


def local_propose(table: LockTable) -> Callable[[bytes], Awaitable[int]]:
    """Classic mode's: the table changes here and now."""

    async def propose(payload: bytes) -> int:
        table.apply(orjson.loads(payload))
        return 0

    return propose
