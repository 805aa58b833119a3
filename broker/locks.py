"""Ordered consumption: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), over failovers.

A queue's lock says which consumer of a group may take messages from it. Consumers renew every 20 s
and hold a lock for theirs until 30 s after an answer that came within their time-out (1 s). Apache
keeps locks in one broker's memory: a new leader knows none, grants whoever asks first, and for up
to 30 s two consumers take the same queue. Here not.

The owner of a queue is in the log: a change of it (first grant, unlock, end of a lock that nobody
renewed) is a command, answered once it is applied. A renewal changes nothing and is not in the log:
it is confirmed by a read barrier, and its time is kept in this leader's memory. A lock ends
`lifetime_ms` (60 s) after this leader last confirmed it, by this leader's clock, which never goes
back; locks that were there when it became the ready leader count as confirmed at that moment.

Why no two hold at one time:
- Requests are decided in rounds, one after the other. A round decides with all that earlier rounds
  changed applied, since it waits for its command. What became of a command that failed is not known
  (it may be committed still), so the next round first has an empty command applied: all before it
  in the log is applied or dead then.
- A request that waited here in one leadership is not decided in another: a late unlock must not
  undo what its sender was granted meanwhile elsewhere.
- A grant or a renewal is answered after a commit or a barrier that began when the request was
  here, so at a moment after that no other replica was a ready leader. The consumer believes in it
  for 31 s from its request. A later leader became ready after that moment, knows the owner (the
  grant was committed, or lay in the log at the time of the renewal, hence it is applied) and waits
  60 s. Whatever a former leader proposed and never saw committed is, when the new one is ready,
  either applied or can never be.
- An old leader that has not noticed gets neither commit nor barrier and grants nothing; one that
  was stopped between barrier and answer answers a consumer that has stopped waiting.
- Clocks of different replicas are never compared. One that runs fast by less than 60 : 31 does no
  harm; one that stands still while its machine sleeps makes locks last longer.

A leader keeps the table clean: locks that ended leave it. Bounds: OWNED_MAX locks,
QUEUES_PER_REQUEST_MAX, WAITING_MAX. In classic mode the table is this master's memory, as Apache's,
and a slave grants nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from broker.errors import Refused
from broker.locktable import SEPARATOR, Key, LockTable, OwnerChange, change_from_json
from broker.state import lock_queues
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection, Handler
from remoting.errors import BodyError
from remoting.fastjson import loads_object

log = logging.getLogger("broker.locks")

# A round ends with the request that reaches the number: its command is below 3 MiB, whatever the
# names are; one may have 4 MiB.
QUEUES_PER_REQUEST_MAX = 5_000
QUEUES_PER_ROUND_MAX = 2_000
SWEPT_MAX = 2_000  # locks at a time
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
        clock_ms: Callable[[], int],
        lifetime_ms: int,
    ) -> None:
        """`propose(payload)` and `barrier()` return when applied, and proven; else they raise."""
        self._table = table
        self._propose = propose
        self._barrier = barrier
        self._leading = leading
        self._not_leader = not_leader
        self.clock_ms = clock_ms
        self._lifetime_ms = lifetime_ms
        self._leadership = 0  # counted
        self._since_ms = clock_ms()
        self._renewed: dict[Key, int] = {}  # when this leadership last confirmed the owner
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
        self._since_ms = self.clock_ms()
        self._renewed.clear()
        while self._waiting:
            request = self._waiting.popleft()
            request.error, request.done = self._not_leader(), True

    def sweep(self) -> None:
        """A chore: locks that nobody renewed leave the table."""
        if not self._leading() or self._waiting:
            return
        now_ms = self.clock_ms()
        ended = [key for key in self._table().keys() if self._is_over(key, now_ms)]
        by_group: dict[str, list[tuple[str, int]]] = {}
        for topic, group, queue_id in ended[:SWEPT_MAX]:
            by_group.setdefault(group, []).append((topic, queue_id))
        self._waiting.extend(
            _Request(group, "", queues, ended=True) for group, queues in by_group.items()
        )
        if ended:
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
        while self._waiting:
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
        if self._doubtful:
            await self._propose(lock_queues([]))
            self._doubtful = False
        if leadership != self._leadership or not self._leading():
            raise self._not_leader()
        changes, confirmed = self._decisions(batch)
        if changes:
            self._doubtful = True
            await self._propose(lock_queues(changes))
            self._doubtful = False
        elif confirmed:
            await self._barrier()
        if leadership != self._leadership or not self._leading():
            for request in batch:
                request.granted.clear()
            raise self._not_leader()
        now_ms = self.clock_ms()
        for key in confirmed:
            self._renewed[key] = now_ms

    def _decisions(self, batch: Sequence[_Request]) -> tuple[list[OwnerChange], list[Key]]:
        """What is to be changed, and what is granted or renewed, one request after the other."""
        table, now_ms = self._table(), self.clock_ms()
        owners: dict[Key, str | None] = {}  # as changed in this round
        confirmed: dict[Key, None] = {}
        changes: list[OwnerChange] = []
        room = OWNED_MAX - len(table)
        for request in batch:
            changed: dict[str, list[int]] = {}
            for topic, queue_id in request.queues:
                key = (topic, request.group, queue_id)
                here = key in owners
                owner = owners[key] if here else table.owner(key)
                over = not (here or key in confirmed) and self._is_over(key, now_ms)
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
                    owners[key] = request.client
                    changed.setdefault(topic, []).append(queue_id)
                confirmed[key] = None
                request.granted.append((topic, queue_id))
            if changed:
                client = None if request.unlock or request.ended else request.client
                changes.append(OwnerChange(request.group, client, changed))
        return changes, list(confirmed)

    def _is_over(self, key: Key, now_ms: int) -> bool:
        return now_ms - self._renewed.get(key, self._since_ms) > self._lifetime_ms


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
        changes = orjson.loads(payload)["changes"]
        table.change([change_from_json(change) for change in changes])
        return 0

    return propose
