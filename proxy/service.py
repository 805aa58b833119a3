"""The gRPC handlers of the messaging service.

This is the boundary between gRPC and the calls. It authenticates the `Caller`, converts a
`StatusError` to an answer's status, and counts all answers. gRPC answers unimplemented calls.

Requests are decoded here, because gRPC logs a traceback for each damaged message. All calls are
declared with a request stream, which is the same on the wire. For unary calls gRPC would show the
caller only after the complete message, without a deadline. The message of a caller without an
account or a client id is not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from raftmq.ops.fairness import SharedLimit
from raftmq.remoting.connection import FROM_PEER

from .access import Access
from .caller import (
    Caller,
    client_id_of,
    host_of_peer,
    language_of,
    metadata_of,
    namespace_of,
)
from .clients import Clients, CommandQueue
from .metrics import Counts
from .protocol import messaging_pb2 as pb
from .receive_message import ReceiveHandlers
from .receive_stream import Unread
from .routes import RouteHandlers
from .send_message import SendHandlers
from .status_codes import StatusError, status_of
from .telemetry import TelemetryHandlers
from .transactions import TransactionHandlers

log = logging.getLogger("raftmq.proxy")

SERVICE = "apache.rocketmq.v2.MessagingService"
HEALTH = "grpc.health.v1.Health"
# Time limit of brokers' answers before a settings command is answered. Java's clients wait 3 s,
# most wait 10 s.
SETTINGS_S = 8.0
STRANGER_S = 2.0  # for a first message, before the stream is rejected
MESSAGE_S = 60.0  # for a call's message to arrive, 16 MiB at 300 kB per second
# Unauthenticated calls in progress; each may hold a message of the largest size.
STRANGERS_MAX = 16
CHECKS_MAX = 200  # health checks in progress
# An account, or an address such as a load balancer's, may use eight ninths of the free calls.
CALLS_SHARE = 8.0
STRANGERS_SHARE = CHECKS_SHARE = 1.0  # likewise, per address
CALL_S_MAX = 120.0
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse{status}
_ENDS = {
    pb.Code.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    pb.Code.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    pb.Code.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.Code.PROXY_TIMEOUT: grpc.StatusCode.UNAVAILABLE,
    pb.Code.HA_NOT_AVAILABLE: grpc.StatusCode.UNAVAILABLE,
    pb.Code.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
}

Context = Any  # grpc.aio.ServicerContext, which has no types
Act = Callable[[Caller, Any], Awaitable[Any]]


class Service:
    def __init__(
        self,
        *,
        calls_max: int,
        call_limit_s: float,
        access: Access,
        clients: Clients,
        counts: Counts,
        presence: TelemetryHandlers,
        routes: RouteHandlers,
        sends: SendHandlers,
        receives: ReceiveHandlers,
        transactions: TransactionHandlers,
        client_of: Callable[[str], str],
        stopping: asyncio.Event,
    ) -> None:
        """`client_of` returns the client of a gRPC peer, or ""."""
        self._calls = CallLimit("calls", calls_max, CALLS_SHARE)
        self._strangers = CallLimit("strangers", STRANGERS_MAX, STRANGERS_SHARE)
        self._checks = CallLimit("health", CHECKS_MAX, CHECKS_SHARE)
        self._unfinished_count = 0
        self._call_limit_s = call_limit_s
        self._access = access
        self._clients = clients
        self._counts = counts
        self._presence = presence
        self._receives = receives
        self._client_of = client_of
        self._stopping = stopping
        self._unary: dict[str, tuple[Act, Any, Any]] = {
            "QueryRoute": (routes.route, pb.QueryRouteRequest, pb.QueryRouteResponse),
            "QueryAssignment": (
                routes.assignment,
                pb.QueryAssignmentRequest,
                pb.QueryAssignmentResponse,
            ),
            "Heartbeat": (presence.heartbeat, pb.HeartbeatRequest, pb.HeartbeatResponse),
            "NotifyClientTermination": (
                presence.terminated,
                pb.NotifyClientTerminationRequest,
                pb.NotifyClientTerminationResponse,
            ),
            "SendMessage": (sends.send, pb.SendMessageRequest, pb.SendMessageResponse),
            "RecallMessage": (sends.recall, pb.RecallMessageRequest, pb.RecallMessageResponse),
            "EndTransaction": (
                transactions.end,
                pb.EndTransactionRequest,
                pb.EndTransactionResponse,
            ),
            "AckMessage": (receives.ack, pb.AckMessageRequest, pb.AckMessageResponse),
            "ChangeInvisibleDuration": (
                receives.change,
                pb.ChangeInvisibleDurationRequest,
                pb.ChangeInvisibleDurationResponse,
            ),
            "ForwardMessageToDeadLetterQueue": (
                receives.forward,
                pb.ForwardMessageToDeadLetterQueueRequest,
                pb.ForwardMessageToDeadLetterQueueResponse,
            ),
        }

    def handlers(self) -> list[Any]:
        methods = {
            name: grpc.stream_unary_rpc_method_handler(
                self._answered(name, act, request, answer),
                response_serializer=answer.SerializeToString,
            )
            for name, (act, request, answer) in self._unary.items()
        }
        methods["ReceiveMessage"] = grpc.stream_stream_rpc_method_handler(
            self._receive,
            response_serializer=pb.ReceiveMessageResponse.SerializeToString,
        )
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry,
            response_serializer=pb.TelemetryCommand.SerializeToString,
        )
        check = grpc.stream_unary_rpc_method_handler(self._health)  # bytes in, bytes out
        return [
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(HEALTH, {"Check": check}),
        ]

    @property
    def calls_count(self) -> int:
        """Return the number of authenticated calls in progress."""
        return self._calls.count

    @property
    def refused_counts(self) -> dict[str, int]:
        """Return how many calls were ended without an answer, by limit."""
        bounds = (self._calls, self._strangers, self._checks)
        counts = {bound.kind: bound.refused_count for bound in bounds}
        return counts | {"unfinished": self._unfinished_count}

    def _peer(self, context: Context) -> str:
        return self._client_of(context.peer())

    def _caller(self, context: Context) -> Caller:
        """Return the caller. Raises StatusError."""
        metadata = metadata_of(context.invocation_metadata())
        peer = self._peer(context)
        if not peer:
            raise StatusError(pb.Code.UNAUTHORIZED, "the connection did not come through this port")
        host = host_of_peer(peer)
        return Caller(
            client_id_of(metadata),
            namespace_of(metadata),
            language_of(metadata),
            host,
            self._deadline_s(context),
            *self._access.account_of(metadata, host),
        )

    def _deadline_s(self, context: Context) -> float:
        left_s = context.time_remaining()
        limit_s = self._call_limit_s if left_s is None else min(left_s, CALL_S_MAX)
        return asyncio.get_running_loop().time() + limit_s

    async def _admitted(self, name: str, context: Context) -> Caller:
        """Return the caller; end the call at the limit. Raises StatusError for an unauthenticated
        caller, which gets an answer."""
        try:
            caller = self._caller(context)
        except StatusError as refusal:
            peer = self._peer(context)
            if not self._strangers.take(peer, host_of_peer(peer)):
                await self._end(name, context, refusal)
            raise
        if not self._calls.take(self._peer(context), caller.access_key or caller.host):
            text = f"{self._calls.count} of {self._calls.limit} calls are in progress already"
            await self._end(name, context, StatusError(pb.Code.TOO_MANY_REQUESTS, text))
        return caller

    async def _read_request(
        self, name: str, caller: Caller, kind: Any, context: Context
    ) -> tuple[Caller, Any]:
        """Return a call's message, and the caller with the remaining time. End the call if its
        message does not arrive or is invalid."""
        try:
            async with asyncio.timeout(MESSAGE_S):
                message = await context.read()
        except TimeoutError:
            self._unfinished_count += 1
            peer = self._peer(context)
            log.warning("call_unfinished call=%s peer=%s", name, peer, extra=FROM_PEER)
            text = f"the message did not arrive within {MESSAGE_S:g} s"
            await self._end(name, context, StatusError(pb.Code.PROXY_TIMEOUT, text))
        if message is grpc.aio.EOF:
            await self._end(name, context, StatusError(pb.Code.BAD_REQUEST, "there is no message"))
        try:
            request = decoded(kind, message)
        except StatusError as refusal:
            self._log(name, context, refusal)
            await self._end(name, context, refusal)
        return replace(caller, deadline_s=self._deadline_s(context)), request

    async def _end(self, name: str, context: Context, refusal: StatusError) -> None:
        """End a call with a gRPC status, which a caller cannot block."""
        self._counts.answered(name, refusal.code, 0.0)
        kind = _ENDS.get(refusal.code, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(kind, refusal.status.message)

    def _answered(self, name: str, act: Act, kind: Any, answer: Any) -> Any:
        async def call(_: AsyncIterator[Any], context: Context) -> Any:
            try:
                caller = await self._admitted(name, context)
            except StatusError as refusal:
                self._log(name, context, refusal)
                self._counts.answered(name, refusal.code, 0.0)
                return answer(status=refusal.status)
            caller, request = await self._read_request(name, caller, kind, context)
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            try:
                result = await act(caller, request)
            except StatusError as refusal:
                self._log(name, context, refusal)
                result = answer(status=refusal.status)
            except Exception:
                log.exception("call_failed call=%s", name, extra=FROM_PEER)
                result = answer(status=status_of(pb.Code.INTERNAL_ERROR))
            self._counts.answered(name, result.status.code, loop.time() - began_s)
            return result

        return call

    async def _receive(self, _: AsyncIterator[Any], context: Context) -> None:
        name = "ReceiveMessage"
        try:
            caller = await self._admitted(name, context)
        except StatusError as refusal:
            await self._answer_empty(context, refusal)
            self._counts.answered(name, refusal.code, 0.0)
            return
        caller, request = await self._read_request(name, caller, pb.ReceiveMessageRequest, context)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            self._counts.received += await self._receives.receive(caller, request, context.write)
            code = pb.Code.OK
        except StatusError as refusal:
            code = refusal.code
            await self._answer_empty(context, refusal)
        except Unread as error:
            log.info("unread call=%s peer=%s", name, self._peer(context), extra=FROM_PEER)
            self._counts.answered(name, pb.Code.PROXY_TIMEOUT, loop.time() - began_s)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        except Exception:
            log.exception("call_failed call=%s", name, extra=FROM_PEER)
            code = pb.Code.INTERNAL_ERROR
            await context.write(pb.ReceiveMessageResponse(status=status_of(code)))
        self._counts.answered(name, code, loop.time() - began_s)

    async def _answer_empty(self, context: Context, refusal: StatusError) -> None:
        """Answer a receive without messages."""
        if refusal.code != pb.Code.MESSAGE_NOT_FOUND:
            self._log("ReceiveMessage", context, refusal)
        await context.write(pb.ReceiveMessageResponse(status=refusal.status))
        last = pb.ReceiveMessageResponse()
        last.delivery_timestamp.GetCurrentTime()
        await context.write(last)

    async def _telemetry(self, _: AsyncIterator[Any], context: Context) -> None:
        """Serve a stream until the client or the proxy ends it.

        An unauthenticated stream is rejected only after its first message. gRPC's libraries report
        INTERNAL, without the reason, for a stream that ends earlier.
        """
        name = "Telemetry"
        try:
            caller = await self._admitted(name, context)
        except StatusError as refusal:
            with suppress(TimeoutError):
                async with asyncio.timeout(STRANGER_S):
                    await context.read()
            await self._end(name, context, refusal)
        queue = self._clients.new_queue()
        writer = asyncio.create_task(queue.run(context.write), name="telemetry writer")
        reader = asyncio.create_task(
            self._read_commands(caller, context, queue), name="telemetry reader"
        )
        stop = asyncio.create_task(self._stopping.wait(), name="telemetry stop")
        tasks = (writer, reader, stop)
        end: StatusError | None = None
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not reader.cancelled() and reader.exception() is None:
                end = reader.result()
            elif stop.done():
                end = StatusError(pb.Code.PROXY_TIMEOUT, "the proxy stops")
            elif writer.done() and not writer.cancelled() and writer.exception() is None:
                end = StatusError(pb.Code.UNAUTHORIZED, "the client's account is none any more")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in self._clients:
                if client.queue is queue:
                    client.queue = None
            queue.end()
        if end is not None:
            await self._end(name, context, end)
        self._counts.answered(name, pb.Code.OK, 0.0)

    async def _read_commands(
        self, caller: Caller, context: Context, queue: CommandQueue
    ) -> StatusError | None:
        """Handle a client's commands until its stream ends; return the reason to end the stream.
        gRPC keeps the frames of a stream for a while, so none may hold a command, a traceback or a
        message iterator."""
        try:
            while await self._handle_command(caller, context, queue):
                pass
        except StatusError as refusal:
            return refusal.with_traceback(None)
        return None

    async def _handle_command(self, caller: Caller, context: Context, queue: CommandQueue) -> bool:
        """Read and handle a command; return False at the stream's end. Raises StatusError. A
        separate function, so that no command is referenced during the next read."""
        message = await context.read()
        if message is grpc.aio.EOF:
            return False
        command = decoded(pb.TelemetryCommand, message)
        if command.WhichOneof("command") != "settings":
            return True  # results of requests that the proxy never makes
        if command.settings.WhichOneof("pub_sub") is None:
            text = "the settings say neither publishing nor subscription"
            raise StatusError(pb.Code.BAD_REQUEST, text)
        caller = replace(caller, deadline_s=asyncio.get_running_loop().time() + SETTINGS_S)
        answer = await self._presence.settings(caller, command.settings)
        client = self._clients.find(caller.client_id)
        if client is not None:
            client.queue = queue
        if not queue.put(answer):
            text = "the client does not read its stream, or all clients are told too much"
            raise StatusError(pb.Code.TOO_MANY_REQUESTS, text)
        return True

    async def _health(self, _: AsyncIterator[bytes], context: Context) -> bytes:
        peer = self._peer(context)
        if not self._checks.take(peer, host_of_peer(peer)):
            text = f"{self._checks.count} health checks are in progress already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        return NOT_SERVING if self._stopping.is_set() else SERVING

    def _log(self, name: str, context: Context, refusal: StatusError) -> None:
        log.info("refused call=%s peer=%s %s", name, self._peer(context), refusal, extra=FROM_PEER)


def decoded(kind: Any, message: bytes) -> Any:
    """Decode a message. Raises a StatusError that does not reference the message."""
    with suppress(DecodeError):
        return kind.FromString(message)
    raise StatusError(pb.Code.BAD_REQUEST, f"not a {kind.DESCRIPTOR.name}")


class CallLimit:
    """Counts calls until their task ends. gRPC has then written the answer, so a caller that does
    not read its answer keeps counting."""

    def __init__(self, kind: str, limit: int, share: float) -> None:
        """`kind` labels log and metrics. `share` limits a holder's share of the free calls."""
        self.kind = kind
        self.refused_count = 0
        self._shared = SharedLimit(limit, share)

    @property
    def limit(self) -> int:
        return self._shared.limit

    @property
    def count(self) -> int:
        return self._shared.used

    def take(self, peer: str, holder: str) -> bool:
        """Count the call of the current task. Return False, and log it, if the limit is reached."""
        if not self._shared.take(holder):
            self.refuse(peer)
            return False
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._shared.give_back(holder))
        return True

    def refuse(self, peer: str) -> None:
        self.refused_count += 1
        text = "call_bound kind=%s limit=%d total=%d peer=%s"
        log.warning(text, self.kind, self.limit, self.refused_count, peer, extra=FROM_PEER)
