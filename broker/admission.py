"""Access control before every other step of a request (aclEnable).

All frames of an arrival pass `Admission` before the processor; without aclEnable this step is
missing. Rejected requests are answered, rejected one-way requests are dropped, and both are
counted. Responses pass. An undecodable frame closes its connection here, so that this step and the
processor never interpret a frame differently.

A new leader may not have applied its predecessor's changes of accounts yet. Requests between its
election and its first commit therefore wait, at most `HOLD_MS` and `HELD_BYTES_MAX`. They are
checked against the accounts in force then, or rejected like requests to a follower. Followers check
against the accounts that they have applied.
"""

from __future__ import annotations

import asyncio

from raftmq.remoting.acl import AclError
from raftmq.remoting.codec import RawFrame, decode_command
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, RawHandler
from raftmq.remoting.errors import RemotingError, RemotingProtocolError

from .access import Access
from .component import RoleChange, Service
from .errors import not_leader

HOLD_MS = 200  # as for sends (broker.send.queue)
HELD_BYTES_MAX = 16 * 1024 * 1024
JUDGED_AT_ONCE = 64  # 64 signatures need some 2 ms


class Admission:
    """Passes frames to `then` if their accounts have the needed rights."""

    def __init__(self, access: Access, then: RawHandler) -> None:
        self._access = access
        self._then = then
        self._unsettled = False
        self._held: list[tuple[Connection, list[RawFrame]]] = []
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held_count(self) -> int:
        """Arrivals that wait for the table of accounts of a new leader."""
        return len(self._held)

    def service(self) -> Service:
        return Service(role_changed=self._role_changed, stop=self._stop)

    @property
    def on_raw(self) -> RawHandler:
        """The server's callback for the frames of each arrival."""
        return self._arrived if self._access.enabled else self._then

    def _role_changed(self, change: RoleChange) -> None:
        self._unsettled = self._access.enabled and change.awaited
        if not self._unsettled:
            self._release()

    async def _stop(self) -> None:
        self._unsettled = False
        self._taken()

    def _arrived(self, connection: Connection, frames: list[RawFrame]) -> None:
        if not self._unsettled:
            self._judge(connection, frames)
            return
        size = sum(len(header) + len(body) for _, header, body in frames)
        if self._held_bytes + size > HELD_BYTES_MAX:
            self._refuse_all(connection, frames)
            return
        self._held.append((connection, frames))
        self._held_bytes += size
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HOLD_MS / 1000, self._overdue)

    def _judge(self, connection: Connection, frames: list[RawFrame]) -> None:
        for first in range(0, len(frames), JUDGED_AT_ONCE):
            if first and connection.turn_is_over:
                connection.put_off(frames[first:])
                break
            self._judge_some(connection, frames[first : first + JUDGED_AT_ONCE])

    def _judge_some(self, connection: Connection, frames: list[RawFrame]) -> None:
        passed: list[RawFrame] = []
        for frame in frames:
            try:
                command = decode_command(frame)
            except RemotingProtocolError:
                connection.dispatch(frame)  # reports the error, and closes the connection
                break
            if command.is_response or self._passes(connection, command):
                passed.append(frame)
        if passed:
            self._then(connection, passed)

    def _passes(self, connection: Connection, command: RemotingCommand) -> bool:
        try:
            self._access.check(connection, command)
        except AclError as error:
            _answer(connection, command, error)
            return False
        return True

    def _refuse_all(self, connection: Connection, frames: list[RawFrame]) -> None:
        for frame in frames:
            try:
                command = decode_command(frame)
            except RemotingProtocolError:
                connection.dispatch(frame)
                return
            if command.is_response:
                self._then(connection, [frame])
            elif not command.is_oneway:
                self._access.count_refused(command)
                _answer(connection, command, not_leader())

    def _release(self) -> None:
        held = self._taken()
        for connection, frames in held:
            if connection.is_open:
                self._judge(connection, frames)

    def _overdue(self) -> None:
        self._timer = None
        held = self._taken()
        for connection, frames in held:
            if connection.is_open:
                self._refuse_all(connection, frames)

    def _taken(self) -> list[tuple[Connection, list[RawFrame]]]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        self._held_bytes = 0
        return held


def _answer(connection: Connection, command: RemotingCommand, error: RemotingError) -> None:
    """Answer a rejected request unless it is one-way."""
    if not command.is_oneway:
        answer = RemotingCommand.response_to(command, error.code, str(error), {})
        connection.reply(command, answer)
