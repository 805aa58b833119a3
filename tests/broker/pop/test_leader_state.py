"""What was told through a connection shortly before it fell silent is unheard."""

from typing import Any

from raftmq.broker.pop.leader_state import BATCHES_MAX, CONFIRM_S, Deliveries

PLACE = ("T", "g", 0)


class Connection:
    last_active_s = 0.0


class World:
    def __init__(self):
        self.now_s = 0.0
        self.gone: set[Any] = set()
        self.deliveries = Deliveries(lambda: self.now_s, lambda place, key: key not in self.gone)

    def record(self, connection, number):
        """A pop arrives, and is answered."""
        connection.last_active_s = self.now_s
        self.deliveries.record(connection, PLACE, (number, 0))

    def unconfirmed(self, numbers):
        return [number for number in numbers if self.deliveries.is_unconfirmed(PLACE, (number, 0))]


def test_deliveries_just_before_the_last_arrival_are_unconfirmed():
    world, one, other = World(), Connection(), Connection()
    for number in range(6):
        world.now_s = float(number)
        world.record(one, number)
        world.record(other, 10 + number)
    world.now_s = 600.0
    other.last_active_s = 600.0
    world.deliveries.closed(one)
    world.deliveries.closed(other)
    assert world.unconfirmed(range(20)) == [int(5 - CONFIRM_S), 4, 5]


def test_ended_deliveries_are_removed_from_the_leader_state():
    world, one, other = World(), Connection(), Connection()
    for number in range(4):
        world.record(one, number)
    world.record(other, 9)
    world.gone = {(1, 0), (2, 0)}
    world.deliveries.closed(one)
    assert (world.unconfirmed(range(4)), len(world.deliveries)) == ([0, 3], 2)
    world.gone = {(0, 0)}
    world.deliveries.closed(other)
    assert (world.unconfirmed(range(10)), len(world.deliveries)) == ([3, 9], 2)
    world.deliveries.clear()
    assert len(world.deliveries) == 0


def test_deliveries_per_connection_are_limited():
    world, one = World(), Connection()
    for number in range(BATCHES_MAX + 5):
        world.record(one, number)
    world.deliveries.closed(one)
    assert len(world.deliveries) == BATCHES_MAX
    assert world.unconfirmed(range(8)) == [5, 6, 7]
