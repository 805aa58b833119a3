"""EndTransaction, and brokers' checks of open transactions.

A transaction's id holds the position of its half message, so any proxy can end it. A broker sends
its check (39) to a producer of the topic, over a proxy's connection. The proxy forwards the check
to a client that has the right to send to the topic, because brokers cannot check a proxy's clients.
For the same reason the proxy checks a caller's right to the topic of a half message.
"""

from __future__ import annotations

import contextlib
import logging

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import CheckTransactionHeader, EndTransactionHeader
from raftmq.store.properties import decode_properties
from raftmq.store.record import RecordError, decode_record

from .access import Access
from .caller import Caller
from .clients import Client, Clients
from .cluster import Brokers
from .endpoints import TransactionId, topic_of
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
_DECISIONS = {
    TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED: 0,
    TransactionResolution.COMMIT: 8,
    TransactionResolution.ROLLBACK: 12,
}


class TransactionHandlers:
    def __init__(self, brokers: Brokers, clients: Clients, access: Access) -> None:
        self._brokers = brokers
        self._clients = clients
        self._access = access
        self.forwarded_count = 0  # checks forwarded to clients
        self.dropped_count = 0  # checks without a client

    async def end(self, caller: Caller, request: EndTransactionRequest) -> EndTransactionResponse:
        """Commit or roll back. Raises StatusError."""
        topic = topic_of(request.topic)
        transaction = TransactionId.decode(request.transaction_id)
        message_id = id_of(request.message_id, "the message's id", Code.ILLEGAL_MESSAGE_ID)
        await self._brokers.check_broker(caller, topic, transaction.broker_name)
        if caller.account is not None:
            await self._check_half(caller, topic, transaction)
        header = EndTransactionHeader(
            topic,
            transaction.half_offset,
            transaction.position,
            _DECISIONS.get(request.resolution, 0),
            message_id or transaction.unique_key,
            transaction.unique_key,
            request.source == TransactionSource.SOURCE_SERVER_CHECK,
            topic,
        )
        response = await self._brokers.ask(
            caller, transaction.broker_name, RequestCode.END_TRANSACTION, header.to_ext()
        )
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)
        return EndTransactionResponse(status=status_of(Code.OK))

    async def _check_half(self, caller: Caller, topic: str, transaction: TransactionId) -> None:
        """Raise StatusError unless the id names a half message of a topic that the caller may send
        to. The error does not reveal the cause."""
        code = RequestCode.END_TRANSACTION
        self._brokers.permit(caller, code, {"topic": topic})
        half = await self._brokers.stored_at(caller, transaction.broker_name, transaction.position)
        if half is not None and half.topic == HALF_TOPIC:
            sent_to = decode_properties(half.properties).get("REAL_TOPIC") or HALF_TOPIC
            with contextlib.suppress(StatusError):
                self._brokers.permit(caller, code, {"topic": sent_to})
                return
        raise StatusError(
            Code.INVALID_TRANSACTION_ID, "the id names no transaction of the caller's"
        )

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
        transaction = TransactionId(
            broker_name, header.half_queue_offset, header.commitlog_offset, key
        )
        command = RecoverOrphanedTransactionCommand(
            message=inbound(record, topic, client.namespace, None, times=0),
            transaction_id=transaction.encode(),
        )
        if client.queue.put(TelemetryCommand(recover_orphaned_transaction_command=command)):
            self.forwarded_count += 1
        else:
            self.dropped_count += 1
