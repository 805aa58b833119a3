"""Access control of a name server (aclEnable).

It protects registrations and changes of routes and configuration, and with aclReadsNeedAccount also
queries. The accounts are those of the name server's own file, without changes that admins make at
brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from raftmq.remoting.acl import AclError, Gate, name_server_needs
from raftmq.remoting.acl.account_file import AccountFile
from raftmq.remoting.acl.needs import NAME_SERVER_READS
from raftmq.remoting.acl.signature import ACCESS_KEY
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import FROM_PEER, Answer, Connection, Handler

from .config import NameServerConfig

LOG = logging.getLogger("raftmq.namesrv.acl")


class Access:
    """Checks requests before their handlers; inactive without aclEnable."""

    def __init__(self, config: NameServerConfig) -> None:
        self.enabled = config.acl_enable
        self.refused_count = 0  # requests that were refused
        self.dropped_count = 0  # one-way requests
        self._reads_need_account = config.acl_reads_need_account
        self._file = AccountFile(config.acl_file)
        self._gate = Gate(lambda: self._file.accounts, name_server_needs)

    def prepare(self) -> None:
        """Read the accounts. Blocking. Raises AclError."""
        if self.enabled:
            self._file.read()

    def check_file(self) -> None:
        """Read the accounts again if their file has changed. Blocking."""
        if self.enabled:
            self._file.read_if_changed()

    def guarding(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers, wrapped with a check of each request."""
        if not self.enabled:
            return dict(handlers)
        return {code: self._around(code, handler) for code, handler in handlers.items()}

    def _around(self, code: int, handler: Handler) -> Handler:
        if code in NAME_SERVER_READS and not self._reads_need_account:
            return self._noting(handler)

        def guarded(connection: Connection, request: RemotingCommand) -> Answer:
            try:
                self._gate.check(connection.peer_address, request)
                connection.has_account = True
            except AclError as error:
                return self._refused(connection, request, error)
            return handler(connection, request)

        return guarded

    def _noting(self, handler: Handler) -> Handler:
        """Return a handler for public requests; a valid account marks the connection as known."""

        def noting(connection: Connection, request: RemotingCommand) -> Answer:
            if not connection.has_account and ACCESS_KEY in (request.ext or {}):
                with suppress(AclError):
                    self._gate.check(connection.peer_address, request)
                    connection.has_account = True
            return handler(connection, request)

        return noting

    def _refused(
        self, connection: Connection, request: RemotingCommand, error: AclError
    ) -> RemotingCommand | None:
        LOG.warning(
            "acl_refused peer=%s access_key=%s code=%d: %s",
            connection.peer_address,
            (request.ext or {}).get(ACCESS_KEY, ""),
            request.code,
            error,
            extra=FROM_PEER,
        )
        if request.is_oneway:
            self.dropped_count += 1
            return None
        self.refused_count += 1
        return RemotingCommand.response_to(request, error.code, str(error), {})
