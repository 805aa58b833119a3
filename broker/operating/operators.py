"""The handlers of operators' tools beyond topics and groups (broker.operating.admin), put together:
progress, resets, relayed requests, figures, upkeep, members, backups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from raftmq.broker.backup.service import Backups
from raftmq.broker.consuming.queries import not_leader
from raftmq.broker.consuming.resets import Resets
from raftmq.broker.operating.progress import ProgressQueries
from raftmq.broker.operating.relay import Relay
from raftmq.broker.operating.stats import GroupRates, StatsQueries
from raftmq.broker.operating.upkeep import Upkeep
from raftmq.broker.replication.members import Members
from raftmq.remoting.connection import Handler

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker


class Operators:
    """Builds and holds what serves operators; one per broker, made when its parts are."""

    def __init__(
        self,
        broker: Broker,
        propose: Callable[[bytes], Awaitable[int]],
        propose_then: Callable[[bytes, Callable[[Exception | None], None]], None],
        barrier: Callable[[], Awaitable[None]],
    ) -> None:
        name = broker.config.broker_name
        state, store, clients = broker.state, broker.store, broker.clients
        self.rates = GroupRates(state, broker.clock_ms)
        self.resets = Resets(
            name,
            state,
            store,
            clients,
            propose,
            propose_then,
            leading=lambda: broker.roles.leading,
            not_leader=not_leader,
            flush_commits=broker.commits.flush,
            wake=broker.pulls.holds.release_all,
            has_room=broker.commits.has_room,
            access=broker.access,
        )
        broker.pulls.judge_reset = self.resets.judge
        self._progress = ProgressQueries(
            name, lambda: broker.address, state, store, clients, self.rates, barrier
        )
        self._stats = StatsQueries(state, store, self.rates, broker.wall_ms)
        self._relay = Relay(clients, name, store.reads.message_at, broker.access)
        self._upkeep = Upkeep(broker)
        self.members = Members(broker)
        self._backups = Backups(broker)
        self._access = broker.access
        self._access.book.use_log(propose, propose_then, barrier)

    def handlers(self) -> dict[int, Handler]:
        return {
            **self.resets.handlers(),
            **self._progress.handlers(),
            **self._stats.handlers(),
            **self._relay.handlers(),
            **self._upkeep.handlers(),
            **self.members.handlers(),
            **self._backups.handlers(),
            **self._access.handlers(),
        }
