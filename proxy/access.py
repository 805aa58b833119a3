"""Access control of a proxy (aclEnable).

The accounts file has the form of the brokers' file. The proxy checks a caller's rights by the needs
of the broker request that it sends for the caller. Its own account at the brokers must be an
admin's. The protocol's signature covers only the call's time, so use TLS on untrusted networks.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.remoting.acl import Account, AclError, Gate, broker_needs
from raftmq.remoting.acl.account_file import AccountFile
from raftmq.remoting.acl.accounts import Permission
from raftmq.remoting.acl.gate import permit
from raftmq.remoting.acl.needs import topic_need
from raftmq.remoting.command import RemotingCommand

from .caller import access_key_of, is_signed_by
from .protocol.messaging_pb2 import Code
from .status_codes import StatusError


class Access:
    """Checks callers against the accounts; without aclEnable every caller has all rights."""

    def __init__(self, *, enabled: bool, path: str) -> None:
        self.enabled = enabled
        self.refused_count = 0
        self._file = AccountFile(path)
        self._gate = Gate(lambda: self._file.accounts, broker_needs)

    def prepare(self) -> None:
        """Read the accounts. Blocking. Raises AclError."""
        if self.enabled:
            self._file.read()

    def reload_if_changed(self) -> None:
        """Read the accounts again if their file has changed. Blocking."""
        if self.enabled:
            self._file.read_if_changed()

    def account_of(self, metadata: Mapping[str, str], host: str) -> tuple[str, Account | None]:
        """Return a caller's access key and the account that limits it. The key is "" for a caller
        that needs none; the account is None for a caller with all rights. Raises StatusError."""
        if not self.enabled:
            return "", None
        accounts = self._file.accounts
        if accounts.trusts(host):
            return "", None
        key, signature = access_key_of(metadata)
        account = accounts.by_key.get(key)
        if account is None:
            raise self._refused(Code.UNAUTHORIZED, f"no account {key[:256]!r}")
        if account.white_remote_address and account.trusted.matches(host):
            return key, None
        date_time = metadata.get("x-mq-date-time", "")
        if not date_time or not is_signed_by(account.secret_key, date_time, signature):
            raise self._refused(Code.UNAUTHORIZED, f"the signature of {key} is wrong")
        return key, None if account.is_unbound else account

    def is_owner(self, access_key: str) -> bool:
        """Return whether this access key, or "" for callers that need none, is still valid."""
        account = self._file.accounts.by_key.get(access_key)
        return not access_key or (account is not None and not account.is_unbound)

    def permit(self, account: Account | None, command: RemotingCommand) -> None:
        """Raise StatusError if the account has not all rights that a broker request needs."""
        if account is None:
            return
        try:
            permit(account, command.code, broker_needs(command))
        except AclError as error:
            raise self._refused(Code.FORBIDDEN, str(error)) from error

    def may_send(self, access_key: str, host: str, topic: str) -> bool:
        """Return whether a connected client may still send to the topic."""
        if not self.enabled:
            return True
        return self._gate.permits(f"{host}:0", access_key, [topic_need(topic, Permission.PUB)])

    def _refused(self, code: Code, message: str) -> StatusError:
        self.refused_count += 1
        return StatusError(code, message)
