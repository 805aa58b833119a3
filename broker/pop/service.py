"""The composition of a broker's pop consumption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftmq.dledger.node.proposals import command_bytes_max
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand

from ..clients import ClientTable
from ..component import Service, at_each_leadership
from ..consume.group_creation import GroupCreation
from ..consume.offset_commits import CommitService
from ..context import Context
from ..scheduler import Chore
from ..send.service import SendPath
from .acks import Acks
from .assignment import Assignments, TopicQueues
from .command_batch import StepLog
from .leader_state import Deliveries, LiveQueues
from .requests import PopConnection, PopRequests
from .revive import Deadlines, Reviver


class PopService:
    def __init__(
        self,
        context: Context,
        clients: ClientTable,
        groups: GroupCreation,
        commits: CommitService,
        sends: SendPath,
        asks: RemotingClient,
        refusal: Callable[[RemotingCommand, Exception], RemotingCommand],
    ) -> None:
        """`asks` connects to name servers; `refusal` encodes an error."""
        self._context = context
        live, has_room = LiveQueues(), commits.has_room
        self.steps = steps = StepLog(
            context.log.propose_then,
            context.contained,
            lambda: live.leadership,
            check=lambda step: commits.check_withheld(str(step[1]), str(step[2])),
            command_bytes_max=command_bytes_max(context.config.mapped_file_size_commit_log),
        )
        self.settled = steps.settled
        deadlines = Deadlines(context)
        table = context.state.pops
        deliveries = Deliveries(
            asyncio.get_running_loop().time, lambda *one: table.batch(*one) is not None
        )
        self._deliveries = deliveries
        self.pops = PopRequests(
            context, has_room, groups, live, steps, deadlines, deliveries, refusal
        )
        waiting = self.pops.waiting

        def is_present(group: str, client: str) -> bool:
            consumers = clients.consumers.get(group)
            return consumers is not None and client in consumers.members

        self.reviver = Reviver(
            context,
            sends,
            steps,
            live,
            deadlines,
            deliveries,
            is_present=is_present,
            opened=waiting.opened,
        )
        self.acks = Acks(context, live, steps, deadlines, opened=waiting.opened, refusal=refusal)
        self.assignments = Assignments(
            context, has_room, steps, clients, TopicQueues(context, asks)
        )

    def closed(self, connection: PopConnection) -> None:
        self._deliveries.closed(connection)
        self.pops.waiting.closed(connection)

    def services(self) -> list[Service]:
        code, clock_ms, waiting = RequestCode, self._context.clock_ms, self.pops.waiting
        requests = Service(
            handlers={
                int(code.POP_MESSAGE): self.pops.handle,
                int(code.PEEK_MESSAGE): self.pops.peek,
                int(code.NOTIFICATION): self.pops.notify,
                int(code.POLLING_INFO): self.pops.polling_info,
                int(code.ACK_MESSAGE): self.acks.ack,
                int(code.BATCH_ACK_MESSAGE): self.acks.batch_ack,
                int(code.CHANGE_MESSAGE_INVISIBLETIME): self.acks.change,
            },
            chores=[
                Chore(
                    "waiting_pops",
                    0,
                    lambda: waiting.turn(clock_ms()),
                    lambda: waiting.rest_ms(clock_ms()),
                )
            ],
            role_changed=at_each_leadership(waiting.end_all),
        )
        return [requests, self.reviver.service(), self.assignments.service()]
