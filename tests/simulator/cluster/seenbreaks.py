"""Planted breaks that no replica differs by: clients and operators alone can see them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from raftmq.broker import process
from raftmq.broker.backup import restore
from raftmq.broker.broker import Broker
from raftmq.broker.consume.long_polling import HoldTable
from raftmq.broker.delayed import delay_levels as delay
from raftmq.broker.errors import busy
from raftmq.broker.messages import send_request as sendrequest
from raftmq.broker.messages.send_request import Outgoing
from raftmq.broker.send.service import SendPath
from raftmq.broker.tables import snapshot
from raftmq.broker.tables.snapshot import Snapshot
from raftmq.broker.tables.state import BrokerState
from raftmq.chaos.checks.linearizability import linearizable
from raftmq.store.properties import KEYS, decode_properties, joined
from tests.simulator.cluster.planting import instead, replaced

Planted = AbstractContextManager[Any]


def bodies_altered_at_admission() -> Planted:
    """A bit of a body flips before the broker makes a record of it, one in sixteen."""

    def broken(record: Any) -> Any:
        def records(queue: Any, topic: Any, body: bytes, *more: Any) -> Any:
            if body[-1] % 16 == 3:
                body = body[:-1] + bytes((body[-1] ^ 1,))
            return record(queue, topic, body, *more)

        return records

    return replaced(sendrequest, "_record", broken)


def keys_lost_when_delivered_later() -> Planted:
    """A message that waited for its time comes without its keys."""

    def broken(delivered: Any) -> Any:
        def delivers(message: Outgoing) -> Outgoing:
            result = delivered(message)
            properties = decode_properties(result.properties)
            properties.pop(KEYS, None)
            return replace(result, properties=joined(properties))

        return delivers

    return replaced(delay, "delivered", broken)


def sends_refused_after_a_failover() -> Planted:
    """Nobody but the first leader takes sends."""
    terms: list[int] = []

    def broken(admit: Any) -> Any:
        def admits(self: SendPath, *request: Any) -> None:
            if self._leading:
                terms[1:] = [self._term]
            if terms and terms[-1] > terms[0]:
                raise busy("another broker was the first leader")
            admit(self, *request)

        return admits

    return replaced(SendPath, "admit", broken)


def snapshots_not_made() -> Planted:
    """Taking a snapshot raises, which the broker logs, and goes on."""

    def captures(state: BrokerState) -> Snapshot:
        raise KeyError("applied_index")

    return instead(snapshot, "capture", captures)


def stops_in_part() -> Planted:
    """A broker that was asked to stop says that it failed."""

    async def stopped(broker: Broker) -> bool:
        await broker.stop()
        return False

    return instead(process, "_stopped", stopped)


def restores_crash() -> Planted:
    """A backup is not what a restore can read."""

    def broken(*_: Any) -> Any:
        raise KeyError("group_id")

    return instead(restore, "_id_of", broken)


def pulls_not_told_of_messages() -> Planted:
    """A pull that waits is answered when its time is over, whatever arrives."""
    return instead(HoldTable, "arrived", lambda self, topic, queue_id, units: None)


def histories_too_long_to_judge() -> Planted:
    """The judge of linearizability gives up at once."""
    return patch("raftmq.chaos.checks.objects.linearizable", partial(linearizable, steps_max=20))
