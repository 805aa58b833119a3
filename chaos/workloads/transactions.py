"""The workload `transactions`: producers that commit, roll back, or do not know yet.

The decision of each transaction is drawn before its start. If it is not immediate, the producer
answers the broker's check-backs with commit or rollback, or first with unknown; for a few
transactions always with unknown. At the end exactly these few are open, which the broker's half and
op topics must show. If a decision is lost, the broker checks back and gets the same decision. The
workload needs transactionTimeOut and transactionCheckInterval of a few seconds, and a
transactionCheckMax that is not reached (SETTINGS).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from raftmq.client import (
    Admin,
    ClientError,
    Message,
    MessageExt,
    MessageQueue,
    TransactionProducer,
    TransactionState,
)

from ..cluster.credentials import signing
from ..history.deferred_events import COMMIT, ROLLBACK, UNDECIDED
from ..history.events import Outcome
from .deferred import PostedConfig, Posting, Scanner

TRANSACTIONS = PostedConfig("transactions", "ChaosTransactions", "chaos-transactions")
SETTINGS = {
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "2000",
    "transactionCheckMax": "10000",
}
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
RESCAN_S = 1.0

STATES = {
    COMMIT: TransactionState.COMMIT,
    ROLLBACK: TransactionState.ROLLBACK,
    UNDECIDED: TransactionState.UNKNOWN,
}


@dataclass(slots=True)
class Plan:
    """A plan: decide `first` at once, and `final` at check-back number `asks`."""

    first: str
    final: str
    asks: int = 1


# Weights out of a hundred. The last plan is never decided.
PLANS = (
    (60, Plan(COMMIT, COMMIT)),
    (18, Plan(ROLLBACK, ROLLBACK)),
    (10, Plan(UNDECIDED, COMMIT)),
    (8, Plan(UNDECIDED, ROLLBACK)),
    (3, Plan(UNDECIDED, COMMIT, 3)),
    (1, Plan(UNDECIDED, UNDECIDED)),
)


class Transacted:
    """Sends messages in transactions, and answers the brokers' check-backs."""

    def __init__(self, posting: Posting) -> None:
        self._posting = posting
        self.consumers = posting.consumers
        self._plans: dict[str, Plan] = {}
        self.checked = 0  # check-backs answered

    async def execute(self, message: Message, process: str) -> TransactionState:
        """Run the local transaction of a producer."""
        name = str(message.unique_key)
        plan = self._plans[name]
        if plan.first != UNDECIDED:
            self._decide("invoke", process, name, plan.first)
        return STATES[plan.first]

    async def check(self, message: MessageExt) -> TransactionState:
        """Answer a broker's check-back, whichever producer of the group it reaches."""
        name = message.msg_id
        plan = self._plans.get(name)
        if plan is None:  # of an earlier run on this cluster
            return TransactionState.UNKNOWN
        self.checked += 1
        plan.asks -= 1
        decision = plan.final if plan.asks <= 0 else UNDECIDED
        self._decide("invoke", "check", name, decision, check=True)
        if decision == COMMIT:
            self._posting.news()
        return STATES[decision]

    async def prepare(self, admin: Admin) -> None:
        """Create nothing more."""

    async def producer(
        self, stack: AsyncExitStack, name: str, rng: random.Random
    ) -> Callable[[int], Awaitable[None]]:
        posting = self._posting
        group = f"{posting.config.group}-producers"
        producer = TransactionProducer(group, posting.env.namesrv, self, instance_config=signing())
        await stack.enter_async_context(producer)
        # A group with an undecided transaction could never leave.
        all_end = posting.env.groups_change
        shares = [one for one in PLANS if not all_end or one[1].final != UNDECIDED]
        weights, plans = [weight for weight, _ in shares], [plan for _, plan in shares]

        async def one(number: int) -> None:
            (drawn,) = rng.choices(plans, weights)
            op, key = posting.starts(name)
            self._plans[key] = plan = Plan(drawn.first, drawn.final, drawn.asks)
            message = posting.message(key, rng)
            if plan.final == COMMIT:  # it may arrive before its send is answered, by a check-back
                posting.awaited.add(key)
            try:
                result = await producer.send_in_transaction(message, name)
            except ClientError as error:
                posting.ends(name, op, key, error)
                posting.awaited.discard(key)
                return
            outcome = posting.ends(name, op, key, result.half)
            if outcome is not Outcome.OK:
                posting.awaited.discard(key)
                self._decide("invoke", name, key, ROLLBACK)  # by the client, without `execute`
            if outcome is Outcome.OK and plan.first != UNDECIDED:
                self._decide("ok" if result.confirmed else "unknown", name, key, plan.first)

        return one

    def _decide(
        self, kind: str, process: str, name: str, decision: str, *, check: bool = False
    ) -> None:
        more = {"check": True} if check else {}
        history = self._posting.history
        history.event(
            kind, "decide", process, history.next_op(), id=name, decision=decision, **more
        )

    async def evidence(self, deadline_s: float) -> None:
        """Record open half messages, once none of them is decided (or nothing changes)."""
        posting = self._posting
        env = posting.env
        halves = Halves()
        async with posting.scanner() as scanner:
            posting.news()
            before = -1
            while True:
                try:
                    await halves.read(scanner)
                except ClientError as error:
                    env.say(f"{posting.name}: half messages could not be read: {error}")
                    if posting.is_quiet(deadline_s):
                        return
                    await asyncio.sleep(RESCAN_S)
                    continue
                mine = [m for m in halves.open() if m.msg_id in self._plans]
                waiting = sum(self._plans[m.msg_id].final != UNDECIDED for m in mine)
                if waiting != before:
                    before = waiting
                    posting.news()
                if not waiting or posting.is_quiet(deadline_s):
                    break
                await asyncio.sleep(RESCAN_S)
        for message in {message.msg_id: message for message in mine}.values():
            posting.write_stored(message)
        posting.write_scanned(halves.records)


class Halves:
    """Half messages, and those that the op topic marks as ended."""

    def __init__(self) -> None:
        self.records = 0
        self._halves: dict[tuple[str, int], MessageExt] = {}
        self._ended: set[tuple[str, int]] = set()

    async def read(self, scanner: Scanner) -> None:
        """Read new messages. Raises ClientError.

        The op topic is read first, so that a half message that is rewritten in between is found
        twice and not missed.
        """
        for broker in scanner.brokers:
            for message in await scanner.read(MessageQueue(OP_TOPIC, broker, 0)):
                self.records += 1
                for number in message.body.decode("ascii").split(","):
                    if number:
                        self._ended.add((broker, int(number)))
            for message in await scanner.read(MessageQueue(HALF_TOPIC, broker, 0)):
                self._halves[broker, message.queue_offset] = message
                self.records += 1

    def open(self) -> list[MessageExt]:
        return [half for position, half in self._halves.items() if position not in self._ended]
