"""The consuming side of a broker, put together: pulls, clients, the locks of ordered consumption,
replies to requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from raftmq.broker.consuming.locks import LockService, local_propose
from raftmq.broker.consuming.queries import not_leader
from raftmq.broker.consuming.subscriptions import SubscriptionQuestions
from raftmq.broker.housekeeping import Chore
from raftmq.broker.replication.engine import RaftEngine
from raftmq.broker.sending.reply import ReplyService, reply_topic
from raftmq.broker.tables.locktable import LockTable
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.connection import Handler

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker

SWEEP_MS = 10_000  # < a lock's lifetime


class Consuming:
    """Builds and holds what serves consumers; one per broker, made when its parts are."""

    def __init__(
        self,
        broker: Broker,
        propose: Callable[[bytes], Awaitable[int]],
        barrier: Callable[[], Awaitable[None]],
    ) -> None:
        config, offsets = broker.config, broker.state.offsets
        self._broker = broker
        own = LockTable(clock_ms=broker.clock_ms)  # classic mode's: memory of this broker
        offsets.locks.use_clock(broker.clock_ms)
        self.locks = LockService(
            (lambda: own) if config.is_classic else (lambda: offsets.locks),
            propose=local_propose(own) if config.is_classic else propose,
            barrier=barrier,
            leading=lambda: broker.roles.leading,
            not_leader=not_leader,
            terms=self._terms,
            present=self._is_here,
            clock_ms=broker.clock_ms,
            lifetime_ms=config.rebalance_lock_max_live_ms,
        )
        topic = reply_topic(config.broker_cluster_name)
        broker.state.topics.internal[topic.name] = topic
        self.replies = ReplyService(
            config,
            broker.state.topics,
            broker.clients,
            broker.sends,
            leading=lambda: broker.roles.leading,
            not_leader=not_leader,
            own_address=lambda: broker.address,
            elsewhere=self._other_leaders,
            wall_ms=broker.wall_ms,
            peers=RemotingClient(credentials=config.inner_credentials, tls=broker.tls.client),
        )

        self.questions = SubscriptionQuestions(broker.clients)
        broker.pulls.on_old_subscription = self.questions.ask

    def _terms(self) -> tuple[int, int | None]:
        """Return the term of this leadership, and the one before it in the log; None: not known."""
        term, engine = self._broker.roles.term, self._broker.engine
        index = engine.log_index if isinstance(engine, RaftEngine) else None
        first = None if index is None else index.first_index_of_term(term)
        return term, None if index is None or first is None else index.term_at(first - 1)

    def _is_here(self, group: str, client: str) -> bool:
        found = self._broker.clients.consumers.get(group)
        return found is not None and client in found.members

    def _other_leaders(self) -> list[str]:
        """Return the client addresses of other replicas that have led."""
        own = self._broker.address
        return [a for a in self._broker.state.addresses.values() if a not in ("", own)]

    def handlers(self) -> dict[int, Handler]:
        pull = self._broker.pulls.handle
        return {
            int(RequestCode.PULL_MESSAGE): pull,
            int(RequestCode.LITE_PULL_MESSAGE): pull,
            **self.locks.handlers(),
            **self.replies.handlers(),
        }

    def chores(self) -> list[Chore]:
        clients, pulls, clock_ms = self._broker.clients, self._broker.pulls, self._broker.clock_ms
        expiry_ms = max(100, self._broker.config.client_expiry_ms // 12)
        return [
            Chore("holds", 0, lambda: pulls.holds.expire(clock_ms())),
            Chore("client_expiry", expiry_ms, lambda: clients.expire(clock_ms())),
            Chore("locks", SWEEP_MS, self.locks.sweep),
        ]

    def leadership_changed(self) -> None:
        """Note that this replica became the ready leader, or is not any more."""
        self.locks.leadership_changed()

    async def stop(self) -> None:
        """Stop; call it when the engine has stopped."""
        await self.locks.stop()
        await self.replies.stop()
        await self.questions.stop()
