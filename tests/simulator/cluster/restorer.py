"""An operator who restores a replica beside its original: takes a backup of the running group,
makes a store from it, and starts that in a member's place, with the configuration that was copied.

The backup is real files in a temporary directory of this machine; the store is on the member's
simulated disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import UUID

from raftmq.broker.backup.create import take
from raftmq.broker.backup.directory import BackupDirectory
from raftmq.broker.backup.manifest import BackupError
from raftmq.broker.backup.online_source import RemoteSource
from raftmq.broker.backup.restore import point_of, restore_one
from raftmq.broker.backup.settings import store_config_of
from raftmq.dledger.raft.configuration import founding
from raftmq.remoting.client import RemotingClient
from tests.simulator.cluster import programs
from tests.simulator.cluster.machine import DiskOfProcess
from tests.simulator.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulator.cluster.machine import Machine
    from tests.simulator.cluster.world import ClusterWorld

WAIT_S = 5.0  # for a leader
INCARNATION = UUID(int=1)  # one store is made, and never another of its group


class Restorer:
    """See the module's docstring. Run it on the desk."""

    def __init__(
        self, world: ClusterWorld, machine: Machine, then: Callable[[Machine], None]
    ) -> None:
        """`then(machine)` is called when the store is on the machine's disk."""
        self._world = world
        self._machine = machine
        self._then = then

    async def run(self, process: Process) -> None:
        """Take a backup, and restore it."""
        world = self._world
        client = RemotingClient()
        number = world.numbers[self._machine.name]
        source = RemoteSource(
            client, f"{programs.HOST}:{programs.client_port(number)}", wait_s=WAIT_S
        )
        with TemporaryDirectory() as path:
            directory = BackupDirectory(path)
            try:
                await take(source, directory)
                await asyncio.get_running_loop().run_in_executor(
                    None, self._restore, directory, process
                )
            except (BackupError, OSError) as error:
                if isinstance(error, OSError) and not world.plan.spoils_disks:
                    raise
                world.note(f"{self._machine.name} is not restored: {error}")
                return
            finally:
                await client.close()
        self._then(self._machine)

    def _restore(self, directory: BackupDirectory, process: Process) -> None:
        """Make the store of a group that has the same members at the same addresses."""
        world, manifest = self._world, directory.required()
        addresses = [
            (name, f"{programs.HOST}:{programs.raft_port(world.numbers[name])}")
            for name in world.groups[0].founders
        ]
        restore_one(
            directory,
            manifest,
            point_of(directory, manifest),
            DiskOfProcess(process, programs.STRANGE_STORE, self._machine),
            founding(addresses),
            INCARNATION,
            store_config_of(manifest.settings),
        )
        world.note(f"{self._machine.name} is restored beside itself, to {manifest.commit_index}")
