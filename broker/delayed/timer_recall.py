"""RECALL_MESSAGE (370), which cancels a timer message.

The recall handle of a send's response names topic, slot and UNIQ_KEY. A recall is stored in the
timer topic for the same slot and answered once it is committed. From then on the timer message is
not delivered by any leader. A message that is or may be due is not recalled. Groups that messages
have moved to (broker.delayed.moves) get the recall first. Whether the message exists is not
checked, as with Apache's broker.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.fields import text, text_or
from raftmq.remoting.headers import REGION
from raftmq.remoting.recall_handle import RecallHandle
from raftmq.store.properties import decode_properties

from ..component import Service
from ..context import Context
from ..errors import Refused, forbidden
from ..messages.send_request import packed_address
from ..messages.timer_message import Key, recall_message, timed
from ..send.callbacks import Completion
from ..send.service import SendPath
from ..tables.topics import PERM_WRITE
from .moves import Moves
from .timers import TimerService


@dataclass
class Recalls:
    """The handler of the request."""

    context: Context
    sends: SendPath
    timers: TimerService
    moves: Moves

    def service(self) -> Service:
        return Service(handlers={int(RequestCode.RECALL_MESSAGE): self.recall})

    async def recall(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Recall a timer message. Raises Refused, HeaderError, OutcomeUnknown."""
        config, sends, timers = self.context.config, self.sends, self.timers
        topic, group = text(request.ext, "topic"), text_or(request.ext, "producerGroup")
        if not config.recall_message_enable:
            raise forbidden("recallMessageEnable=false")
        self.context.roles.require_leading()
        if not config.broker_permission & PERM_WRITE:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is not writable")
        self.context.state.topics.existing(topic)
        handle = _checked(text(request.ext, "recallHandle"), topic, config.broker_name)
        now_ms = self.context.wall_ms()
        slot_ms = handle.deliver_ms - 1
        late = handle.deliver_ms <= now_ms or timers.is_delivered(slot_ms)
        if late or handle.deliver_ms - now_ms > timers.timing.delay_ms_max:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        key = Key(topic, handle.unique_key)
        self.moves.check_recall(slot_ms, key)
        born_host = packed_address(connection.peer_address)
        message = recall_message(handle, group or "recall", now_ms, born_host)
        redirected = timed(message, decode_properties(message.properties), timers.timing)
        ended, over = Completion(), timers.recalling(slot_ms, key)

        def done(error: Exception | None) -> None:
            over()
            ended(error)

        try:
            await self.moves.recall(handle, group)
            sends.store([redirected], b"", done)
        except BaseException:
            over()
            raise
        sends.wake()
        await ended.stored()
        ext = {"msgId": handle.unique_key, "MSG_REGION": REGION}  # for Java's traces
        return RemotingCommand.response_to(request, ext=ext)


def _checked(text_of_handle: str, topic: str, broker_name: str) -> RecallHandle:
    try:
        handle = RecallHandle.decode(text_of_handle)
    except ValueError as error:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, f"recall handle: {error}") from error
    if handle.topic != topic:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if handle.broker_name != broker_name:
        raise Refused(
            ResponseCode.ILLEGAL_OPERATION, f"recall failed, the message is {handle.broker_name}'s"
        )
    return handle
