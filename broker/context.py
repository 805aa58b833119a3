"""The things that every part of a broker may use.

`Context` holds what exists before the first service: configuration, disk, replicated state, store,
log, clocks. A part is given the context and the other parts that it needs, by name; what it offers
in return it lists in a `Service` (broker.component).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from raftmq.remoting.memory_limits import Budgets
from raftmq.remoting.process_tls import ProcessTls
from raftmq.store.disk import Disk
from raftmq.store.message_store import MessageStore

from .config import BrokerConfig
from .error_isolation import Contained
from .events import NodeEvents
from .replication.log import ReplicatedLog
from .replication.roles import RoleView
from .tables.state import BrokerState


@dataclass(slots=True)
class Life:
    """The state of the broker's process between its start and its end."""

    boot_ms: int  # wall clock
    recovered: bool = False  # the log is open: only then is there anything to flush
    stopping: bool = False
    closed: bool = False  # the log is closed again
    stop_wanted: asyncio.Event = field(default_factory=asyncio.Event)  # an operator asked it to end

    @property
    def serving(self) -> bool:
        """True while the broker's parts can be used: its log is open."""
        return self.recovered and not self.closed


@dataclass(frozen=True, slots=True)
class Context:
    """The things that a broker's parts share. `address` and `http_address` (with https:// if TLS is
    used; "" without HTTP) are those that others are told. Time-outs go by `clock_ms`, which is
    monotonic; `wall_ms` is the time of day."""

    config: BrokerConfig
    disk: Disk
    state: BrokerState
    store: MessageStore
    log: ReplicatedLog
    roles: RoleView
    events: NodeEvents
    contained: Contained
    budgets: Budgets
    life: Life
    tls: ProcessTls
    address: str
    http_address: str
    clock_ms: Callable[[], int]
    wall_ms: Callable[[], int]

    def leader_http(self) -> str:
        """Return the address of the leader's node API; "" when that is not known."""
        if self.roles.leading:
            return self.http_address
        leader = self.roles.leader
        return "" if leader is None else self.state.http_addresses.get(leader, "")
