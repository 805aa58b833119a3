"""Who may pass: one decision a request. Pure.

In this order, as Apache's: an address of the global white list passes; a request must name an
account; an address of that account's own white list passes; the signature must be right; an admin
without lists passes; everything the request needs must be permitted.

What a request touches is mostly what it names. Where it names a place in the log instead, whoever
reads the record there asks again (`permits`), without the signature.

A permission is one look-up in a table that was made when the account was; nothing is parsed for a
request but what the request itself says. The signature is computed for each.
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.remoting.acl.accounts import Account, Accounts, AclError, Permission
from raftmq.remoting.acl.addresses import host_of
from raftmq.remoting.acl.needs import Need, Needs
from raftmq.remoting.acl.signature import ACCESS_KEY, is_signed_by
from raftmq.remoting.command import RemotingCommand


class Gate:
    """`accounts()` are those in force now."""

    def __init__(self, accounts: Callable[[], Accounts], needs: Needs) -> None:
        self._accounts = accounts
        self._needs = needs

    def check(self, peer_address: str, command: RemotingCommand) -> str:
        """Return the access key of who asks, if the request may pass; it may be "" of somebody who
        comes from where nobody needs one. Raises AclError, whose text goes to the peer."""
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
        """Whether somebody whose signature was right may have these, too: what a request touches
        is sometimes known only when it was looked up."""
        try:
            account = self._account(peer_address, access_key)
        except AclError:
            return False  # the account was deleted meanwhile
        return (
            account is None
            or account.is_unbound
            or all(_owned(account, need) & need.permission for need in needs)
        )

    def is_unbound(self, peer_address: str, access_key: str) -> bool:
        """Whether nothing is forbidden to him."""
        nothing_fulfils = Need(False, "", Permission.DENY)
        return self.permits(peer_address, access_key, [nothing_fulfils])

    def _account(self, peer_address: str, access_key: str) -> Account | None:
        """None: his address is enough. Raises AclError if there is no such account."""
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
    """Raises AclError if the account lacks one of `needs`."""
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
