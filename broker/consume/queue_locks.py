"""Queue locks for ordered consumption (41, 42), safe across failovers.

LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42) decide which consumer of a group may consume a queue.
Consumers renew every 20 s. They rely on a lock until 30 s after a response that arrived within
their timeout (1 s). Apache keeps locks in a broker's memory, so after a failover two consumers may
hold the same queue for 30 s.

The log contains the owners. Each change of owner (first grant, unlock, expiry) is a command,
answered once it is applied. Renewals are commands too, except within a twentieth of `lifetime_ms`
(3 s) of the queue's last command in this leadership; these are confirmed by a read barrier. A lock
expires `lifetime_ms` (60 s) after its last confirmation. If its owner is not a connected member of
its group here, it expires after three quarters of that (45 s).

A new leader continues the former leader's count. Every replica records, by its own clock, when it
applied the last renewal of a queue, which is not before its proposal. A restarted replica applies
old renewals late. So leaders also log a lower bound of the age of renewals (`ages`), at the start
of a leadership, and every 10 s for locks not renewed for half a lifetime. So failovers and restarts
delay the expiry of a dead owner's lock only by the time in which no replica was running. Nothing is
logged while there are no locks, or while all are renewed in time.

Two consumers never hold the same lock:

- Requests are decided in sequential rounds. Each round waits for its command, so it sees all
  changes of earlier rounds. After a command with an unknown outcome, the next round first has an
  empty command applied; by then all earlier commands are applied or lost.
- A request is not decided in a later leadership than it was received in. A late unlock must not
  undo a later leader's grant.
- A response follows a commit or a barrier that started after the request arrived, so at some later
  moment no other replica was a ready leader. A consumer relies on its lock for 31 s from its
  request. That is at most 31 + 3 s from the decision about the queue's last command, since a
  barrier confirms nothing later. A later leader became ready after the request. So it has the owner
  and that command applied, and recorded it no earlier than its decision. Ages are differences by a
  leader's clock, from such a record to a moment before the ages are applied, so they never date a
  record before its decision. So a later leader grants the queue to another consumer after 45 s at
  the earliest. A command that the former leader never saw committed is, once the new leader is
  ready, applied or lost.
- This requires that all leaders since then logged renewals. Each states so, with its term, in all
  its commands. If the previous term in the log did not (an earlier version led, or there was no
  lock command in time), the leader cannot date renewals. It counts them from its own readiness, and
  all other replicas from its first command (`fresh`, in its commands until the first is applied).
- A deposed leader gets neither commit nor barrier and grants nothing. If it is paused between
  barrier and response, its consumer has timed out.
- Clocks of different replicas are never compared, and all are monotonic. A clock that is fast by a
  quarter is harmless, even after a leader with a clock slow by a fifth. A clock that stops while
  its machine sleeps prolongs locks.

Unregistering (35) or closing a connection frees nothing immediately, because a listener may still
be running. Java's consumers do not wait for it by default, and ours leave exactly its queues
locked. The lock of a missing owner lasts as long as the owner may rely on it, without the grace
period.

Only existing queues are granted. Limits are OWNED_MAX locks, half of them for clients that are not
members, QUEUES_PER_REQUEST_MAX, WAITING_MAX, SWEPT_MAX and AGES_MAX. In classic mode the table is
in the master's memory, as in Apache's brokers, and slaves grant nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import BodyError
from raftmq.remoting.fast_json import loads_request

from ..clients import ClientTable
from ..component import Service, at_each_leadership
from ..context import Context
from ..errors import busy, not_leader, rejected
from ..scheduler import Chore
from ..tables.queue_locks import SEPARATOR, Key, LockTable, OwnerChange, Renewals
from ..tables.state import lock_queues

log = logging.getLogger("raftmq.broker.locks")

# The request that reaches this number ends a round. Its command is below 3 MiB with the longest
# names; the limit is 4 MiB.
QUEUES_PER_REQUEST_MAX = 5_000
QUEUES_PER_ROUND_MAX = 2_000
SWEPT_MAX = 2_000  # locks per sweep
AGES_MAX = 1_000  # per command, to keep it below 4 MiB
# Fractions of a lock's lifetime, explained in the docstring. With a clock that is fast by a
# quarter, 45 s are 36 s; with a clock that is slow by a fifth, 3 s are 3.75 s; 31 + 3.75 < 36.
LOGGED = 1 / 20  # a renewal younger than this is not logged
GONE = 3 / 4  # the owner is not connected here
OVERDUE = 1 / 2  # renewals; 30 s, while consumers renew every 20 s
AGE_STEP = 1 / 6  # an age is logged again after this growth
WAITING_MAX = 10_000  # requests
OWNED_MAX = 200_000
SWEEP_MS = 10_000  # less than a lock's lifetime
NAME_BYTES_MAX = 255  # of client id, group and topic


@dataclass(slots=True, eq=False)
class _Request:
    """A lock request. `ended` frees these queues from any owner if they expired."""

    group: str
    client: str
    queues: Sequence[tuple[str, int]]
    unlock: bool = False
    ended: bool = False
    granted: list[tuple[str, int]] = field(default_factory=list)
    full: bool = False  # a lock was not granted at OWNED_MAX
    error: Exception | None = None
    done: bool = False


class LockService:
    def __init__(
        self,
        table: Callable[[], LockTable],
        *,
        propose: Callable[[bytes], Awaitable[int]],
        barrier: Callable[[], Awaitable[None]],
        leading: Callable[[], bool],
        terms: Callable[[], tuple[int, int | None]],
        present: Callable[[str, str], bool],
        exists: Callable[[str, int], bool],
        clock_ms: Callable[[], int],
        lifetime_ms: int,
    ) -> None:
        """`propose(payload)` returns once applied, and `barrier()` once leadership is confirmed;
        both may raise. `terms()` returns this leadership's term, and the previous term in the log
        if known. `present(group, client)` is True for a connected member of its group.
        `exists(topic, queue_id)` is False for queues that are not granted."""
        self._table = table
        self._propose = propose
        self._barrier = barrier
        self._leading = leading
        self._terms = terms
        self._present = present
        self._exists = exists
        self.clock_ms = clock_ms
        self._lifetime_ms = lifetime_ms
        self._logged_ms = int(lifetime_ms * LOGGED)
        self._leadership = 0  # role changes
        self._term = 0
        self._led_since_ms = clock_ms()
        self._since_ms: int | None = None  # earlier renewals are unknown; None if all are known
        self._ages_logged = False  # this leadership has logged the ages
        self._log_ages = False  # it must log them again
        self._renewed: dict[Key, int] = {}  # last confirmation in this leadership
        self._logged: dict[Key, int] = {}  # last logged decision in this leadership
        self._waiting: deque[_Request] = deque()
        self._round: asyncio.Task[None] | None = None
        self._doubtful = False  # the last command may still be committed

    def service(self) -> Service:
        return Service(
            handlers={
                int(RequestCode.LOCK_BATCH_MQ): self.lock,
                int(RequestCode.UNLOCK_BATCH_MQ): self.unlock,
            },
            chores=[Chore("locks", SWEEP_MS, self.sweep)],
            role_changed=at_each_leadership(self.leadership_changed),
            stop=self.stop,
        )

    async def lock(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        lock_request, named = _parsed(request.body)
        lock_request.queues = [queue for queue in lock_request.queues if self._exists(*queue)]
        await self.settle(lock_request)
        if lock_request.full and not lock_request.granted:
            raise busy(f"there are {OWNED_MAX} locks already; none is new")
        body = orjson.dumps({"lockOKMQSet": [named[queue] for queue in lock_request.granted]})
        return RemotingCommand.response_to(request, ext={}, body=body)

    async def unlock(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        lock_request, _named = _parsed(request.body)
        lock_request.unlock = True
        await self.settle(lock_request)
        return RemotingCommand.response_to(request, ext={})

    def are_held(self, group: str) -> bool:
        """Return True if consumers of the group hold an unexpired lock."""
        now_ms = self.clock_ms()
        return any(not self._is_over(key, now_ms) for key in self._table().keys_of(group))

    def leadership_changed(self) -> None:
        """Reset, because this replica became or ceased to be the ready leader."""
        self._leadership += 1
        self._renewed.clear()
        self._logged.clear()
        while self._waiting:
            request = self._waiting.popleft()
            request.error, request.done = not_leader(), True
        self._ages_logged = self._log_ages = False
        if self._leading():
            table = self._table()
            self._term, before = self._terms()
            self._led_since_ms = self.clock_ms()
            self._since_ms = None if before == table.term else self._led_since_ms
            if len(table):
                self._log_ages = True
                self._start_round()

    def sweep(self) -> None:
        """Free expired locks, or log their age."""
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
        self._log_ages = bool(keys and not self._ages_logged) or bool(self._unlogged_ages(now_ms))
        if len(self._renewed) > 2 * len(keys) + SWEPT_MAX:
            for known in (self._renewed, self._logged):
                for key in known.keys() - set(keys):
                    del known[key]
        if ended or self._log_ages:
            self._start_round()

    async def stop(self) -> None:
        """Stop, after all proposals ended."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait([self._round])

    # ---- rounds -----------------------------------------------------------------------------

    async def settle(self, request: _Request) -> None:
        """Return once the request's decision is final. Raises Refused, RaftError."""
        if not self._leading():
            raise not_leader()
        if len(self._waiting) >= WAITING_MAX:
            raise busy("too many requests for locks wait")
        self._waiting.append(request)
        while not request.done:
            # A round continues if a waiting request is cancelled.
            await asyncio.shield(self._start_round())
        if request.error is not None:
            raise request.error

    def _start_round(self) -> asyncio.Task[None]:
        if self._round is None or self._round.done():
            self._round = asyncio.get_running_loop().create_task(self._decide_all())
        return self._round

    async def _decide_all(self) -> None:
        while self._waiting or self._log_ages:
            batch = self._take()
            try:
                await self._decide(batch)
            except Exception as error:  # passed to the requests
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
        log_ages, self._log_ages = self._log_ages, False
        if self._doubtful:
            await self._propose(lock_queues([]))
            self._doubtful = False
        if leadership != self._leadership or not self._leading():
            raise not_leader()
        now_ms = self.clock_ms()
        # Before the changes, since ages describe the current table.
        ages = self._unlogged_ages(now_ms) if log_ages else {}
        changes, confirmed = self._decisions(batch, now_ms)
        if changes or log_ages:
            self._doubtful = True
            fresh = self._since_ms is not None and not self._ages_logged
            await self._propose(lock_queues(changes, Renewals(self._term, fresh, _by_age(ages))))
            self._doubtful = False
        elif confirmed:
            await self._barrier()
        if leadership != self._leadership or not self._leading():
            for request in batch:
                request.granted.clear()
            raise not_leader()
        self._ages_logged = self._ages_logged or bool(changes) or log_ages
        confirmed_ms = self.clock_ms()
        for key, logged in confirmed.items():
            self._renewed[key] = confirmed_ms
            if logged:
                self._logged[key] = now_ms

    def _decisions(
        self, batch: Sequence[_Request], now_ms: int
    ) -> tuple[list[OwnerChange], dict[Key, bool]]:
        """Decide in order. Returns the changes to log, and the confirmed locks (True if logged)."""
        table = self._table()
        owners: dict[Key, str | None] = {}  # as logged by this round
        confirmed: dict[Key, bool] = {}
        changes: list[OwnerChange] = []
        ended: list[int] = []  # their ages
        room = OWNED_MAX - len(table)
        for request in batch:
            # The last half of the capacity is for members.
            kept = 0 if self._present(request.group, request.client) else OWNED_MAX // 2
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
                    if owner is not None and not over:
                        continue
                    if owner is None and room <= kept:
                        request.full = True
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
        """Return a lower bound of the time since the owner was last confirmed."""
        known = [self._table().renewed.get(key, now_ms), self._renewed.get(key)]
        if not self._ages_logged:
            known.append(self._since_ms)  # once logged, the table's record is later
        return now_ms - max(moment for moment in known if moment is not None)

    def _is_over(self, key: Key, now_ms: int) -> bool:
        age_ms = self._age_ms(key, now_ms)
        if age_ms <= self._lifetime_ms * GONE:
            return False
        owner = self._table().owner(key)
        present = owner is not None and self._present(key[1], owner)
        return age_ms > self._lifetime_ms or not present

    def _unlogged_ages(self, now_ms: int) -> dict[Key, int]:
        """Return the oldest ages that are not in the log."""
        if self._since_ms is not None and not self._ages_logged:
            return {}  # unknown to this replica as well
        aged = self._table().aged
        unlogged: list[tuple[int, Key]] = []
        for key in self._table().keys():
            age_ms = self._age_ms(key, now_ms)
            known_ms = aged.get(key, 0)
            if self._ages_logged:
                due = age_ms > self._lifetime_ms * OVERDUE
                due = due and age_ms - known_ms >= self._lifetime_ms * AGE_STEP
            else:
                due = age_ms - known_ms >= self._logged_ms
            if due:
                unlogged.append((age_ms, key))
        return {key: age_ms for age_ms, key in sorted(unlogged, reverse=True)[:AGES_MAX]}


def _by_age(ages: dict[Key, int]) -> list[tuple[int, str, dict[str, list[int]]]]:
    """Group ages as in `Renewals`, rounded down to 0.1 s."""
    alike: defaultdict[tuple[int, str], dict[str, list[int]]] = defaultdict(dict)
    for (topic, group, queue_id), age_ms in ages.items():
        alike[age_ms // 100 * 100, group].setdefault(topic, []).append(queue_id)
    return [(age_ms, group, queues) for (age_ms, group), queues in alike.items()]


def _parsed(body: bytes) -> tuple[_Request, dict[tuple[str, int], dict[str, Any]]]:
    """Return the request, and its queues as named by the client. Raises BodyError, Refused."""
    fields = loads_request(body)
    group, client = _name(fields, "consumerGroup"), _name(fields, "clientId")
    queues = fields.get("mqSet")
    if not isinstance(queues, list):
        raise BodyError("mqSet is not a list")
    if len(queues) > QUEUES_PER_REQUEST_MAX:
        raise rejected(f"{len(queues)} queues in one request; at most {QUEUES_PER_REQUEST_MAX}")
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
    """Return the `propose` of classic mode, which changes the table immediately."""

    async def propose(payload: bytes) -> int:
        table.apply(orjson.loads(payload))
        return 0

    return propose


def lock_service(context: Context, clients: ClientTable) -> LockService:
    """Return the lock service. In classic mode the locks are in this broker's memory."""
    config, log_of, offsets = context.config, context.log, context.state.offsets
    own = LockTable(clock_ms=context.clock_ms)
    offsets.locks.use_clock(context.clock_ms)

    def terms() -> tuple[int, int | None]:
        index = None if config.is_classic else log_of.raft.log.index
        first = None if index is None else index.first_index_of_term(context.roles.term)
        before = None if index is None or first is None else index.term_at(first - 1)
        return context.roles.term, before

    def is_here(group: str, client: str) -> bool:
        consumers = clients.consumers.get(group)
        return consumers is not None and client in consumers.members

    def exists(topic: str, queue_id: int) -> bool:
        topic_config = context.state.topics.get(topic)
        return topic_config is not None and queue_id < topic_config.read_queue_count

    return LockService(
        (lambda: own) if config.is_classic else (lambda: offsets.locks),
        propose=local_propose(own) if config.is_classic else log_of.propose,
        barrier=log_of.barrier,
        leading=lambda: context.roles.leading,
        terms=terms,
        present=is_here,
        exists=exists,
        clock_ms=context.clock_ms,
        lifetime_ms=context.durations.queue_lock,
    )
