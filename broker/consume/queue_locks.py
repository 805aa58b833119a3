"""Ordered consumption: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), safe over failovers.

A queue's lock says which consumer of a group may take messages from it. Consumers renew every 20 s
and believe that they hold a lock until 30 s after an answer that came within their time-out (1 s).
Apache keeps locks in one broker's memory: a new leader knows none and grants whoever asks first,
and for up to 30 s two consumers take the same queue. This service prevents that.

The owner of a queue is in the log: each change of it (first grant, unlock, expiry of a lock that
was not renewed) is a command, answered once it is applied. So is a renewal, except that one which
comes less than a twentieth of `lifetime_ms` (3 s) after the queue's last command in this leadership
changes nothing and is not logged: a read barrier confirms it. A lock expires `lifetime_ms` (60 s)
after the leader last confirmed it, or after three quarters of that (45 s) if the owner is no member
of its group here: it unregistered (35), its connection closed, or it was never heard of.

A new leader continues the former one's count. Every replica notes when, by its own clock, it
applied the command that last renewed a queue, which is no earlier than the command was proposed. A
replica that restarts applies old commands late and would take old renewals for new ones, so leaders
also log a lower bound of how old renewals are (`ages`): when a leadership begins, and every 10 s
for the locks that nobody renewed for half a lifetime. A queue whose owner died with the leader
becomes free about when it would have without a failover; leaders that change again and again, and
replicas that restart, delay that only by the time for which no replica was up to count. None of
this is written while nobody holds locks, or while all are renewed in time.

Why no two consumers hold a lock at one time:
- Requests are decided in rounds, one after the other. A round decides with all that earlier rounds
  changed applied, since it waits for its command. The outcome of a command that failed is unknown
  (it may still be committed), so the next round first has an empty command applied: then all before
  it in the log is applied or dead.
- A request that waited here in one leadership is not decided in another: a late unlock must not
  undo what its sender was granted elsewhere in the meantime.
- A grant or a renewal is answered after a commit or a barrier that began after the request had
  arrived, so at some moment after that no other replica was a ready leader. The consumer believes
  in the lock for 31 s from its request, and so for at most 31 + 3 s from the decision about the
  queue's last command: a barrier confirms nothing later than that. A later leader became ready
  after the request, and knows the owner and that command (it was committed, or was in the log at
  the time of the renewal, hence it is applied), and noted it no earlier than it was decided. Ages
  are differences by a leader's clock, from such a note to a moment before others apply them: they
  do not move anybody's note before the decision either. So a later leader gives the queue to
  another consumer after 45 s at the earliest. Whatever a former leader proposed and never saw
  committed is, when the new one is ready, either applied or can never be.
- This requires that all leaders since then logged renewals. Each says so, with its term, in all
  its commands. A leader in whose log the term before its own is not the last that said so (a
  replica of an earlier version led, or one that proposed no lock command in time) knows nothing
  of renewals: for itself they count from its readiness, and for all others from its first command
  (`fresh`, in each of its commands until one is applied).
- An old leader that has not noticed its end gets neither commit nor barrier and grants nothing; one
  that was stopped between barrier and answer answers a consumer that has stopped waiting.
- Clocks of different replicas are never compared; only monotonic ones are used, so that setting a
  clock has no effect. A clock that runs fast by a quarter does no harm, even if the former leader's
  was slow by a fifth; one that stands still while its machine sleeps makes locks last longer.

Why unregistering frees nothing at once: a closed connection says nothing about a listener that is
at work, and clients unregister (35) with listeners at work: Java's consumers, which unlock before,
wait for no listener by default, and ours leave exactly those queues locked that are still worked
on. An owner that is gone is given the time for which it believes in its lock, but no grace on top
of it.

A leader keeps the table clean: expired locks leave it. Only queues that exist are granted. Bounds:
OWNED_MAX locks, half of them for clients that did not say they are members,
QUEUES_PER_REQUEST_MAX, WAITING_MAX, SWEPT_MAX, TOLD_MAX. In classic mode the table is this master's
memory, as in Apache's brokers, and a slave grants nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import BodyError
from raftmq.remoting.fast_json import loads_request

from ..clients import ClientTable
from ..component import Service, at_each_leadership
from ..context import Context
from ..errors import Refused, busy, not_leader
from ..scheduler import Chore
from ..tables.queue_locks import SEPARATOR, Key, LockTable, OwnerChange, Renewals
from ..tables.state import lock_queues

log = logging.getLogger("raftmq.broker.locks")

# A round ends with the request that reaches this number: its command is below 3 MiB, whatever the
# names are; a command may have 4 MiB.
QUEUES_PER_REQUEST_MAX = 5_000
QUEUES_PER_ROUND_MAX = 2_000
SWEPT_MAX = 2_000  # locks at a time
AGES_MAX = 1_000  # ages in one command, which is then still below 4 MiB
# Fractions of a lock's lifetime. The docstring explains LOGGED and GONE: 45 s by a clock that is
# fast by a quarter are 36, and 3 s by one that is slow by a fifth are 3.75; 31 + 3.75 are less.
LOGGED = 1 / 20  # if younger than that, a renewal is not logged again
GONE = 3 / 4  # for an owner that is not connected here
OVERDUE = 1 / 2  # for renewals: 30 s, where consumers renew every 20
AGE_STEP = 1 / 6  # an age is logged again when it has grown by so much
WAITING_MAX = 10_000  # requests
OWNED_MAX = 200_000
SWEEP_MS = 10_000  # between sweeps: less than a lock's lifetime
NAME_BYTES_MAX = 255  # of client id, group, topic


@dataclass(slots=True, eq=False)
class _Request:
    """A request for locks. `ended`: free these queues if nobody renewed them, whoever owns them."""

    group: str
    client: str
    queues: Sequence[tuple[str, int]]
    unlock: bool = False
    ended: bool = False
    granted: list[tuple[str, int]] = field(default_factory=list)
    full: bool = False  # there was no room for a lock
    error: Exception | None = None
    done: bool = False


class LockService:
    """Grants, renews and ends queue locks; one per broker."""

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
        """`propose(payload)` returns once applied and `barrier()` once leadership is proven; else
        they raise. `terms()`: the term of this leadership, and the one before it in the log if
        known. `present(group, client)`: whether the client is connected here as a member of its
        group. `exists(topic, queue_id)`: other queues are not granted."""
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
        self._leadership = 0  # number of role changes so far
        self._term = 0
        self._led_since_ms = clock_ms()
        self._since_ms: int | None = None  # renewals before it are unknown; None: all are known
        self._ages_logged = False  # this leadership has logged what it knows
        self._log_ages = False  # it should do so again
        self._renewed: dict[Key, int] = {}  # when this leadership last confirmed the owner
        self._logged: dict[Key, int] = {}  # when it decided the last of these that is logged
        self._waiting: deque[_Request] = deque()
        self._round: asyncio.Task[None] | None = None
        self._doubtful = False  # a command may still become committed

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
        """Return whether consumers of the group hold any lock that has not expired."""
        now_ms = self.clock_ms()
        return any(not self._is_over(key, now_ms) for key in self._table().keys_of(group))

    def leadership_changed(self) -> None:
        """Start afresh: this replica became the ready leader, or is not any more."""
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
        """Free locks that nobody renewed, or log their age; a chore."""
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
        """Stop; call it when nothing is proposed any more."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait([self._round])

    # ---- rounds -----------------------------------------------------------------------------

    async def settle(self, request: _Request) -> None:
        """Return once the request is decided and that is certain. Raises Refused, RaftError."""
        if not self._leading():
            raise not_leader()
        if len(self._waiting) >= WAITING_MAX:
            raise busy("too many requests for locks wait")
        self._waiting.append(request)
        while not request.done:
            # A round belongs to nobody: it goes on if one that waits for it is cancelled.
            await asyncio.shield(self._start_round())
        if request.error is not None:
            raise request.error

    def _start_round(self) -> asyncio.Task[None]:
        """Return the round in progress, or start the next one."""
        if self._round is None or self._round.done():
            self._round = asyncio.get_running_loop().create_task(self._decide_all())
        return self._round

    async def _decide_all(self) -> None:
        while self._waiting or self._log_ages:
            batch = self._take()
            try:
                await self._decide(batch)
            except Exception as error:  # whatever it is goes to the requesters
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
        # Before the changes: the ages are of the table as it is.
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
        """Return what goes into the log, and what is granted or renewed (True: logged), deciding
        one request after the other."""
        table = self._table()
        owners: dict[Key, str | None] = {}  # as this round leaves them in the log
        confirmed: dict[Key, bool] = {}
        changes: list[OwnerChange] = []
        ended: list[int] = []  # their ages
        room = OWNED_MAX - len(table)
        for request in batch:
            # The last of the room is for those who said that they are members.
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
        """Return a lower bound of the time since the lock's owner was last confirmed."""
        known = [self._table().renewed.get(key, now_ms), self._renewed.get(key)]
        if not self._ages_logged:
            known.append(self._since_ms)  # once that is logged, the table's note is later
        return now_ms - max(moment for moment in known if moment is not None)

    def _is_over(self, key: Key, now_ms: int) -> bool:
        age_ms = self._age_ms(key, now_ms)
        if age_ms <= self._lifetime_ms * GONE:
            return False
        owner = self._table().owner(key)
        present = owner is not None and self._present(key[1], owner)
        return age_ms > self._lifetime_ms or not present

    def _unlogged_ages(self, now_ms: int) -> dict[Key, int]:
        """Return the oldest of the ages that a replica which has only the log does not know."""
        if self._since_ms is not None and not self._ages_logged:
            return {}  # this replica does not know them either
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
    """Group ages as `Renewals` has them; rounded down to a tenth of a second."""
    alike: defaultdict[tuple[int, str], dict[str, list[int]]] = defaultdict(dict)
    for (topic, group, queue_id), age_ms in ages.items():
        alike[age_ms // 100 * 100, group].setdefault(topic, []).append(queue_id)
    return [(age_ms, group, queues) for (age_ms, group), queues in alike.items()]


def _parsed(body: bytes) -> tuple[_Request, dict[tuple[str, int], dict[str, Any]]]:
    """Return the request, and its queues as the client named them. Raises BodyError, Refused."""
    fields = loads_request(body)
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
    """Return classic mode's `propose`: it changes the table here and now."""

    async def propose(payload: bytes) -> int:
        table.apply(orjson.loads(payload))
        return 0

    return propose


def lock_service(context: Context, clients: ClientTable) -> LockService:
    """Return the lock service of a broker. In classic mode the locks are this broker's memory."""
    config, log_of, offsets = context.config, context.log, context.state.offsets
    own = LockTable(clock_ms=context.clock_ms)
    offsets.locks.use_clock(context.clock_ms)

    def terms() -> tuple[int, int | None]:
        index = None if log_of.raft is None else log_of.raft.log_index
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
        lifetime_ms=config.rebalance_lock_max_live_ms,
    )
