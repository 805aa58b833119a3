"""The wheel against a list that is sorted anew each time: what waits, and in which order it
comes."""

import random

import pytest

from raftmq.broker.tables.timer_wheel import (
    BLOCK,
    BUCKET_MS,
    NOTHING,
    Progress,
    TimerWheel,
    Waiting,
    progress_from_json,
)

NOW = 1_800_000_000_000


class Model:
    """A queue, what was delivered of it, and by which progress."""

    def __init__(self, rng):
        self.rng = rng
        self.queue = []  # due, by offset
        self.delivered = []
        self.moved = set()  # offsets that wait further on
        self.progress = NOTHING
        self.now_ms = NOW

    def waiting(self):
        gone = set(self.delivered) | self.moved
        return {offset for offset in range(len(self.queue)) if offset not in gone}

    def send(self, due_ms):
        self.queue.append(due_ms)

    def fed(self, wheel):
        for offset in range(wheel.next_offset, len(self.queue)):
            wheel.take(offset, self.queue[offset])
        return wheel

    def anew(self):
        wheel = TimerWheel(self.progress)
        wheel.skip_to(self.progress.floor)
        return self.fed(wheel)


def a_time(rng, now_ms):
    spans = (10, 1_000, BUCKET_MS, 20 * BUCKET_MS, 3 * 86_400_000)
    return now_ms + rng.randrange(-5, rng.choice(spans))


@pytest.mark.parametrize("seed", range(25))
def test_timer_wheel_delivers_each_message_once_in_order_over_leaders(seed):
    """Leaders that deliver, whose deliveries are lost or not heard of, and those that follow."""
    rng = random.Random(seed)
    model = Model(rng)
    leader, follower = TimerWheel(), TimerWheel()
    for _ in range(400):
        step = rng.randrange(10)
        if step < 4:
            for _ in range(rng.randrange(1, 30)):
                model.send(a_time(rng, model.now_ms))
        elif step < 5:
            model.now_ms += rng.choice((1, 50, 5_000, 10 * BUCKET_MS))
        elif step < 8:
            deliver(model, model.fed(leader))
        elif step < 9:
            store_again(model, model.fed(leader))
        else:
            model.fed(follower).settle(model.progress)
            leader, follower = follower, leader
        assert model.waiting() <= {w for w in range(len(model.queue))}
    for wheel in (leader, follower, model.anew()):
        model.fed(wheel).settle(model.progress)
        assert 0 <= wheel.count - len(model.waiting()) < BLOCK
        first = min(model.waiting(), default=len(model.queue))
        assert first - BLOCK < wheel.first_offset <= first
    model.now_ms += 4 * 86_400_000
    while deliver(model, leader):
        pass
    assert not model.waiting()
    assert len(set(model.delivered)) == len(model.delivered)
    assert leader.count == 0
    assert leader.next_due_ms is None
    assert model.anew().count == 0


def deliver(model, wheel):
    """One delivery, with messages that come while it is under way."""
    wheel.settle(model.progress)
    popped = wheel.pop(model.now_ms, model.rng.choice((1, 7, 128)))
    if not popped:
        return False
    fits = model.rng.randrange(1, len(popped) + 1)
    wheel.put_back(popped[fits:])
    del popped[fits:]
    expected(model, popped)
    progress = wheel.after(popped)
    if model.rng.random() < 0.3 and model.rng.random() < 0.5:
        model.send(model.now_ms - 1)  # admitted before, committed after
        model.fed(wheel)
    if model.rng.random() < 0.2:  # its frame was cut off
        wheel.put_back(popped)
        return True
    assert progress > model.progress
    model.progress = progress
    model.delivered += [waiting.offset for waiting in popped]
    wheel.put_back(popped)
    wheel.settle(progress)
    return True


def expected(model, popped):
    """Late ones in the order of the queue, else by time and then by offset; none early."""
    waiting = model.waiting()
    progress = model.progress
    late = [(model.queue[o], o) for o in sorted(waiting) if progress.passed(model.queue[o], o)]
    due = sorted((model.queue[o], o) for o in waiting if model.queue[o] < model.now_ms)
    assert popped == [Waiting(*key) for key in (late or due)[: len(popped)]]


def store_again(model, wheel):
    wheel.settle(model.progress)
    start = wheel.first_offset
    end = min(len(model.queue), start + model.rng.randrange(1, 50))
    for offset in range(start, end):
        if model.progress.lets_wait(model.queue[offset], offset):
            assert offset in model.waiting()
            model.moved.add(offset)
            model.send(model.queue[offset])
    if end > start:
        model.progress = model.progress._replace(floor=end)
        model.fed(wheel).settle(model.progress)


def test_timer_wheel_delivers_a_message_after_its_slot():
    wheel = TimerWheel()
    wheel.take(0, NOW)
    assert wheel.next_due_ms == NOW
    assert not wheel.pop(NOW, 10)
    assert wheel.pop(NOW + 1, 10) == [Waiting(NOW, 0)]


def test_timer_wheel_opens_a_bucket_only_at_its_time():
    """A bucket is opened when its time comes, not because it is the next."""
    wheel = TimerWheel()
    wheel.take(0, NOW + 86_400_000)
    assert not wheel.pop(NOW, 10)
    wheel.take(1, NOW + 3_600_000)
    assert not wheel._near
    assert wheel.next_due_ms == NOW + 3_600_000


def test_timer_progress_round_trip_through_json():
    progress = Progress(NOW, 7, 9, 3)
    assert progress_from_json(progress._asdict()) == progress
    with pytest.raises(KeyError):
        progress_from_json({"due_ms": 1})
