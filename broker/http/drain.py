"""HTTP operations that drain and remove this broker's group."""

from __future__ import annotations

from typing import Any

import msgspec

from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.resources.node import DrainBody, DrainView, RemoveBody

from ..admin.drain import Drain, DrainOptions

PATH = "/api/v1/drain"


class DrainOperations:
    """The operations on the draining of a group."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    def operations(self) -> list[Operation]:
        write = (400, 409, 503, 504)
        return [
            Operation("GET", PATH, "getDrain", "The remaining content of the group.", self.get,
                      answer=DrainView, problems=(400, 503, 504)),
            Operation("PUT", PATH, "putDrain", "Drain the group: clients send elsewhere.",
                      self.put, role=Role.ADMIN, body=DrainBody, answer=DrainView, problems=write),
            Operation("DELETE", PATH, "deleteDrain", "Take sends again.", self.delete,
                      role=Role.ADMIN, answer=DrainView, problems=write),
            Operation("POST", f"{PATH}/remove", "removeGroup",
                      "Remove the empty group from its cluster.", self.remove, role=Role.ADMIN,
                      body=RemoveBody, answer=DrainView, problems=write),
        ]  # fmt: skip

    async def get(self, _: Call) -> Reply:
        return _shown(await self._drain.act("status"))

    async def put(self, call: Call) -> Reply:
        body = call.body
        given_up = None if body.given_up is None else tuple(body.given_up)
        options = DrainOptions(body.move_timers, body.move_dead_letters, body.to, given_up)
        return _shown(await self._drain.act("start", options))

    async def delete(self, _: Call) -> Reply:
        return _shown(await self._drain.act("cancel"))

    async def remove(self, call: Call) -> Reply:
        return _shown(await self._drain.act("remove", lose=call.body.lose))


def _shown(status: dict[str, Any]) -> Reply:
    return Reply(msgspec.convert(status, DrainView))
