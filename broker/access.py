"""Access control, applied before everything else that a broker does with a request (aclEnable).

All frames of an arrival pass `Access` before the processor sees any; with aclEnable=false the
processor is called directly and there is no such step. A refused request is answered, a refused
one-way request is dropped; both are counted. Responses (to what this broker asked its clients)
pass. A frame that cannot be decoded ends its connection here: no frame may get through that this
step and the processor could read differently.

A new leader may not have applied yet what was changed at its predecessor. So requests that arrive
between its election and its first commit wait (at most `HOLD_MS`, `HELD_BYTES_MAX`) and are judged
by the accounts in force then; those that waited in vain are refused as by a replica that does not
lead. Followers judge by what they have applied.

Some requests name a position in the log, and what they touch is known only when the record there
has been read: their handlers then ask `permit` or `permit_record`, which use the same accounts. A
message that this broker sends on its own (a half message to its producer) goes only to clients that
may have it (`may_hear`): for each connection, the account that last signed a request is remembered.

Not handled here: the ports of Raft peers, of classic slaves and of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from raftmq.broker.accountbook import AccountBook
from raftmq.broker.consuming.queries import not_leader
from raftmq.broker.delivery.transactions.conversion import REAL_TOPIC
from raftmq.broker.housekeeping import Chore
from raftmq.broker.operating.acladmin import CODES, AclAdmin, switched_off
from raftmq.remoting.acl import AclError, Gate, broker_needs
from raftmq.remoting.acl.accounts import SHARED_TOPICS, Permission
from raftmq.remoting.acl.needs import Need, topic_need
from raftmq.remoting.acl.signature import ACCESS_KEY
from raftmq.remoting.codec import RawFrame, decode_command
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import FROM_PEER, Connection, Handler, RawHandler
from raftmq.remoting.errors import RemotingError, RemotingProtocolError
from raftmq.store.properties import decode_properties
from raftmq.store.record import MessageRecord, decode_record

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker

LOG = logging.getLogger("raftmq.broker.acl")

HOLD_MS = 200  # the same as for sends (broker.sending.heldsends)
HELD_BYTES_MAX = 16 * 1024 * 1024


class FromInside:
    """A stand-in for a client's connection, for requests that the HTTP API makes: the API has
    already checked by its tokens that they are allowed."""

    peer_address = "127.0.0.1:0"
    attachment: bytes | None = None


class Access:
    """The broker's access control; does nothing unless aclEnable is set. One per broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.enabled = broker.config.acl_enable
        self.refused_count = 0  # requests that were answered with a refusal
        self.dropped_count = 0  # one-way requests
        self.book = AccountBook(broker, self._accounts_changed)
        self._gate = Gate(self.book.current, broker_needs)
        self._speakers: dict[object, str] = {}  # connection → account that signed its last request
        self._then: RawHandler = lambda connection, frames: None
        self._admin: AclAdmin | None = None
        self._unsettled = False
        self._held: list[tuple[Connection, list[RawFrame]]] = []
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def prepare(self) -> None:
        """Load the accounts; called when the tables are loaded. Blocking. Raises EngineError."""
        if not self.enabled:
            return
        self.book.load()
        if self._broker.config.inner_credentials is None:
            LOG.warning(
                "acl_without_own_credentials: innerClientAuthenticationCredentials is not set, so "
                "this node cannot prove to others who it is"
            )

    def guarding(self, then: RawHandler) -> RawHandler:
        """Return what the server is to call with the frames of an arrival, instead of `then`."""
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
        """Note a new role. `awaited`: this replica leads but is not ready, or hands over."""
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
        """Release held pulls: they were admitted under the previous accounts."""
        self._broker.pulls.holds.release_all()

    # ---- rights known only in the handler ---------------------------------------------------

    def permit(self, connection: object, request: RemotingCommand, needs: list[Need]) -> None:
        """Return if the account that signed the request has these rights, too; else raise AclError.
        The error does not name what was found."""
        if not self.enabled or isinstance(connection, FromInside):
            return
        assert isinstance(connection, Connection), connection
        access_key = (request.ext or {}).get(ACCESS_KEY, "")
        if not self._gate.permits(connection.peer_address, access_key, needs):
            error = AclError("No permission for what is stored there")
            self._count_refused(connection.peer_address, request, error)
            raise error

    def permit_record(
        self, connection: object, request: RemotingCommand, record: MessageRecord | bytes
    ) -> None:
        """Do as `permit`, to read a stored message: SUB on its topic and, while it waits for
        delivery, also on the topic that it was sent to. Raises AclError, RecordError."""
        if not self.enabled:
            return
        if not isinstance(record, MessageRecord):
            record = decode_record(record, check_body=False)
        needs = [topic_need(record.topic, Permission.SUB)]
        if record.topic in SHARED_TOPICS:
            sent_to = decode_properties(record.properties).get(REAL_TOPIC, "")
            needs.append(topic_need(sent_to, Permission.SUB))
        self.permit(connection, request, needs)

    def may_hear(self, connection: object, needs: list[Need]) -> bool:
        """Return whether the account that speaks over this connection has these rights."""
        if not self.enabled:
            return True
        assert isinstance(connection, Connection), connection
        return self._gate.permits(
            connection.peer_address, self._speakers.get(connection, ""), needs
        )

    def may_replace(self, before: object, connection: object) -> bool:
        """Return whether whoever speaks over `connection` may take over a client that is registered
        over the connection `before`: it must be the same account, or one that is unbound."""
        if not self.enabled or before is connection:
            return True
        speaker = self._speakers.get(connection, "")
        if speaker and self._speakers.get(before) == speaker:
            return True
        assert isinstance(connection, Connection), connection
        return self._gate.is_unbound(connection.peer_address, speaker)

    def closed(self, connection: Connection) -> None:
        self._speakers.pop(connection, None)

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
            speaker = self._gate.check(connection.peer_address, command)
        except AclError as error:
            self._log_refused(connection.peer_address, command, error)
            self._refuse(connection, command, error)
            return False
        self._speakers[connection] = speaker
        return True

    def _count_refused(self, peer: str, command: RemotingCommand, error: AclError) -> None:
        """Log and count a refusal of a request whose handler answers it, or drops it."""
        self._log_refused(peer, command, error)
        if command.is_oneway:
            self.dropped_count += 1
        else:
            self.refused_count += 1

    def _log_refused(self, peer: str, command: RemotingCommand, error: AclError) -> None:
        LOG.warning(
            "acl_refused peer=%s access_key=%s code=%d: %s",
            peer,
            (command.ext or {}).get(ACCESS_KEY, "")[:256],
            command.code,
            error,
            extra=FROM_PEER,
        )

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
