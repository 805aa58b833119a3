"""An operator who changes a group's members and its leader while faults strike.

One change after the other: leadership is asked to move, a new machine joins as a learner, becomes
a voter and takes the place of another member, which is removed; its machine may come back and start
its broker as if nothing had happened. A change whose outcome is unknown is asked for again until
the group says that it is done.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from tests.simulator.cluster import programs
from tests.simulator.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulator.cluster.machine import Machine
    from tests.simulator.cluster.world import ClusterWorld, Group

ASK_TIMEOUT_MS = 5_000
AGAIN_S = 0.3
# The refusal by which a leader says that a change was made before.
DONE = {
    "add-learner": "already",
    "promote": "is a voter already",
    "remove": "is no member of this group",
}


class Operator:
    """See the module's docstring. `stop` lets it finish what it has begun; then it is `idle`."""

    def __init__(self, world: ClusterWorld, spares: list[Machine], rng: Random) -> None:
        self.idle = True
        self.changes = 0
        self._world = world
        self._spares = spares
        self._rng = rng
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def run(self, process: Process) -> None:
        """Operate until stopped."""
        client = RemotingClient()
        while not self._stopping:
            await asyncio.sleep(0.2 + self._rng.random())
            self.idle = False
            if self._rng.random() < 0.4:
                await self._ask(client, RequestCode.TRANSFER_LEADERSHIP, {})
            elif self._spares:
                await self._replace(client, self._spares.pop())
            self.idle = True
        await client.close()

    async def _replace(self, client: RemotingClient, machine: Machine) -> None:
        """Let a new machine take the place of a member."""
        world, name = self._world, machine.name
        gone = self._rng.choice(list(world.brokers))
        world.note(f"{name} is to take the place of {gone}")
        world.start_broker(machine)
        first = self._rng.random()
        if first < 0.3:  # the group is smaller for a while
            await self._change(client, "remove", gone)
        await self._change(client, "add-learner", name)
        world.brokers[name] = machine
        if first < 0.6:
            await self._change(client, "promote", name)
        if first >= 0.3:
            await self._change(client, "remove", gone)
        if first >= 0.6:  # while it may still be pending that the other leaves
            await self._change(client, "promote", name)
        retired = world.brokers.pop(gone)
        retired.kill()
        self.changes += 1
        if self._rng.random() < 0.5:
            await asyncio.sleep(self._rng.random())
            if not retired.processes:
                world.note(f"{gone} comes back, though it was removed")
                retired.power_on()
                world.start_wrong(retired, {})

    async def _change(self, client: RemotingClient, op: str, name: str) -> None:
        """Ask for a change until it is made."""
        ext = {"op": op, "memberId": name}
        if op == "add-learner":
            port = programs.raft_port(self._world.numbers[name])
            ext["memberAddress"] = f"{programs.HOST}:{port}"
        while True:
            code, remark = await self._ask(client, RequestCode.CHANGE_MEMBERS, ext)
            if code == ResponseCode.SUCCESS or DONE[op] in remark:
                self._world.note(f"{op} {name}: done")
                return
            await asyncio.sleep(AGAIN_S)

    async def _ask(
        self, client: RemotingClient, code: RequestCode, ext: dict[str, str]
    ) -> tuple[int, str]:
        """Ask whoever leads; return the answer's code and remark."""
        answer = await asked(self._world, client, code, ext)
        return answer.code, answer.remark or ""


async def asked(
    world: ClusterWorld,
    client: RemotingClient,
    code: RequestCode,
    ext: dict[str, str],
    group: Group | None = None,
) -> RemotingCommand:
    """Return the answer of whoever leads (that group); SYSTEM_BUSY without one."""
    machine = world.leader(group=group)
    if machine is None:
        return RemotingCommand(ResponseCode.SYSTEM_BUSY, remark="nobody leads")
    port = programs.client_port(world.numbers[machine.name])
    command = RemotingCommand.request(code, dict(ext))
    try:
        return await client.invoke(f"{programs.HOST}:{port}", command, ASK_TIMEOUT_MS)
    except RemotingError as error:
        return RemotingCommand(ResponseCode.SYSTEM_BUSY, remark=str(error))
