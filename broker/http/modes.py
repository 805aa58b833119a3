"""HTTP operations on consume modes: whether a group's clients of 5.x pull or pop a topic."""

from __future__ import annotations

from raftmq.web.operation import Call, Operation, Role
from raftmq.web.resources.consumers import ModeBody, ModePath, ModesView, ModeView
from raftmq.web.resources.topics import GroupPath

from ..context import Context
from ..pop.assignment import Assignments
from .tables import topic_named


class ModeOperations:
    """The operations on consume modes."""

    def __init__(self, context: Context, assignments: Assignments) -> None:
        self._context = context
        self._assignments = assignments

    def operations(self) -> list[Operation]:
        modes = "/api/v1/consumer-groups/{group}/modes"
        return [
            Operation("GET", modes, "listConsumeModes",
                      "The topics whose consume mode was set for a group.", self.modes,
                      parameters=GroupPath, answer=ModesView),
            Operation("PUT", f"{modes}/{{topic}}", "putConsumeMode",
                      "Let a group's clients of 5.x pull or pop a topic.", self.put,
                      role=Role.ADMIN, parameters=ModePath, body=ModeBody, answer=ModeView,
                      problems=(404, 409, 503, 504)),
        ]  # fmt: skip

    async def modes(self, call: Call) -> ModesView:
        group: str = call.parameters.group
        table = self._context.state.pops.modes
        topics = sorted(topic for topic, name in table if name == group)
        return ModesView(items=[self._view(topic, group) for topic in topics])

    async def put(self, call: Call) -> ModeView:
        body: ModeBody = call.body
        group: str = call.parameters.group
        topic = topic_named(self._context, call.parameters.topic).name
        await self._assignments.change_mode(topic, group, body.mode, body.pop_share_queue_num)
        return ModeView(
            group=group,
            topic=topic,
            mode=body.mode,
            pop_share_queue_num=body.pop_share_queue_num,
        )

    def _view(self, topic: str, group: str) -> ModeView:
        mode, share = self._assignments.mode_of(topic, group)
        return ModeView(group=group, topic=topic, mode=mode, pop_share_queue_num=share)
