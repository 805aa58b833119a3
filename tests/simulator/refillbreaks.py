"""Planted breaks of refilling: each takes one rule away, and must be caught."""

from __future__ import annotations

from dataclasses import replace

import orjson

from raftmq.dledger import snapshotmarker
from raftmq.dledger.snapshotinstall import GroupSnapshot
from tests.simulator.refill import (
    RAFT,
    STATE,
    Machine,
    RefilledNode,
    Refiller,
    write_machine,
)


class _NoQueues(Machine):
    @staticmethod
    def installed(noted: GroupSnapshot) -> Machine:
        value = orjson.loads(noted.state) | {"begins": Machine().begins}
        return Machine.installed(replace(noted, state=orjson.dumps(value)))


class InstallsNoQueues(RefilledNode):
    """a. Queues whose messages are gone begin at 0 again."""

    machine_class = _NoQueues


class _NoTables(Machine):
    @staticmethod
    def installed(noted: GroupSnapshot) -> Machine:
        value = orjson.loads(noted.state) | {"digest": ""}
        return Machine.installed(replace(noted, state=orjson.dumps(value)))


class InstallsNoTables(RefilledNode):
    """b. The tables are not installed."""

    machine_class = _NoTables


class _AppliesTwice(Machine):
    @staticmethod
    def installed(noted: GroupSnapshot) -> Machine:
        machine = Machine.installed(noted)
        machine.tables_index = noted.first_index - 1
        return machine


class AppliesTwice(RefilledNode):
    """c. Frames that the installed tables reflect are applied to them again."""

    machine_class = _AppliesTwice


class _TakesAll(Refiller):
    def is_wanted(self, first_index: int, previous_term: int) -> bool:
        return True


class InstallsOverMore(RefilledNode):
    """d. A log is thrown away that holds frames the group snapshot does not stand for."""

    refiller_class = _TakesAll


class MarkerGoesFirst(RefilledNode):
    """e. What is noted is forgotten before it is carried out: a kill leaves a mixture."""

    def carry_out(self) -> None:
        disk = self.disk
        noted = snapshotmarker.read(disk, RAFT)
        snapshotmarker.done(disk, RAFT)
        if disk.exists(STATE):
            disk.remove(STATE)
            disk.sync_directory("state")
        snapshotmarker.begin_log(disk, RAFT, noted, "commitlog", "checkpoint")
        write_machine(disk, self.machine_class.installed(noted))


class MarkerGoesTooEarly(RefilledNode):
    """f. The log is new when the marker goes, the state is not: killed then, it is a mixture."""

    def carry_out(self) -> None:
        disk = self.disk
        noted = snapshotmarker.read(disk, RAFT)
        snapshotmarker.begin_log(disk, RAFT, noted, "commitlog", "checkpoint")
        snapshotmarker.done(disk, RAFT)
        write_machine(disk, self.machine_class.installed(noted))


REFILL_BREAKS: tuple[type[RefilledNode], ...] = (
    InstallsNoQueues,
    InstallsNoTables,
    AppliesTwice,
    InstallsOverMore,
    MarkerGoesFirst,
    MarkerGoesTooEarly,
)
