"""Where a consumer shall pull next (suggestWhichBrokerId), and what a slave says. Pure.

A master whose consumer is so far behind that its data are no longer in memory sends it to a slave
(`whichBrokerWhenConsumeSlowly`, with slaveReadEnable); a slave sends it back as soon as its data
are in memory. A slave that serves because its master is away says "the master", too: a consumer
that cannot reach it asks the slave again.

What looks like a moved offset on a slave may only mean that the slave is behind. With its master
alive it sends the consumer there at once, the offset kept (20); else the consumer waits. A pull
that finds nothing new is not held for long either while the master is alive: its consumer belongs
there.
Raft replicas serve what is committed and suggest nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.groups import SubscriptionGroup

MASTER_ID = 0
SLOW_ID = 1  # of a group that is not configured: Apache's default


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """`redirects`: this is a slave and its master is alive, as far as it knows."""

    slave_reads: bool
    redirects: Callable[[], bool]

    def suggest(self, group: SubscriptionGroup | None, cold: bool) -> int:
        """The brokerId to pull from next, after an answer of `cold` data or none."""
        if not self.slave_reads:
            return MASTER_ID
        if group is None:
            return SLOW_ID if cold else MASTER_ID
        return group.slow_broker_id if cold else group.broker_id
