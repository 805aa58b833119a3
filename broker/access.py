"""Access control before everything else that a broker does with a request (aclEnable).

All frames of an arrival pass `Access` before the processor sees any; with aclEnable=false the
processor is called directly and there is no such step. A refused request is answered, a refused
one-way request dropped; both are counted. Responses (to what this broker asked its clients) pass.
A frame that cannot be read ends its connection here: what this and the processor would read
differently must not get through.

A new leader may not have applied yet what was changed at its predecessor. So requests that come
between its election and its first commit wait (at most `HOLD_MS`, `HELD_BYTES_MAX`), and are judged
by the accounts of then; those that waited in vain are refused as by a replica that does not lead.
Followers judge by what they have applied.

Not here: the ports of Raft peers, of classic slaves and of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.accountbook import AccountBook
from broker.consuming.queries import not_leader
from broker.housekeeping import Chore
from broker.operating.acladmin import CODES, AclAdmin, switched_off
from remoting.acl import AclError, Gate, broker_needs
from remoting.acl.signature import ACCESS_KEY
from remoting.codec import RawFrame, decode_command
from remoting.command import RemotingCommand
from remoting.connection import Connection, Handler, RawHandler
from remoting.errors import RemotingError, RemotingProtocolError

if TYPE_CHECKING:
    from broker.broker import Broker

LOG = logging.getLogger("broker.acl")

HOLD_MS = 200  # as sends are held for (broker.sending.heldsends)
HELD_BYTES_MAX = 16 * 1024 * 1024


class Access:
    """One per broker; does nothing unless aclEnable is set."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.enabled = broker.config.acl_enable
        self.refused_count = 0  # requests that were answered so
        self.dropped_count = 0  # one-way requests
        self.book = AccountBook(broker, self._accounts_changed)
        self._gate = Gate(self.book.current, broker_needs)
        self._then: RawHandler = lambda connection, frames: None
        self._admin: AclAdmin | None = None
        self._unsettled = False
        self._held: list[tuple[Connection, list[RawFrame]]] = []
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def prepare(self) -> None:
        """When the tables are loaded. Blocking. Raises EngineError."""
        if not self.enabled:
            return
        self.book.load()
        if self._broker.config.inner_credentials is None:
            LOG.warning(
                "acl_without_own_credentials: innerClientAuthenticationCredentials is not set, so "
                "this node cannot prove to others who it is"
            )

    def guarding(self, then: RawHandler) -> RawHandler:
        """What the server calls with the frames of an arrival, instead of `then`."""
        if not self.enabled:
            return then
        self._then = then
        return self._arrived

    def handlers(self) -> dict[int, Handler]:
        if not self.enabled:
            return dict.fromkeys(CODES, switched_off)
        self._admin = AclAdmin(self._broker, self.book)
        return self._admin.handlers()

    def chores(self) -> list[Chore]:
        return self.book.chores() if self.enabled else []

    def leadership(self, awaited: bool) -> None:
        """The role changed. `awaited`: this replica leads but is not ready, or hands over."""
        self._unsettled = self.enabled and awaited
        if not self._unsettled:
            self._release()

    async def stop(self) -> None:
        self._unsettled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
        self._held_bytes = 0
        if self._admin is not None:
            await self._admin.stop()

    def _accounts_changed(self) -> None:
        """Pulls that are held were let in by the accounts of before."""
        self._broker.pulls.holds.release_all()

    # ---- frames ---------------------------------------------------------------------------

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
        passed: list[RawFrame] = []
        for frame in frames:
            try:
                command = decode_command(frame)
            except RemotingProtocolError:
                connection.dispatch(frame)  # which says what is wrong, and closes
                break
            if command.is_response or self._passes(connection, command):
                passed.append(frame)
        if passed:
            self._then(connection, passed)

    def _passes(self, connection: Connection, command: RemotingCommand) -> bool:
        try:
            self._gate.check(connection.peer_address, command)
        except AclError as error:
            LOG.warning(
                "acl_refused peer=%s access_key=%s code=%d: %s",
                connection.peer_address,
                (command.ext or {}).get(ACCESS_KEY, "")[:256],
                command.code,
                error,
            )
            self._refuse(connection, command, error)
            return False
        return True

    def _refuse(
        self, connection: Connection, command: RemotingCommand, error: RemotingError
    ) -> None:
        if command.is_oneway:
            self.dropped_count += 1
            return
        self.refused_count += 1
        answer = RemotingCommand.response_to(command, error.code, str(error), {})
        connection.reply(command, answer)

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
                self._refuse(connection, command, not_leader())

    # ---- waiting --------------------------------------------------------------------------

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
