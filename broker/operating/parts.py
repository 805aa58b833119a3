"""The parts of a broker whose figures are reported: by runtime info, metrics and the node view."""

from __future__ import annotations

from dataclasses import dataclass

from ..access import Access
from ..clients import ClientTable
from ..consuming.pull import PullService
from ..context import Context
from ..delivery.delay import DelayService
from ..delivery.timers.service import TimerService
from ..delivery.transactions.service import Halves, Transactions
from ..guard import Guard
from ..popping.popping import Popping
from ..registration import Registrar
from ..relief import Reliever
from ..replication.peerproof import Gates
from ..retention import Retention
from ..sending.send import SendPath
from ..unexpired import Unexpired
from .rates import Throughput


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
