"""Routes consumers between leader and followers (suggestWhichBrokerId).

With slaveReadEnable, a master or leader sends a consumer of data that are no longer in memory to a
slave or follower (`whichBrokerWhenConsumeSlowly`), which sends it back later. A slave without a
master also suggests the master; a consumer that cannot reach it returns.

On a slave, an offset that seems moved may only mean that the slave is behind. If its master is
alive, the slave sends the consumer there with the same offset (20) and holds empty pulls only
briefly; else the consumer waits.

In a Raft group, cold data are read from `whichBrokerWhenConsumeSlowly` if that is a connected
follower, else from any follower. A group's nonzero `brokerId` is treated the same. A follower
suggests itself for cold data and otherwise the leader, and holds empty pulls only briefly if
slaveReadEnable is set. It never returns consumers immediately, because consumers with an outdated
route would loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..context import Context
from ..tables.groups import SubscriptionGroup

MASTER_ID = 0
SLOW_ID = 1  # Apache's default, for a group without configuration
CACHE_MS = 1_000  # how long the list of followers is cached


class ReadPolicy(Protocol):
    def redirects(self) -> bool:
        """Return True if consumers should read elsewhere, and that replica is reachable."""
        ...

    @property
    def sends_back(self) -> bool:
        """True if a moved offset is answered immediately while `redirects()` is True."""
        ...

    def suggest(self, group: SubscriptionGroup | None, cold: bool) -> int:
        """Return the brokerId for the next pull, after a response with `cold` data or without."""
        ...


def _configured_id(group: SubscriptionGroup | None, cold: bool) -> int:
    if group is None:
        return SLOW_ID if cold else MASTER_ID
    return group.slow_broker_id if cold else group.broker_id


@dataclass(frozen=True, slots=True)
class ClassicReads:
    """The read policy of classic mode. `master_alive` is True on a slave with a live master."""

    slave_reads: bool
    master_alive: Callable[[], bool]
    sends_back: bool = True

    def redirects(self) -> bool:
        return self.master_alive()

    def suggest(self, group: SubscriptionGroup | None, cold: bool) -> int:
        return _configured_id(group, cold) if self.slave_reads else MASTER_ID


@dataclass(frozen=True, slots=True)
class RaftReads:
    """The read policy of Raft mode. `leader_known()` is True on a follower with a leader.
    `own_id()` is 0 on the leader. `followers()` returns the brokerIds of connected followers."""

    slave_reads: bool
    leader_known: Callable[[], bool]
    own_id: Callable[[], int]
    followers: Callable[[], Sequence[int]]
    sends_back: bool = False

    def redirects(self) -> bool:
        return self.slave_reads and self.leader_known()

    def suggest(self, group: SubscriptionGroup | None, cold: bool) -> int:
        if not self.slave_reads:
            return MASTER_ID
        preferred, own = _configured_id(group, cold), self.own_id()
        if own != MASTER_ID:
            return own if cold or preferred == own else MASTER_ID
        if preferred == MASTER_ID:
            return MASTER_ID
        within_reach = self.followers()
        if preferred in within_reach:
            return preferred
        return within_reach[0] if cold and within_reach else MASTER_ID


def read_policy(context: Context) -> ReadPolicy:
    config, roles, log = context.config, context.roles, context.log
    if config.is_classic:
        return ClassicReads(
            config.slave_read_enable, lambda: config.is_slave and log.classic.slave.connected
        )
    return RaftReads(
        config.slave_read_enable,
        leader_known=lambda: roles.leader is not None and not roles.leading,
        own_id=lambda: log.identity.broker_id,
        followers=Followers(context).within_reach,
    )


class Followers:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: list[int] = []
        self._seen_ms = -CACHE_MS

    def within_reach(self) -> list[int]:
        """Return connected members' ids. A member without the data sends consumers back."""
        now_ms = self._context.clock_ms()
        if now_ms - self._seen_ms >= CACHE_MS:
            self._seen_ms, self._seen = now_ms, self._connected()
        return self._seen

    def _connected(self) -> list[int]:
        status: dict[str, Any] = self._context.log.status()
        peers = status.get("peers") or {}
        connected = {name for name, peer in peers.items() if peer.get("connected")}
        # pysyncobj's groups have no configuration, so their consumers stay.
        members = status.get("members") or []
        return sorted(m["broker_id"] for m in members if m["node_id"] in connected)
