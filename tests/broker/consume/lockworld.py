"""Three replicas' lock services over one imagined log, with leaders that change unnoticed, replicas
that restart, and some that are of a version which has no renewals in the log; and consumers that
believe in their locks as Java's do. Time is imagined, too; a seed decides."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from raftmq.broker.consume.queue_locks import LockService
from raftmq.broker.errors import Refused
from raftmq.broker.tables.offsets import OffsetTable
from raftmq.broker.tables.queue_locks import LockTable
from raftmq.broker.tables.state import decode_command_payload
from raftmq.dledger.raft.errors import NotLeader, OutcomeUnknown
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand

TIMEOUT_MS = 1_000  # of a consumer's request
HELD_MS = 30_000  # a consumer's lock is its own for so long after an answer
QUEUES = [("T", 0), ("T", 1), ("U", 0)]
CLIENTS = ["A", "B", "C"]
TURNS = 6  # of the loop: more than any chain of wake-ups here is long


@dataclass
class LockRequest:
    """A consumer's request, and the queues that it was granted."""

    group: str
    client: str
    queues: list[tuple[str, int]]
    unlock: bool = False
    granted: list[tuple[str, int]] = field(default_factory=list)


async def settle(service, request):
    """Have the service answer the request. Raises its errors."""
    queues = [{"brokerName": "b", "topic": t, "queueId": n} for t, n in request.queues]
    fields = {"clientId": request.client, "consumerGroup": request.group, "mqSet": queues}
    code = RequestCode.UNLOCK_BATCH_MQ if request.unlock else RequestCode.LOCK_BATCH_MQ
    command = RemotingCommand.request(code, None, orjson.dumps(fields))
    if request.unlock:
        await service.unlock(None, command)
        return
    answer = await service.lock(None, command)
    granted = orjson.loads(answer.body)["lockOKMQSet"]
    request.granted = [(queue["topic"], queue["queueId"]) for queue in granted]


class OldLockService(LockService):
    """Of the version before renewals were in the log: every lock that a new leader finds counts
    from its readiness, as long as it leads."""

    _ages_logged = property(lambda self: False, lambda self, told: None)

    def _is_to_be_logged(self, key, now_ms):
        return False


@dataclass
class Replica:
    world: "World"
    rate: float
    offset: float
    lifetime_ms: int
    barrier_proves: bool
    old: bool = False  # of the version before renewals were in the log
    trusts: bool = False  # planted: whoever led before, its renewals are believed to be there
    offsets: OffsetTable = field(default_factory=OffsetTable)
    snapshot: tuple = (0, b"")
    applied: int = 0
    leading: bool = False
    term: int = 0
    spoil: Callable[[bytes], bytes] | None = None  # planted: what becomes of its commands
    proposals: list = field(default_factory=list)  # (payload, future or None), not committed
    barriers: list = field(default_factory=list)

    def __post_init__(self):
        self.table.use_clock(self.clock_ms)
        self.snapshot = (0, orjson.dumps(self.offsets.to_json()))
        self.service = (OldLockService if self.old else LockService)(
            lambda: self.table,
            propose=self.propose,
            barrier=self.barrier,
            leading=lambda: self.leading,
            terms=self.terms,
            present=self.is_here,
            exists=lambda topic, queue_id: True,
            clock_ms=self.clock_ms,
            lifetime_ms=self.lifetime_ms,
        )

    @property
    def table(self) -> LockTable:
        return self.offsets.locks

    def clock_ms(self):
        return int(self.world.now_ms * self.rate + self.offset)

    def is_here(self, group, client):
        here = self.world.present
        return self.old or (self.world.rng.random() < 0.5 if here is None else here)

    def terms(self):
        if self.trusts:
            return self.term, self.table.term
        before = next((t for t, _ in reversed(self.world.log) if t < self.term), 0)
        return self.term, None if self.old else before

    async def propose(self, payload):
        if not self.leading:
            raise NotLeader(None)
        if self.old:
            changes = {k: v for k, v in orjson.loads(payload).items() if k != "renewals"}
            payload = orjson.dumps(changes)
        elif self.spoil is not None:
            payload = self.spoil(payload)
        future = asyncio.get_running_loop().create_future()
        self.proposals.append([payload, future])
        return await future

    async def barrier(self):
        if not self.barrier_proves:
            return
        if not self.leading:
            raise NotLeader(None)
        future = asyncio.get_running_loop().create_future()
        self.barriers.append(future)
        await future

    def apply_committed(self):
        for _, payload in self.world.log[self.applied :]:
            if payload is not None:
                self.table.apply(decode_command_payload(payload))
        self.applied = len(self.world.log)

    def commit_one(self):
        payload, future = self.proposals.pop(0)
        self.world.log.append((self.term, payload))
        self.apply_committed()
        if future is not None and not future.done():
            future.set_result(len(self.world.log))

    def notice(self):
        """It hears that it leads no more."""
        self.leading = False
        self.service.leadership_changed()
        for _, future in self.proposals:
            if future is not None and not future.done():
                future.set_exception(OutcomeUnknown("leadership lost"))
        self.proposals.clear()
        for future in self.barriers:
            future.set_exception(NotLeader(None))
        self.barriers.clear()

    def lead(self):
        self.world.term += 1
        self.term = self.world.term
        self.world.log.append((self.term, None))
        self.apply_committed()
        self.leading = True
        self.service.leadership_changed()

    def save(self):
        self.snapshot = (self.applied, orjson.dumps(self.offsets.to_json()))

    def restart(self):
        """It knows what its snapshot and the log say, and nothing of when that was."""
        self.notice()
        self.applied, saved = self.snapshot
        self.offsets.load(orjson.loads(saved), 0)
        self.offset = self.world.rng.uniform(0, 1e9)
        self.table.use_clock(self.clock_ms)
        self.apply_committed()


class World:
    def __init__(
        self, seed, lifetime_ms=60_000, barrier_proves=True, old=(), trusts=False, **settled
    ):
        """`old`: which replicas are. `settled`: `rates` of clocks, from and to, `present`."""
        self.present = settled.get("present")  # None: now and then
        rates = settled.get("rates", (0.8, 1.25))
        self.rng = random.Random(seed)
        self.now_ms = 0.0
        self.log = []  # (term, payload; None: a term begins)
        self.term = 0
        self.replicas = [
            Replica(
                self,
                self.rng.uniform(*rates),
                self.rng.uniform(0, 1e9),
                lifetime_ms,
                barrier_proves,
                number in old,
                trusts,
            )
            for number in range(3)
        ]
        self.leader = self.replicas[0]
        self.asked = []  # (client, sent at, queues, task)
        self.believes = {}  # (topic, queue id) → {client: until}
        self.unlocked = {}  # (client, (topic, queue id)) → when it last sent an unlock
        self.grants = 0
        self.overlaps = []

    async def run(self, steps):
        self.leader.lead()
        step_kinds = [
            (self.ask, 30),
            (self.settle_something, 40),
            (self.answer, 30),
            (self.pass_time, 20),
            (self.change_leader, 4),
            (self.notice, 1),
            (self.time_out_a_command, 2),
            (self.sweep, 2),
            (self.follow, 10),
            (self.restart, 1),
        ]
        kinds, weights = zip(*step_kinds, strict=True)
        for _ in range(steps):
            self.rng.choices(kinds, weights)[0]()
            for _ in range(TURNS):
                await asyncio.sleep(0)
        for replica in self.replicas:
            replica.notice()
            await replica.service.stop()
        await asyncio.gather(*(task for *_, task in self.asked), return_exceptions=True)

    # ---- what happens -----------------------------------------------------------------------

    def ask(self):
        client = self.rng.choice(CLIENTS)
        replica = self.rng.choice([self.leader] * 6 + self.replicas)
        queues = self.rng.sample(QUEUES, self.rng.randint(1, len(QUEUES)))
        request = LockRequest("g", client, queues, unlock=self.rng.random() < 0.06)
        if request.unlock:
            for queue in queues:
                self.believes.get(queue, {}).pop(client, None)
                self.unlocked[client, queue] = self.now_ms
        task = asyncio.get_running_loop().create_task(self.settled(replica, request))
        if self.rng.random() < 0.05:
            asyncio.get_running_loop().call_soon(task.cancel)  # its connection ends
        self.asked.append((request, self.now_ms, task))

    async def settled(self, replica, request):
        try:
            await settle(replica.service, request)
        except (Refused, NotLeader, OutcomeUnknown):
            return None
        return request.granted

    def settle_something(self):
        if self.leader.proposals and self.rng.random() < 0.7:
            self.leader.commit_one()
        elif self.leader.barriers:
            # It is proven that it leads now, and it does.
            self.leader.barriers.pop(0).set_result(None)

    async def settle_all(self, following=()):
        for _ in range(TURNS):
            await asyncio.sleep(0)
            while self.leader.proposals:
                self.leader.commit_one()
            while self.leader.barriers:
                self.leader.barriers.pop(0).set_result(None)
            for replica in following:
                replica.apply_committed()

    def answer(self):
        """An answer arrives, some time after it was decided."""
        ready = [entry for entry in self.asked if entry[2].done()]
        if not ready:
            return
        entry = self.rng.choice(ready)
        self.asked.remove(entry)
        request, sent_ms, task = entry
        granted = None if task.cancelled() else task.result()
        if granted is None or request.unlock or self.now_ms - sent_ms > TIMEOUT_MS:
            return
        for queue in request.queues:
            held = self.believes.setdefault(queue, {})
            given_up = self.unlocked.get((request.client, queue), -1) >= sent_ms
            if queue not in granted or given_up:
                held.pop(request.client, None)
                continue
            self.grants += 1
            others = [c for c, until in held.items() if c != request.client and until > self.now_ms]
            if others:
                self.overlaps.append((self.now_ms, queue, request.client, others))
            held[request.client] = self.now_ms + HELD_MS

    def pass_time(self):
        longest = self.rng.choice([20] * 20 + [300] * 10 + [2_000, 25_000, 25_000, 50_000])
        self.now_ms += self.rng.uniform(0, longest)

    def change_leader(self):
        """Another leads; of what the former one proposed a part survives."""
        old = self.leader
        for _ in range(self.rng.randint(0, len(old.proposals))):
            # The future is never resolved, or fails.
            self.log.append((old.term, old.proposals.pop(0)[0]))
        new = self.rng.choice([r for r in self.replicas if r is not old])
        if new.leading:
            new.notice()
        new.lead()
        self.leader = new

    def follow(self):
        """A replica hears what is committed; others hear it later."""
        replica = self.rng.choice(self.replicas)
        if not replica.leading:
            replica.apply_committed()
            if self.rng.random() < 0.2:
                replica.save()

    def restart(self):
        replica = self.rng.choice(self.replicas)
        if replica is self.leader:
            self.change_leader()
        replica.restart()

    def notice(self):
        deposed = [r for r in self.replicas if r.leading and r is not self.leader]
        if deposed:
            self.rng.choice(deposed).notice()

    def time_out_a_command(self):
        replica = self.rng.choice(self.replicas)
        waiting = [entry for entry in replica.proposals if entry[1] is not None]
        if waiting:
            entry = self.rng.choice(waiting)
            if not entry[1].done():
                entry[1].set_exception(OutcomeUnknown("no fate in time"))
            entry[1] = None

    def sweep(self):
        self.rng.choice(self.replicas).service.sweep()
