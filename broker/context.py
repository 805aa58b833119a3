"""The context that all parts of a broker share.

`Context` holds configuration, disk, replicated state, store, log and clocks, which exist before the
first service. A part gets the context and the parts that it needs, and offers a `Service`
(broker.component).
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
from .durations import Durations
from .error_isolation import Contained
from .events import NodeEvents
from .replication.log import ReplicatedLog
from .replication.roles import RoleView
from .tables.state import BrokerState


@dataclass(slots=True)
class Life:
    """The state of the broker's process between its start and its end."""

    boot_ms: int  # wall clock
    recovered: bool = False  # the log is open and can be flushed
    stopping: bool = False
    closed: bool = False  # the log is closed
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)  # by an operator

    @property
    def serving(self) -> bool:
        """True while the log is open, so that the broker's parts can be used."""
        return self.recovered and not self.closed


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that a broker's parts share. `address` and `http_address` (https:// with TLS, ""
    without HTTP) are the advertised addresses. Timeouts follow the monotonic `clock_ms`; `wall_ms`
    is the time of day."""

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
    durations: Durations

    def leader_http(self) -> str:
        """Return the address of the leader's node API, or ""."""
        if self.roles.leading:
            return self.http_address
        leader = self.roles.leader
        return "" if leader is None else self.state.http_addresses.get(leader, "")
