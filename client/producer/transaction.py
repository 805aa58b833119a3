"""Messages that become visible together with a local transaction, or never.

    class Orders:
        async def execute(self, message, arg): ...   # the local transaction
        async def check(self, message): ...          # what became of it, asked by the broker

    async with TransactionProducer("group", namesrv, Orders()) as producer:
        result = await producer.send_in_transaction(Message("orders", b"..."), arg)

A half message is stored first; `execute` runs once that is certain; END_TRANSACTION (37) then
commits or rolls back. A half message stored with a status other than OK is rolled back without
`execute`. If the decision is UNKNOWN, if `execute` raises, or if the broker may not have the
decision, nothing is repeated here. The broker then asks a producer of the group (39), which answers
with `check`. So `check` must read the truth from storage that outlives this process. An
END_TRANSACTION with a lost answer is not sent again, because some brokers would deliver the message
twice.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import CheckTransactionHeader, EndTransactionHeader
from raftmq.store.record import RecordError

from ..decode import decode_messages
from ..errors import BrokerUnreachable, ClientError, InvalidMessage
from ..instance import InstanceConfig
from ..message import (
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    SendStatus,
    properties_text,
)
from ..retry import CONTROL
from .producer import Producer
from .send_frame import TRANSACTION_PREPARED
from .sender import SendConfig

logger = logging.getLogger(__name__)

CHECKS_MAX = 2000  # running check-backs; further ones are dropped, and brokers ask again
END_TIMEOUT_MS = 3000
_checking: ContextVar[asyncio.Task[None] | None] = ContextVar("checking", default=None)


class TransactionState(IntEnum):
    """The local transaction's outcome; UNKNOWN lets the broker ask later."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class TransactionListener(Protocol):
    """The user's callbacks, coroutine functions or plain functions (run on the loop). The
    transaction's id is `message.unique_key` in `execute` and `message.msg_id` in `check`, which may
    be called while `execute` still runs, and on a different producer of the group."""

    def execute(
        self, message: Message, arg: Any
    ) -> TransactionState | Awaitable[TransactionState]: ...

    def check(self, message: MessageExt) -> TransactionState | Awaitable[TransactionState]: ...


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """A transactional send's result. `half` locates the half message, `state` is the decision of
    `execute`. `confirmed` means that the broker has the decision. Otherwise it will ask, and
    `check` has to answer."""

    half: SendResult
    state: TransactionState
    confirmed: bool


class TransactionProducer(Producer):
    """A producer of transactional messages, and of plain messages as a Producer."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        listener: TransactionListener,
        *,
        config: SendConfig | None = None,
        instance_config: InstanceConfig | None = None,
        audit_topic: str = "",
    ) -> None:
        super().__init__(
            group, namesrv, config=config, instance_config=instance_config, audit_topic=audit_topic
        )
        self._listener = listener
        self._checks: set[asyncio.Task[None]] = set()
        self._stop: asyncio.Task[None] | None = None  # requested in a check
        self.checked = 0  # answered check-backs

    async def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
    ) -> TransactionResult:
        """Store a half message, run `execute(message, arg)`, and send the decision to the broker.
        Raises as `send` if the half message is not certainly stored; `execute` did not run then. An
        exception of `execute` is passed on and counts as UNKNOWN, because the transaction may have
        been made partly; the broker will ask `check`."""
        if message.is_later:
            raise InvalidMessage("a transactional message cannot be delayed")
        message.unique_key = self._key_of(message)
        item = self._outgoing(
            message,
            sys_flag=TRANSACTION_PREPARED,
            suffix=properties_text({"TRAN_MSG": "true", "PGROUP": self.group}),
        )
        engine = self._running()
        deadline = engine.now() + timeout_ms / 1000
        half = await self._send_item(item, message.topic, queue, deadline)
        state = TransactionState.ROLLBACK
        if half.status is SendStatus.OK:
            state = await _answer(self._listener.execute(message, arg))
        if state is TransactionState.UNKNOWN:  # no decision; Apache's broker gives no answer
            return TransactionResult(half, state, False)
        return TransactionResult(half, state, await self._end(half, message.topic, state))

    async def stop(self) -> None:
        """Stop as a Producer does. Running checks are cancelled, and brokers ask again. In `check`
        this returns at once, and the producer stops after its return."""
        check = _checking.get()
        if check in self._checks:
            if self._stop is None or self._stop.done():
                self._stop = asyncio.create_task(self._stop_after(check), name="stop")
            return
        await self._end_checks()
        if self._stop is not None:
            await asyncio.wait((self._stop,))
        await super().stop()

    async def _stop_after(self, check: asyncio.Task[None]) -> None:
        await asyncio.wait((check,))
        await self._end_checks()
        await super().stop()

    async def _end_checks(self) -> None:
        for task in list(self._checks):
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    def _handlers(self) -> Mapping[int, Handler]:
        return {**super()._handlers(), RequestCode.CHECK_TRANSACTION_STATE: self._answer_check}

    async def _end(self, half: SendResult, topic: str, state: TransactionState) -> bool:
        """Send the decision to the leader; return whether it confirmed. Repeated only while no
        earlier request can have arrived."""
        header = EndTransactionHeader(
            self.group,
            half.queue_offset,
            int(half.offset_msg_id[-16:], 16),
            int(state),
            half.msg_id,
            half.msg_id,
            False,
            topic,
        )
        instance = self._instance
        group = instance.directory.group(half.queue.broker_name)
        try:
            async for attempt in CONTROL.while_retriable():
                with attempt:
                    response = await self._ask_once(group.name, header)
        except ClientError as error:
            logger.warning("transaction_end_unconfirmed id=%s error=%s", half.msg_id, error)
            return False
        if response.code != ResponseCode.SUCCESS:
            logger.warning(
                "transaction_end_refused id=%s code=%d remark=%s",
                half.msg_id, response.code, response.remark,
            )  # fmt: skip
        return response.code == ResponseCode.SUCCESS

    async def _ask_once(self, broker_name: str, header: EndTransactionHeader) -> RemotingCommand:
        try:
            return await self._instance.ask_leader_once(
                broker_name,
                RemotingCommand.request(RequestCode.END_TRANSACTION, header.to_ext()),
                END_TIMEOUT_MS,
            )
        except BrokerUnreachable as error:
            if error.outcome_unknown:
                error.retriable = False  # it may have taken effect, as the check-back will find out
            raise

    def _answer_check(self, connection: Connection, request: RemotingCommand) -> None:
        """Handle 39 (one-way), with a one-way 37 to the broker."""
        if len(self._checks) >= CHECKS_MAX:
            logger.warning("transaction_check_dropped in_work=%d", len(self._checks))
            return
        work = self._check(connection, request)
        task = self._instance.spawn(work, "transaction check")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, connection: Connection, request: RemotingCommand) -> None:
        _checking.set(asyncio.current_task())
        try:
            header = CheckTransactionHeader.parse(request.ext)
            (message,) = decode_messages(request.body, (request.ext or {}).get("bname", ""))
        except (RemotingError, RecordError, ValueError) as error:
            logger.error("transaction_check_broken error=%s", error)
            return
        group = message.properties.get("PGROUP")
        if group is not None and group != self.group:
            logger.warning("transaction_check_of_another group=%s", group)
            return
        try:
            state = await _answer(self._listener.check(message))
        except Exception as error:  # the user's code; the broker will ask again
            logger.warning("transaction_check_raised id=%s", message.msg_id, exc_info=error)
            state = TransactionState.UNKNOWN
        end = EndTransactionHeader(
            self.group,
            header.half_queue_offset,
            header.commitlog_offset,
            int(state),
            header.message_id or message.msg_id,
            header.transaction_id,
            True,
            message.topic,
        )
        command = RemotingCommand.request(RequestCode.END_TRANSACTION, end.to_ext())
        try:
            await self._instance.remoting.invoke_oneway(connection.address, command)
        except RemotingError as error:
            logger.info("transaction_check_unanswered id=%s error=%s", message.msg_id, error)
            return
        self.checked += 1


async def _answer(given: Any) -> TransactionState:
    """Return the listener's answer. Raises TypeError if it is no TransactionState."""
    state = await given if inspect.isawaitable(given) else given
    if not isinstance(state, TransactionState):
        raise TypeError(f"a transaction listener returns a TransactionState, not {state!r}")
    return state
