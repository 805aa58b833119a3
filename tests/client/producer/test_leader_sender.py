"""A search for the leader whose last waiting send ends while a replica is being dialled."""

from typing import Any, cast

from raftmq.client.errors import BrokerUnreachable
from raftmq.client.message import MessageQueue
from raftmq.client.producer import leader_sender as lanes
from raftmq.client.producer.leader_sender import LeaderSender
from raftmq.client.producer.pending_send import Pending
from raftmq.client.producer.send_frame import OutgoingSend
from raftmq.client.route import ReplicaGroup


class Owner:
    """The producer's engine, of whose sends one ends during the dial; nobody can be reached."""

    def __init__(self, group):
        self.dialled: list[str] = []
        self.ended: list[Pending] = []
        self.searches = 0
        self.sender = LeaderSender(group, cast(Any, self), lambda: 0.0, 500)

    async def open_channel(self, address):
        self.dialled.append(address)
        self.sender.drop_expired(10.0)  # as the engine's own clock does meanwhile
        raise BrokerUnreachable(f"{address}: refused")

    def expire(self, pending, now):
        if pending.deadline > now:
            return False
        pending.done = True
        self.ended.append(pending)
        return True

    def ask_route(self):
        """The name servers know nothing new."""

    def spawn_search(self, sender):
        self.searches += 1


async def test_leader_search_ends_without_waiting_sends():
    group = ReplicaGroup("broker-a")
    group.learn({0: "a:1", 1: "b:1"})
    owner = Owner(group)
    sender = owner.sender
    item = object.__new__(OutgoingSend)
    pending = Pending(item, MessageQueue("T", "broker-a", 0), False, 5.0, print)
    sender.submit(pending)
    await sender.search()
    assert (owner.dialled, owner.ended) == (["a:1"], [pending])
    assert not sender.searching
    sender.submit(Pending(pending.item, pending.queue, False, 50.0, print))  # has its own search
    assert owner.searches == 2


async def test_error_of_one_send_does_not_end_the_leader_search(monkeypatch):
    """The search goes on for those that wait."""
    monkeypatch.setattr(lanes, "PAUSE_S", 0)
    group = ReplicaGroup("broker-a")
    group.learn({0: "a:1"})
    owner = Owner(group)
    sender = owner.sender
    item = object.__new__(OutgoingSend)
    first, second = (
        Pending(item, MessageQueue("T", "broker-a", 0), False, deadline, print)
        for deadline in (50.0, 5.0)
    )
    dial = owner.open_channel

    async def opened(address):
        return None if len(owner.dialled) == 0 else await dial(address)

    def write(pending, channel):
        owner.dialled.append("written")
        raise TypeError("not bytes")

    monkeypatch.setattr(owner, "open_channel", opened)
    monkeypatch.setattr(owner, "write", write, raising=False)
    sender.submit(first)
    sender.submit(second)
    await sender.search()
    assert (owner.dialled, owner.ended) == (["written", "a:1"], [second])
    assert not sender.searching
