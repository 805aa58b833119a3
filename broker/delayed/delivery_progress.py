"""The progress of deliveries and of consumers, where it says more than the log: taken back to the
log. Pure.

In classic mode the tables are not in the log. A slave copies them by another connection than the
log's, and a file under config/ that Apache's broker wrote may be durable before what it speaks of.
So whoever becomes master may know a progress beyond the ends of its queues; what comes next would
get offsets that this calls delivered, ended or consumed already.
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC

from ..tables.state import BrokerState


def keep_within(state: BrokerState, end_of: Callable[[str, int], int]) -> bool:
    """Take the progress of delays, timers, transactions and consumers back to the ends of their
    queues; return whether that changed anything. Where pops are ahead, what was in flight comes
    again. `end_of(topic, queue id)`: the offset of the next message."""
    delays, offsets, pops = state.delays, state.offsets, state.pops
    before = delays.counter, offsets.counter
    for level, offset in list(delays.offsets.items()):
        end = end_of(SCHEDULE_TOPIC, level - 1)
        if offset > end:
            delays.advance(level, end)
    timer, end = delays.timer, end_of(TIMER_TOPIC, 0)
    if max(timer.end, timer.floor) > end:
        delays.advance_timer(timer._replace(end=min(timer.end, end), floor=min(timer.floor, end)))
    ahead = [
        (topic, group, queue_id, end)
        for (topic, group), queues in offsets.offsets.items()
        for queue_id, offset in queues.items()
        if offset > (end := end_of(topic, queue_id))
    ]
    for (topic, group, queue_id), queue in pops.places():
        if queue.next > (end := end_of(topic, queue_id)):
            first = queue.first_unfinished
            begin = end if first is None else min(first, end)
            pops.reset([(topic, group, queue_id, begin)])
            queue.popped_to = min(queue.popped_to, end)
            ahead.append((topic, group, queue_id, begin))
    if ahead:
        offsets.commit(ahead)
    return before != (delays.counter, offsets.counter)
