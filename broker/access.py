"""The rights of the account behind a request (aclEnable).

`broker.admission` checks the rights that a request code needs before the handler runs. If a request
names a position in the log, its topic is known only once the record was read; the handler then
calls `permit` or `permit_record`. Messages of the broker's own (a half message to its producer) are
sent only to clients with the rights (`may_hear`). For that, the account that last signed a request
is kept for each connection.

The ports of Raft peers, classic slaves and HTTP have access control of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from raftmq.remoting.acl import AclError, Gate, broker_needs
from raftmq.remoting.acl.accounts import SHARED_TOPICS, Permission
from raftmq.remoting.acl.needs import Need, topic_need
from raftmq.remoting.acl.signature import ACCESS_KEY
from raftmq.remoting.address import host_of
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import FROM_PEER, Connection
from raftmq.remoting.names import RETRY_PREFIX
from raftmq.remoting.pop_headers import ORIGIN_GROUP
from raftmq.store.properties import decode_properties
from raftmq.store.record import MessageRecord, decode_record

from .accountbook import AccountBook
from .component import Service
from .messages.half_message import REAL_TOPIC
from .scheduler import IDLE_MS, Chore

LOG = logging.getLogger("raftmq.broker.acl")


class Access:
    """A broker's access control, without effect unless aclEnable is set."""

    def __init__(self, book: AccountBook, *, enabled: bool) -> None:
        self.enabled = enabled
        self.book = book
        self.refused_count = 0  # requests answered with an error
        self.dropped_count = 0  # one-way requests
        self._gate = Gate(book.current, broker_needs)
        self._speakers: dict[object, str] = {}  # connection → account of its last signed request

    def service(self, on_change: Callable[[], None]) -> Service:
        """`on_change()` is called soon after the accounts in force have changed."""

        def poll() -> None:
            if self.book.changed():
                on_change()

        if not self.enabled:
            return Service()
        changes = Chore("accounts", 0, poll, lambda: 0 if self.book.has_new else IDLE_MS)
        return Service(chores=[*self.book.chores(), changes])

    def check(self, connection: Connection, request: RemotingCommand) -> None:
        """Check that a client's request is signed by an account with the rights it needs. Raises
        AclError, which is logged and counted."""
        try:
            self._speakers[connection] = self._gate.check(connection.peer_address, request)
            connection.has_account = True
        except AclError as error:
            self._log_refused(connection.peer_address, request, error)
            raise

    # ---- rights known only in the handler ---------------------------------------------------

    def permit(self, connection: object, request: RemotingCommand, needs: list[Need]) -> None:
        """Check that the account also has these rights. Raises AclError without the record."""
        if not self.enabled:
            return
        assert isinstance(connection, Connection), connection
        access_key = (request.ext or {}).get(ACCESS_KEY, "")
        if not self._gate.permits(connection.peer_address, access_key, needs):
            error = AclError("No permission for what is stored there")
            self._log_refused(connection.peer_address, request, error)
            raise error

    def permit_record(
        self, connection: object, request: RemotingCommand, record: MessageRecord | bytes
    ) -> None:
        """Check the right to read a stored message. It needs SUB on its topic and, while it waits
        for delivery, on its destination topic. Raises AclError, RecordError."""
        if not self.enabled:
            return
        if not isinstance(record, MessageRecord):
            record = decode_record(record, check_body=False)
        properties = decode_properties(record.properties)
        needs = [topic_need(record.topic, Permission.SUB)]
        group = properties.get(ORIGIN_GROUP, "")
        if group and record.topic.startswith(f"{RETRY_PREFIX}{group}_"):  # a pop retry topic
            needs = [Need(True, group, Permission.SUB)]
        if record.topic in SHARED_TOPICS:
            sent_to = properties.get(REAL_TOPIC, "")
            needs.append(topic_need(sent_to, Permission.SUB))
        self.permit(connection, request, needs)

    def may_hear(self, connection: object, needs: list[Need]) -> bool:
        """Return whether the connection's account has these rights."""
        if not self.enabled:
            return True
        assert isinstance(connection, Connection), connection
        return self._gate.permits(
            connection.peer_address, self._speakers.get(connection, ""), needs
        )

    def may_replace(self, before: object, connection: object) -> bool:
        """Return whether the sender on `connection` may replace a client registered over `before`.
        Its account must be the same, or have no restrictions."""
        if not self.enabled or before is connection:
            return True
        speaker = self._speakers.get(connection, "")
        if speaker and self._speakers.get(before) == speaker:
            return True
        assert isinstance(connection, Connection), connection
        return self._gate.is_unbound(connection.peer_address, speaker)

    def who(self, connection: Connection) -> str:
        """Return the account that signed the connection's last request. Return the peer's host if
        accounts were not required, because unsigned requests may name any account."""
        access_key = self._speakers.get(connection, "")
        if access_key and self._gate.had_to_sign(connection.peer_address, access_key):
            return access_key
        return host_of(connection.peer_address)

    def closed(self, connection: Connection) -> None:
        self._speakers.pop(connection, None)

    def count_refused(self, command: RemotingCommand) -> None:
        """Count a rejected request as answered, or as dropped if it is one-way."""
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
        self.count_refused(command)
