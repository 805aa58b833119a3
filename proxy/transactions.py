"""EndTransaction, and brokers' checks of open transactions.

A transaction's id is the id of its message, as at Apache's proxy, and the property
`__transactionId__` of the committed message. The proxy remembers the positions of recent half
messages, and finds all others by their id at the brokers, so any proxy can end a transaction.

A broker sends its check (39) to a producer of the topic, over a proxy's connection. The proxy
forwards the check to a client that has the right to send to the topic, because brokers cannot check
a proxy's clients. For the same reason the proxy checks a caller's right to the topic of a half
message that it has looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import NamedTuple

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import CheckTransactionHeader, EndTransactionHeader
from raftmq.store.properties import decode_properties
from raftmq.store.record import MessageRecord, RecordError, decode_record

from .access import Access
from .caller import Caller
from .clients import Client, Clients
from .cluster import Brokers
from .endpoints import topic_of
from .message_conversion import inbound
from .protocol.messaging_pb2 import (
    Code,
    EndTransactionRequest,
    EndTransactionResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    TransactionResolution,
    TransactionSource,
)
from .status_codes import StatusError, status_error_for, status_of
from .validation import id_of

log = logging.getLogger("raftmq.proxy.transactions")

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALVES_MAX = 10_000  # remembered positions
_DECISIONS = {
    TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED: 0,
    TransactionResolution.COMMIT: 8,
    TransactionResolution.ROLLBACK: 12,
}


class HalfPosition(NamedTuple):
    """The place of a half message."""

    broker_name: str
    queue_offset: int
    commitlog_offset: int


class HalfPositions:
    """The most recent HALVES_MAX half messages by topic and message id. The half was sent to this
    topic by a caller with the right to do so."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], HalfPosition] = OrderedDict()

    def remember(self, topic: str, message_id: str, half: HalfPosition) -> None:
        self._known[topic, message_id] = half
        self._known.move_to_end((topic, message_id))
        if len(self._known) > HALVES_MAX:
            self._known.popitem(last=False)

    def get(self, topic: str, message_id: str) -> HalfPosition | None:
        return self._known.get((topic, message_id))


class TransactionHandlers:
    def __init__(
        self, brokers: Brokers, clients: Clients, access: Access, halves: HalfPositions
    ) -> None:
        self._brokers = brokers
        self._clients = clients
        self._access = access
        self._halves = halves
        self.forwarded_count = 0  # checks forwarded to clients
        self.dropped_count = 0  # checks without a client

    async def end(self, caller: Caller, request: EndTransactionRequest) -> EndTransactionResponse:
        """Commit or roll back. Raises StatusError."""
        topic = topic_of(request.topic)
        key = id_of(request.transaction_id, "the transaction's id", Code.INVALID_TRANSACTION_ID)
        message_id = id_of(request.message_id, "the message's id", Code.ILLEGAL_MESSAGE_ID)
        if not key.strip():
            raise StatusError(Code.INVALID_TRANSACTION_ID, "the transaction has no id")
        code = RequestCode.END_TRANSACTION
        self._brokers.permit(caller, code, {"topic": topic})
        half = self._halves.get(topic, key) or await self._find(caller, topic, key)
        header = EndTransactionHeader(
            topic,
            half.queue_offset,
            half.commitlog_offset,
            _DECISIONS.get(request.resolution, 0),
            message_id or key,
            key,
            request.source == TransactionSource.SOURCE_SERVER_CHECK,
            topic,
        )
        response = await self._brokers.ask(caller, half.broker_name, code, header.to_ext())
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)
        return EndTransactionResponse(status=status_of(Code.OK))

    async def _find(self, caller: Caller, topic: str, key: str) -> HalfPosition:
        """Return the newest half message of the producer group `topic` with this id, from the first
        broker group that has one. Raises StatusError if none has one that the caller may end,
        without the cause."""
        route = await self._brokers.route(caller, topic)

        async def ask(broker_name: str) -> list[HalfPosition]:
            stored = await self._brokers.stored_with(caller, broker_name, HALF_TOPIC, key)
            return [
                HalfPosition(broker_name, record.queue_offset, record.physical_offset)
                for record in stored
                if self._may_end(caller, topic, record)
            ]

        asks = [asyncio.create_task(ask(broker.broker_name)) for broker in route.brokers]
        refusal = StatusError(
            Code.INVALID_TRANSACTION_ID, "the id names no transaction of the caller's"
        )
        try:
            for answered in asyncio.as_completed(asks):
                try:
                    halves = await answered
                except StatusError as error:
                    refusal = error
                    continue
                if halves:
                    return halves[-1]
        finally:
            for one in asks:
                one.cancel()
            await asyncio.gather(*asks, return_exceptions=True)
        raise refusal

    def _may_end(self, caller: Caller, topic: str, half: MessageRecord) -> bool:
        properties = decode_properties(half.properties)
        sent_to = properties.get("REAL_TOPIC") or HALF_TOPIC
        with contextlib.suppress(StatusError):
            self._brokers.permit(caller, RequestCode.END_TRANSACTION, {"topic": sent_to})
            return properties.get("PGROUP") == topic
        return False

    def check(self, connection: Connection, request: RemotingCommand) -> None:
        """Handle 39, which is one-way; without a client the broker checks again later."""
        try:
            header = CheckTransactionHeader.parse(request.ext)
            record = decode_record(request.body)
        except (RemotingError, RecordError) as error:
            log.error("transaction_check_broken error=%s", error)
            return
        properties = decode_properties(record.properties)
        topic = properties.get("PGROUP") or record.topic

        def may(client: Client) -> bool:
            return self._access.may_send(client.access_key, client.host, record.topic)

        client = self._clients.producer_of(topic, may)
        broker_name = self._brokers.broker_at(topic, connection.address)
        if client is None or client.queue is None or broker_name is None:
            self.dropped_count += 1
            return
        key = header.transaction_id or properties.get("UNIQ_KEY", "")
        if topic == record.topic:  # otherwise `_find` checks the right to send to its topic
            half = HalfPosition(broker_name, header.half_queue_offset, header.commitlog_offset)
            self._halves.remember(topic, key, half)
        command = RecoverOrphanedTransactionCommand(
            message=inbound(record, topic, client.namespace, None, times=0),
            transaction_id=key,
        )
        if client.queue.put(TelemetryCommand(recover_orphaned_transaction_command=command)):
            self.forwarded_count += 1
        else:
            self.dropped_count += 1
