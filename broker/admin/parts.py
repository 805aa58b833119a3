"""The parts of a broker with reported figures, for runtime info, metrics and the node view."""

from __future__ import annotations

from dataclasses import dataclass

from ..access import Access
from ..clients import ClientTable
from ..consume.pull import PullService
from ..context import Context
from ..delayed.delay_levels import DelayService
from ..delayed.timers import TimerService
from ..error_responses import Guard
from ..leader_fitness import Reliever
from ..pop.service import PopService
from ..registration import Registrar
from ..replication.peer_auth import Gates
from ..retention import Retention, Unexpired
from ..send.service import SendPath
from ..transactions.service import Halves, Transactions
from .drain import Drain
from .stats import Throughput


@dataclass(frozen=True, slots=True)
class Parts:
    """References to the parts, read at each report."""

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
    popping: PopService
    throughput: Throughput
    guard: Guard
    registrar: Registrar
    drain: Drain
