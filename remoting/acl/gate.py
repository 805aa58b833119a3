"""The access decision for each request.

The checks, in Apache's order: an address on the global white list passes; a request must have an
account; an address on that account's white list passes; the signature must be right; an admin
without lists passes; every permission that the request needs must be granted.

Most requests have the topics and groups they use as fields. If a request has an offset in the log
instead, its handler reads the record and checks again (`permits`), without the signature.

A permission is a look-up in a table made with the account. Only the request is parsed, and its
signature computed. Pure, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from ..address import host_of
from ..command import RemotingCommand
from .accounts import Account, Accounts, AclError, Permission
from .needs import Need, Needs
from .signature import ACCESS_KEY, is_signed_by


class Gate:
    """Decides which requests pass. `accounts()` returns the current accounts."""

    def __init__(self, accounts: Callable[[], Accounts], needs: Needs) -> None:
        self._accounts = accounts
        self._needs = needs

    def check(self, peer_address: str, command: RemotingCommand) -> str:
        """Return the sender's access key if the request may pass; it may be "" from an address that
        needs no account. Raises AclError with a text for the peer."""
        ext = command.ext
        access_key = ext.get(ACCESS_KEY, "") if ext else ""
        account = self._account(peer_address, access_key)
        if account is None:
            return access_key
        if not is_signed_by(account.secret_key, ext or {}, command.body):
            raise AclError(f"Check signature failed for accessKey={access_key}")
        if not account.is_unbound:
            permit(account, command.code, self._needs(command))
        return access_key

    def permits(self, peer_address: str, access_key: str, needs: list[Need]) -> bool:
        """Return whether an authenticated sender has these permissions, for requests that show only
        by a look-up which data they use."""
        try:
            account = self._account(peer_address, access_key)
        except AclError:
            return False  # the account has been deleted
        return (
            account is None
            or account.is_unbound
            or all(_owned(account, need) & need.permission for need in needs)
        )

    def had_to_sign(self, peer_address: str, access_key: str) -> bool:
        """Return whether a request with this key passes by its signature, not by its address."""
        try:
            return self._account(peer_address, access_key) is not None
        except AclError:
            return bool(access_key)  # the account has been deleted

    def is_unbound(self, peer_address: str, access_key: str) -> bool:
        nothing_fulfils = Need(False, "", Permission.DENY)
        return self.permits(peer_address, access_key, [nothing_fulfils])

    def _account(self, peer_address: str, access_key: str) -> Account | None:
        """Return the sender's account, None if its address suffices. Raises AclError."""
        accounts = self._accounts()
        host = host_of(peer_address)
        if accounts.trusts(host):
            return None
        if not access_key:
            raise AclError("No accessKey is configured")
        account = accounts.by_key.get(access_key)
        if account is None:
            raise AclError(f"No acl config for {access_key[:256]}")
        if account.white_remote_address and account.trusted.matches(host):
            return None
        return account


def permit(account: Account, code: int, needs: list[Need] | None) -> None:
    """Raise AclError if the account misses any of `needs` (None means admin permission)."""
    if needs is None:
        if not account.admin:
            raise AclError(
                f"Need admin permission for request code={code}, "
                f"but accessKey={account.access_key} is not"
            )
        return
    for need in needs:
        if not _owned(account, need) & need.permission:
            what = "group" if need.is_group else "topic"
            listed = need.name in (account.groups if need.is_group else account.topics)
            which = "permission" if listed else "default permission"
            raise AclError(f"No {which} for {what}:{need.name[:256]}")


def _owned(account: Account, need: Need) -> Permission:
    if need.is_group:
        return account.on_group(need.name)
    return account.on_topic(need.name)
