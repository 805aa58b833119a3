"""The throttle of those that are far behind: a rate over time, and nobody else is held back."""

from __future__ import annotations

from raftmq.dledger.raft.append_throttle import NEVER_DUE_MS, AppendThrottle
from raftmq.dledger.raft.config import CoreConfig
from tests.dledger.group import Group


def test_append_throttle_holds_its_rate_for_any_request_size() -> None:
    for size in (10, 1_000, 30_000):
        throttle = AppendThrottle(100_000)
        sent = 0
        now_ms = 1_000.0
        while now_ms < 11_000:
            while throttle.may_send(now_ms):
                throttle.sent(size)
                sent += size
            assert throttle.due_ms > now_ms
            now_ms, throttle.due_ms = throttle.due_ms, NEVER_DUE_MS
        assert 980_000 <= sent <= 1_000_000 + 10_000 + size


def test_append_throttle_without_a_rate_does_not_wait() -> None:
    throttle = AppendThrottle(0)
    for _ in range(100):
        assert throttle.may_send(0)
        throttle.sent(1 << 20)
    assert throttle.due_ms == NEVER_DUE_MS


PACED = CoreConfig(append_bytes_max=500, inflight_bytes_max=1_000, catch_up_bytes_per_s=10_000)


def test_lagging_follower_is_throttled_and_other_followers_are_not() -> None:
    group = Group(config=PACED)
    group.elect("a")
    group.dropped = {("a", "c"), ("c", "a")}
    for _ in range(200):
        group["a"].propose(b"x" * 100)
        group.settle()
    assert group["b"].core.durable_index == group["a"].core.commit_index  # unpaced
    assert group["a"].core.commit_index == group["a"].core.last_index
    total = group["a"].log[-1].end
    assert total > 3 * PACED.catch_up_bytes_per_s * 0.5
    group.dropped.clear()
    group.run(1_000)  # the first probes, lost ones are sent again
    began_bytes, began_ms = end_of(group), group.now_ms
    assert began_bytes < total / 2
    while total - end_of(group) > 2 * PACED.inflight_bytes_max:
        group.run(100)
        group["a"].propose(b"live")
        last = group["a"].core.last_index
        group.settle()
        assert group["b"].core.durable_index == last  # at once, no time has passed
        assert group["a"].core.commit_index == last
    rate = (end_of(group) - began_bytes) / (group.now_ms - began_ms) * 1000
    assert 0.8 * PACED.catch_up_bytes_per_s < rate < 1.1 * PACED.catch_up_bytes_per_s
    group.run(1_000)
    assert group["c"].log == group["a"].log


def end_of(group: Group) -> int:
    log = group["c"].log
    return log[-1].end if log else 0


def test_append_throttle_does_not_delay_the_follower_that_commit_needs() -> None:
    """The only other replica that is up is far behind: as fast as it can."""
    group = Group(config=PACED)
    group.elect("a")
    group["b"].down = group["c"].down = True
    for _ in range(200):
        group["a"].propose(b"x" * 100)
        group.work()
    group.queue.clear()
    group["b"].down = False
    group["a"].core.peer_closed("b", group.now_ms)
    group["a"].core.peer_opened("b")
    group.settle()
    assert group["a"].core.commit_index == group["a"].core.last_index
