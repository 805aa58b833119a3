"""Decides where a consumer is told to pull next (suggestWhichBrokerId), and what a replica answers
to consumers that should pull elsewhere.

A master or leader whose consumer is so far behind that its data are no longer in memory sends it to
a slave or follower (`whichBrokerWhenConsumeSlowly`, with slaveReadEnable), which sends it back as
soon as its data are in memory. A slave that serves because its master is away also suggests the
master: a consumer that cannot reach it asks the slave again.

What looks like a moved offset on a slave may only mean that the slave is behind. If its master is
alive, the slave sends the consumer there at once, the offset kept (20); else the consumer waits. A
pull that finds nothing new is not held for long either while the master is alive: its consumer
should go there.

In a Raft group a consumer of cold data goes to `whichBrokerWhenConsumeSlowly` if that is a
connected follower, else to another one; a group's `brokerId` other than 0 is treated alike. A
follower serves what is committed, so none of its answers has to be taken back. It suggests itself
for cold data and otherwise the leader, and holds a pull that finds nothing for a short time only,
if slaveReadEnable is set and another replica leads. It never sends consumers back at once: one
whose route is old, and calls this replica the leader, would come again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..context import Context
from ..tables.groups import SubscriptionGroup

MASTER_ID = 0
SLOW_ID = 1  # for a group that is not configured: Apache's default
CACHE_MS = 1_000  # for so long a look at the followers is valid


class ReadPolicy(Protocol):
    def redirects(self) -> bool:
        """Return whether this replica's consumers should go elsewhere, and somebody is there."""
        ...

    @property
    def sends_back(self) -> bool:
        """True if a moved offset is answered at once while `redirects()` holds."""
        ...

    def suggest(self, group: SubscriptionGroup | None, cold: bool) -> int:
        """Return the brokerId to pull from next, after an answer of `cold` data or none."""
        ...


def _configured_id(group: SubscriptionGroup | None, cold: bool) -> int:
    if group is None:
        return SLOW_ID if cold else MASTER_ID
    return group.slow_broker_id if cold else group.broker_id


@dataclass(frozen=True, slots=True)
class ClassicReads:
    """The read policy of classic mode. `master_alive`: this is a slave whose master is alive, as
    far as it knows."""

    slave_reads: bool
    master_alive: Callable[[], bool]
    sends_back: bool = True

    def redirects(self) -> bool:
        return self.master_alive()

    def suggest(self, group: SubscriptionGroup | None, cold: bool) -> int:
        return _configured_id(group, cold) if self.slave_reads else MASTER_ID


@dataclass(frozen=True, slots=True)
class RaftReads:
    """The read policy of Raft mode. `leader_known()`: another replica leads. `own_id()`: 0 on the
    leader. `followers()`: the brokerIds of connected ones."""

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
    """The connected followers as this leader sees them, looked at once a second at most."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: list[int] = []
        self._seen_ms = -CACHE_MS

    def within_reach(self) -> list[int]:
        """Return the brokerIds of connected members; one without the data sends back."""
        now_ms = self._context.clock_ms()
        if now_ms - self._seen_ms >= CACHE_MS:
            self._seen_ms, self._seen = now_ms, self._connected()
        return self._seen

    def _connected(self) -> list[int]:
        status: dict[str, Any] = self._context.log.status()
        peers = status.get("peers") or {}
        connected = {name for name, peer in peers.items() if peer.get("connected")}
        # pysyncobj's groups have no configuration: their consumers are not sent anywhere else.
        members = status.get("members") or []
        return sorted(m["broker_id"] for m in members if m["node_id"] in connected)
