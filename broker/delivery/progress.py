"""The progress of deliveries, where it says more than the log: taken back to the log. Pure.

In classic mode the tables are not in the log. A slave copies them by another connection than the
log's, and a file under config/ may be durable before what it speaks of. So whoever becomes master
may know a progress beyond the ends of its queues; what comes next would get offsets that this calls
delivered, or ended, already.
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.broker.delivery.transactions.conversion import GROUP, HALF_TOPIC, OP_TOPIC
from raftmq.broker.tables.state import BrokerState
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC


def keep_within(state: BrokerState, end_of: Callable[[str, int], int]) -> bool:
    """Take the progress of delays, timers and transactions back to the ends of their queues; return
    whether that changed anything. `end_of(topic, queue id)`: the offset of the next message."""
    delays, offsets = state.delays, state.offsets
    before = delays.counter, offsets.counter
    for level, offset in list(delays.offsets.items()):
        end = end_of(SCHEDULE_TOPIC, level - 1)
        if offset > end:
            delays.advance(level, end)
    timer, end = delays.timer, end_of(TIMER_TOPIC, 0)
    if max(timer.end, timer.floor) > end:
        delays.advance_timer(timer._replace(end=min(timer.end, end), floor=min(timer.floor, end)))
    for topic in (HALF_TOPIC, OP_TOPIC):
        end = end_of(topic, 0)
        if (offsets.get(topic, GROUP, 0) or 0) > end:
            offsets.commit([(topic, GROUP, 0, end)])
    return before != (delays.counter, offsets.counter)
