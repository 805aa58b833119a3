"""A TCP connection with requests in both directions, an asyncio.Protocol.

Nothing here costs a task, a future or a lock per message. Handlers are plain functions
`(connection, command)`, and their return value decides:
- A RemotingCommand is the answer (never sent for a one-way request).
- None means no answer, or a later answer by `reply` or `write`.
- A generator is the work for the request, in steps. The connection runs it in turns
  (remoting.fair_scheduling), and serves later requests only after its end. Its result is the
  answer, or None.
- A coroutine is a slow request. The connection owns it as a task (at most `tasks_max`, then
  SYSTEM_BUSY) and cancels it when the connection ends.

An exception of a handler becomes the answer. Nothing that a peer sends can make this module raise.
An unforeseen error, also a failed assertion, is logged and counted, and ends this connection if no
request can be answered. Failures that endanger the log or the replicated state stop the node in the
code that changes them.

Writes of one loop iteration are joined into one transport write. If a peer does not read, a server
stops reading its requests past `write_high_bytes` of unsent answers, and closes the connection past
`write_bytes_max`. A client never stops reading, or two full peers would wait for each other; it
rejects new requests with TooManyRequests. `budgets` limits the memory of all connections of a
server (remoting.memory_limits).

A connection with `credentials` signs requests of `invoke` and `invoke_oneway`. Encoded frames have
to be signed by their writer (client.producer.send_frame).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from time import thread_time
from typing import Any, cast

from raftmq.ops.keepalive import CLIENT_KEEPALIVE

from .acl.signature import Credentials
from .address import format_address
from .codec import (
    FRAME_SIZE_BYTES_MAX,
    FrameReader,
    RawFrame,
    decode_command,
    encode_command,
)
from .codes import BODY_BYTES_MAX, LARGE_BODIES, ResponseCode
from .command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from .errors import (
    ConnectionLost,
    RemotingError,
    RemotingProtocolError,
    SendTimeout,
    TooManyRequests,
)
from .fair_scheduling import Steps, Turns, Watch
from .memory_limits import TASK_BYTES, Budgets
from .pending import PendingRequests

LOG = logging.getLogger("raftmq.remoting")

SlowAnswer = Coroutine[Any, Any, "RemotingCommand | None"]
Answer = RemotingCommand | None | SlowAnswer | Steps["RemotingCommand | None"]
Handler = Callable[["Connection", RemotingCommand], Answer]
RawHandler = Callable[["Connection", list[RawFrame]], None]
CloseCallback = Callable[["Connection", str], None]

# Marks log records that a peer can cause without limit (ops.logs bounds those).
FROM_PEER = {"from_peer": True}
UNFORESEEN = "unforeseen what=%s peer=%s"
CLOSED = "connection_closed peer=%s reason=%s"
REMARK_CHARS_MAX = 2_000  # of an error's remark

UNRECORDED_BYTES = 4096  # of an arrival that waits for its turn, less than its connection itself
SWEEP_SPACING_S = 0.01  # at most 100 sweeps per second over a connection's waiting requests


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a connection; each has a test at the limit."""

    frame_size_max: int = FRAME_SIZE_BYTES_MAX
    requests_max: int = 65_536  # own unanswered requests
    tasks_max: int = 256  # running slow requests of the peer
    write_high_bytes: int = 4 * 1024 * 1024  # above, a server stops reading
    write_low_bytes: int = 1 * 1024 * 1024  # below, it resumes
    write_bytes_max: int = 64 * 1024 * 1024  # unsent; above, the connection is closed
    close_timeout_s: float = 5.0  # to send the last bytes of an orderly close


class Connection(asyncio.Protocol):
    """Either end of a connection. Attributes for users: `peer_address`, `local_address`, `address`
    (as dialled, or "" if accepted), `attachment` (any value of theirs)."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        limits: ConnectionLimits | None = None,
        on_raw: RawHandler | None = None,
        *,
        address: str = "",
        credentials: Credentials | None = None,
        on_accepted: Callable[[Connection], None] | None = None,
        budgets: Budgets | None = None,
        turns: Turns | None = None,
    ) -> None:
        """A dialled connection has an `address`; an accepted connection is passed to its server's
        `on_accepted` when it is open. Without `budgets` the peer is trusted with memory, as clients
        trust servers; without `turns`, with the loop."""
        self.limits = limits or ConnectionLimits()
        self.handlers = handlers
        self.on_raw = on_raw
        self.address = address
        self.peer_address = ""
        self.local_address = ""
        self.attachment: Any = None
        # set after a request of an account or a broker's registration was accepted
        self.has_account = False
        self.close_reason = ""
        self.received_bytes = 0
        self.sent_bytes = 0  # handed to the transport
        # loop time of the last arrival, or of a write without back-pressure
        self.last_active_s = 0.0
        self._credentials = credentials
        self._on_accepted = on_accepted
        self._pauses_reading = on_accepted is not None  # only a server pauses
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(self.limits.frame_size_max)
        self._pending: PendingRequests[asyncio.Future[RemotingCommand]] = PendingRequests(
            self.limits.requests_max
        )
        self._transport: asyncio.Transport | None = None
        self._open = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_due = False  # _flush is scheduled
        self._write_paused = False
        self._read_paused = False
        self._backlog: list[RawFrame] = []  # received frames that are not served yet
        self._backlog_bytes = 0
        self._budgets = budgets
        self._turns = turns
        self._waits_turn = False  # take_turn is scheduled
        self._put_off: list[bytes] = []  # received data that waits for its turn
        # The request that is served in steps, and its remaining steps.
        self._in_steps: tuple[RemotingCommand, Steps[RemotingCommand | None]] | None = None
        self._recorded = False  # in budgets.unfinished
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at_s = float("inf")
        self._close_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._close_callbacks: list[CloseCallback] = []
        self._lost = self._loop.create_future()

    # --- for users

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def is_busy(self) -> bool:
        """Return whether it must not be evicted (ops.fairness), that is, never."""
        return False

    @property
    def holder(self) -> str:
        """Return the address by which the server counts it."""
        return self.peer_address.rpartition(":")[0]

    @property
    def outstanding(self) -> int:
        """Return the number of own unanswered requests."""
        return len(self._pending)

    @property
    def unsent_bytes(self) -> int:
        buffered = self._transport.get_write_buffer_size() if self._transport else 0
        return self._out_bytes + buffered

    def hand_to(self, handler: RawHandler) -> None:
        """Pass the frames of later arrivals to `handler`, which may `dispatch` them."""
        self.on_raw = handler

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(connection, reason)` once when the connection has ended."""
        if self._lost.done():
            callback(self, self.close_reason)
        else:
            self._close_callbacks.append(callback)

    def write(self, data: bytes) -> bool:
        """Queue whole frames; they are sent at the end of this loop iteration, joined with others.
        Returns False, with the bytes dropped, if the connection is closed."""
        if not self._open:
            return False
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > self.limits.write_high_bytes:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return self._open

    def write_many(self, frames: list[bytes]) -> bool:
        """Write all frames, after those queued before, to the transport at once."""
        if not self._open:
            return False
        self._out.extend(frames)
        self._flush()
        return self._open

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> bool:
        """Answer `request` in its own header codec; a one-way request gets no answer."""
        if request.flag & ONEWAY_FLAG:
            return False
        response.opaque = request.opaque
        response.flag |= RESPONSE_FLAG
        return self.write(encode_command(response, request.serialize_type))

    async def invoke(self, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """Send a request and wait for its response. Raises SendTimeout, ConnectionLost,
        TooManyRequests, RemotingProtocolError."""
        if self._credentials is not None:
            self._credentials.sign(command)
        if not self._open:
            raise ConnectionLost(f"connection to {self.peer_address} is closed")
        opaque = command.opaque = self._pending.next_opaque()
        encoded = self._encoded(command)
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        deadline_s = self._loop.time() + timeout_ms / 1000
        self._pending.add(opaque, future, deadline_s)
        self.write(encoded)
        if deadline_s < self._sweep_at_s:
            self._schedule_sweep(deadline_s)
        try:
            return await future
        except asyncio.CancelledError:
            self._pending.take(opaque)
            raise

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Send a one-way request. Raises ConnectionLost, TooManyRequests."""
        if self._credentials is not None:
            self._credentials.sign(command)
        command.flag |= ONEWAY_FLAG
        command.opaque = self._pending.next_opaque()
        if not self.write(self._encoded(command)):
            raise ConnectionLost(f"connection to {self.peer_address} is closed")

    def close(self, reason: str = "closed by us") -> None:
        """Send the queue, then close, within `close_timeout_s`, and ignore arrivals."""
        if not self._open:
            return
        self._flush()
        self._end(reason)
        transport = self._transport
        assert transport is not None
        self._close_timer = self._loop.call_later(self.limits.close_timeout_s, transport.abort)
        transport.close()

    def abort(self, reason: str) -> None:
        """Close at once; unsent bytes are dropped."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection and its tasks have ended."""
        await asyncio.shield(self._lost)
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def dispatch(self, frame: RawFrame) -> bool:
        """Handle a frame as usual, for raw handlers. False if malformed, and closed."""
        try:
            command = decode_command(frame)
        except RemotingProtocolError as error:
            self._break(str(error))
            return False
        if not command.flag & RESPONSE_FLAG:
            self._serve(command)
            return True
        waiting = self._pending.take(command.opaque)
        if waiting is None:
            LOG.debug("answer_unclaimed peer=%s opaque=%d", self.peer_address, command.opaque)
        elif not waiting.done():  # otherwise the caller was cancelled
            waiting.set_result(command)
        return True

    def fail(self, what: str, error: Exception) -> None:
        """End only this connection, after an unforeseen error in work for its peer."""
        self._unforeseen(what, error)
        self.abort(f"{what} failed: {type(error).__name__}")

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            self._start(transport)
            if not self.peer_address:  # it left before it was accepted
                self.abort("the peer is gone")
            elif self._on_accepted is not None:
                self._on_accepted(self)
        except Exception as error:
            self.fail("accept" if self._on_accepted else "connect", error)
            transport.close()

    def _start(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        self.peer_address = format_address(peer[0], peer[1]) if peer else ""
        self.local_address = format_address(local[0], local[1]) if local else ""
        raw_socket = transport.get_extra_info("socket")
        if raw_socket is not None:
            raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            CLIENT_KEEPALIVE.apply(raw_socket)
        self._transport.set_write_buffer_limits(
            high=self.limits.write_high_bytes, low=self.limits.write_low_bytes
        )
        self._open = True
        self.last_active_s = self._loop.time()

    def data_received(self, data: bytes) -> None:
        if not self._open:
            return
        self.last_active_s = self._loop.time()
        self.received_bytes += len(data)
        turns = self._turns
        if turns is None:
            self._take(data)
        elif not self._waits_turn and not self._backlog and turns.start():
            self._take(data)
            turns.done()
        else:
            self._put_off.append(data)
            self._wait_turn()
            if self._recorded or len(data) >= UNRECORDED_BYTES:
                self._record_unfinished(restart=not self._recorded)
            self._settle_reading()

    def _wait_turn(self) -> None:
        if self._turns is not None and not self._waits_turn:
            self._waits_turn = True
            self._turns.wait(self)

    @property
    def turn_is_over(self) -> bool:
        """True if the frames behind the current frame have to wait (`put_off`)."""
        if self._in_steps is not None:
            return True
        return self._turns is not None and self._turns.is_over

    def put_off(self, frames: list[RawFrame]) -> None:
        """Serve these frames in a later turn, before those already put off."""
        self._backlog = frames + self._backlog
        self._backlog_bytes += sum(len(f[1]) + len(f[2]) for f in frames)
        self._wait_turn()
        self._settle_reading()

    def take_turn(self) -> None:
        """Continue with waiting data (remoting.fair_scheduling)."""
        self._waits_turn = False
        if self._in_steps is not None:
            self._step()
        if self._in_steps is None and self._open:
            if self._backlog:
                self._serve_backlog()
            late = self._put_off
            if late and not self._backlog and self._in_steps is None:
                self._put_off = []
                self._take(late[0] if len(late) == 1 else b"".join(late))
        if self._open and (self._in_steps is not None or self._put_off or self._backlog):
            if not self._is_blocked:
                self._wait_turn()
        self._settle_reading()

    @property
    def _is_blocked(self) -> bool:
        """True if nothing more is served because the peer does not read."""
        return self._write_paused and self._pauses_reading

    def _serve_backlog(self) -> None:
        if self._backlog and not self._is_blocked:
            frames, self._backlog, self._backlog_bytes = self._backlog, [], 0
            self._hand_out(frames)
            self._record_unfinished(restart=True)

    def _settle_reading(self) -> None:
        """Pause reading while data waits, or while a server's peer does not read."""
        if self._transport is None or not self._open:
            return
        pauses = self._waits_turn or self._is_blocked
        if pauses == self._read_paused:
            return
        self._read_paused = pauses
        if pauses:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _take(self, data: bytes) -> None:
        reader = self._reader
        frames = reader.split(data)
        if frames:
            self._hand_out(frames)
        if reader.error is not None:
            self._break(str(reader.error))
        elif self._recorded or reader.buffered_bytes or self._backlog_bytes:
            self._record_unfinished(restart=bool(frames) or not self._recorded)

    def _hand_out(self, frames: list[RawFrame]) -> None:
        self._flush_due = True  # answers from here are sent together below
        try:
            if self.on_raw is not None:
                self.on_raw(self, frames)
            else:
                self._dispatch_all(frames)
        except Exception as error:
            self.fail("request", error)
        finally:
            self._flush_due = False
            if self._out:
                self._flush()

    def _record_unfinished(self, restart: bool) -> None:
        """Report the size of unserved frames to the budgets."""
        if self._budgets is None or not self._open:
            return
        size = self._reader.buffered_bytes + self._backlog_bytes + sum(map(len, self._put_off))
        self._recorded = size > 0
        note = self._budgets.unfinished.restart if restart else self._budgets.unfinished.hold
        note(self, size, self.last_active_s)

    def eof_received(self) -> bool:
        return False  # the transport closes itself; half-open connections are useless here

    def pause_writing(self) -> None:
        self._write_paused = True
        self._settle_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._turns is not None:
            if self._backlog or self._put_off or self._in_steps is not None:
                self._wait_turn()
        else:
            self._serve_backlog()  # may fill buffer and backlog again
        self._record_unsent()
        self._settle_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"broken: {exc}" if exc else "closed by the peer")
        self._transport = None
        if self._budgets is not None:
            self._budgets.unsent.hold(self, 0, 0.0)
        for timer in (self._sweep, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._sweep = self._close_timer = None
        for task in self._tasks:
            task.cancel()
        reason = f"connection to {self.peer_address}: {self.close_reason}"
        for waiting, was_sent in self._pending.drain():
            if not waiting.done():
                waiting.set_exception(ConnectionLost(reason, outcome_unknown=was_sent))
        self._lost.set_result(None)
        for closed in self._close_callbacks:
            try:
                closed(self, self.close_reason)
            except Exception as error:
                self.fail("close_callback", error)
        self._close_callbacks.clear()

    # --- inside

    def _dispatch_all(self, frames: list[RawFrame]) -> None:
        for position, frame in enumerate(frames):
            if self._is_blocked or (position and self.turn_is_over):
                # At most the frames of an arrival, since nothing more is read before they are
                # served.
                self.put_off(frames[position:])
                return
            if not self._open:
                return
            self.dispatch(frame)

    def _serve(self, request: RemotingCommand) -> None:
        handler = self.handlers.get(request.code)
        if handler is None:
            remark = f"request type {request.code} not supported"
            self._refuse(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            return
        if len(request.body) > BODY_BYTES_MAX and request.code not in LARGE_BODIES:
            remark = f"a body of {len(request.body)} bytes; at most {BODY_BYTES_MAX}"
            self._refuse(request, ResponseCode.MESSAGE_ILLEGAL, remark)
            return
        turns, started_s = self._turns, thread_time()
        try:
            answer = handler(self, request)
            if isinstance(answer, RemotingCommand):
                self.reply(request, answer)
            elif isinstance(answer, Generator):
                self._in_steps = request, answer
            elif answer is not None:
                self._start_slow(request, answer)
        except Exception as error:
            self._refuse_for(request, error)
        if turns is not None:
            turns.watch.note(request.code, self.peer_address, thread_time() - started_s)
        if self._in_steps is not None:
            self._step()

    def _step(self) -> None:
        """Continue the request in steps until its turn is over."""
        assert self._in_steps is not None
        request, steps = self._in_steps
        turns, started_s = self._turns, thread_time()
        if not self._open:
            self._in_steps = None
            steps.close()
            return
        try:
            while True:
                next(steps)
                if turns is not None and turns.is_over:
                    self._wait_turn()
                    break
        except StopIteration as end:
            self._in_steps = None
            if end.value is not None:
                self.reply(request, end.value)
        except Exception as error:
            self._in_steps = None
            self._refuse_for(request, error)
        if turns is not None:
            turns.watch.note(request.code, self.peer_address, thread_time() - started_s)

    def _start_slow(self, request: RemotingCommand, answer: SlowAnswer) -> None:
        if not inspect.iscoroutine(answer):
            raise TypeError(f"handler of {request.code} returned {type(answer).__name__}")
        size = len(request.body) + TASK_BYTES
        remark = ""
        if len(self._tasks) >= self.limits.tasks_max:
            remark = f"[BUSY] {len(self._tasks)} slow requests of this connection are in work"
        elif self._budgets is not None and not self._budgets.work.take(size):
            remark = f"[BUSY] {self._budgets.work.used_bytes} bytes of slow requests are in work"
        if remark:
            answer.close()
            self._refuse(request, ResponseCode.SYSTEM_BUSY, remark)
            return
        task = self._loop.create_task(self._finish(request, answer))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, answer, size))

    async def _finish(self, request: RemotingCommand, answer: SlowAnswer) -> None:
        try:
            if self._turns is not None:
                watch = self._turns.watch
                response = await _Watched(answer, request.code, watch, self.peer_address)
            else:
                response = await answer
            if response is not None:
                self.reply(request, response)
        except Exception as error:
            self._refuse_for(request, error)

    def _finished(self, task: asyncio.Task[None], answer: SlowAnswer, size: int) -> None:
        self._tasks.discard(task)
        answer.close()  # it has not begun, if the task was cancelled before
        if self._budgets is not None:
            self._budgets.work.give_back(size)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail("answer", error)

    def _refuse_for(self, request: RemotingCommand, error: Exception) -> None:
        if isinstance(error, RemotingError):
            self._refuse(request, error.code, str(error))
            return
        self._unforeseen(f"request code={request.code}", error)
        remark = f"{type(error).__name__}: {error}"
        self._refuse(request, ResponseCode.SYSTEM_ERROR, remark)

    def _refuse(self, request: RemotingCommand, code: int, remark: str) -> None:
        remark = remark[:REMARK_CHARS_MAX]
        self.reply(request, RemotingCommand.response_to(request, code, remark))

    def _unforeseen(self, what: str, error: Exception) -> None:
        if self._budgets is not None:
            self._budgets.failures += 1
        LOG.error(UNFORESEEN, what, self.peer_address, exc_info=error, extra=FROM_PEER)

    def _encoded(self, command: RemotingCommand) -> bytes:
        """Return a request's frame. Raises TooManyRequests if the peer does not read."""
        encoded = encode_command(command)
        if self._write_paused and self.unsent_bytes + len(encoded) > self.limits.write_bytes_max:
            raise TooManyRequests(f"{self.peer_address} does not read; too many bytes wait")
        return encoded

    def _flush(self) -> None:
        self._flush_due = False
        out = self._out
        if not out or not self._open:
            return
        assert self._transport is not None
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        self._pending.all_sent()
        self._transport.write(data)
        self.sent_bytes += len(data)
        self._record_unsent()
        if not self._write_paused:
            self.last_active_s = self._loop.time()
        elif self._open and self._transport.get_write_buffer_size() > self.limits.write_bytes_max:
            reason = f"does not read: over {self.limits.write_bytes_max} bytes unsent"
            LOG.warning(CLOSED, self.peer_address, reason, extra=FROM_PEER)
            self.abort(reason)

    def _record_unsent(self) -> None:
        """Report the size of the transport's buffer to the budgets."""
        if self._budgets is not None and self._transport is not None:
            unsent = self._budgets.unsent
            size = self._transport.get_write_buffer_size()
            if size or unsent.held_bytes:
                unsent.hold(self, size, 0.0)

    def _schedule_sweep(self, when_s: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep_at_s = when_s
        self._sweep = self._loop.call_at(when_s, self._sweep_deadlines)

    def _sweep_deadlines(self) -> None:
        self._sweep = None
        self._sweep_at_s = float("inf")
        now_s = self._loop.time()
        for waiting, was_sent in self._pending.expire(now_s):
            if not waiting.done():
                error = SendTimeout(f"no answer from {self.peer_address}", outcome_unknown=was_sent)
                waiting.set_exception(error)
        if len(self._pending):
            self._schedule_sweep(max(self._pending.next_deadline, now_s + SWEEP_SPACING_S))

    def _break(self, reason: str) -> None:
        """Close after a protocol error of the peer; earlier answers are still sent."""
        LOG.warning(CLOSED, self.peer_address, reason, extra=FROM_PEER)
        self.close(reason)

    def _end(self, reason: str) -> None:
        """Stop reading and writing; the first reason is kept."""
        self._open = False
        self.close_reason = self.close_reason or reason
        self._out.clear()
        self._out_bytes = 0
        self._backlog.clear()
        self._backlog_bytes = 0
        self._put_off.clear()
        self._reader.drop()
        if self._budgets is not None:
            self._budgets.unfinished.hold(self, 0, 0.0)


class _Watched:
    """A slow answer that records the duration of each of its turns."""

    __slots__ = ("_answer", "_record")

    def __init__(self, answer: SlowAnswer, code: int, watch: Watch, peer: str) -> None:
        self._answer = answer
        self._record = partial(watch.note, code, peer)

    def __await__(self) -> Generator[Any, Any, RemotingCommand | None]:
        resume: Callable[[Any], Any] = self._answer.send
        value: Any = None
        while True:
            started_s = thread_time()
            try:
                waits_for = resume(value)
            except StopIteration as end:
                return cast("RemotingCommand | None", end.value)
            finally:
                self._record(thread_time() - started_s)
            try:
                value = yield waits_for
                resume = self._answer.send
            except BaseException as error:  # for example, a cancellation
                resume, value = self._answer.throw, error
