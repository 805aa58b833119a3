"""The parts of a broker whose figures are reported: by runtime info, metrics and the node view."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.broker.access import Access
from raftmq.broker.clients import ClientTable
from raftmq.broker.consuming.pull import PullService
from raftmq.broker.context import Context
from raftmq.broker.delivery.delay import DelayService
from raftmq.broker.delivery.timers.service import TimerService
from raftmq.broker.delivery.transactions.service import Halves, Transactions
from raftmq.broker.guard import Guard
from raftmq.broker.operating.rates import Throughput
from raftmq.broker.popping.popping import Popping
from raftmq.broker.registration import Registrar
from raftmq.broker.relief import Reliever
from raftmq.broker.replication.peerproof import Gates
from raftmq.broker.retention import Retention
from raftmq.broker.sending.send import SendPath
from raftmq.broker.unexpired import Unexpired


@dataclass(frozen=True, slots=True)
class Parts:
    """References to the parts; a report reads their figures when it is asked for."""

    context: Context
    gates: Gates
    retention: Retention
    reliever: Reliever
    unexpired: Unexpired
    access: Access
    clients: ClientTable
    sends: SendPath
    pulls: PullService
    delays: DelayService
    timers: TimerService
    halves: Halves
    transactions: Transactions
    popping: Popping
    throughput: Throughput
    guard: Guard
    registrar: Registrar
