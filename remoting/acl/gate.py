"""Who may pass: one decision a request. Pure.

In this order, as Apache's: an address of the global white list passes; a request must name an
account; an address of that account's own white list passes; the signature must be right; an admin
without lists passes; everything the request needs must be permitted.

A permission is one look-up in a table that was made when the account was; nothing is parsed for a
request but what the request itself says. The signature is computed for each.
"""

from __future__ import annotations

from collections.abc import Callable

from remoting.acl.accounts import Account, Accounts, AclError, Permission
from remoting.acl.addresses import host_of
from remoting.acl.needs import Need, Needs
from remoting.acl.signature import ACCESS_KEY, is_signed_by
from remoting.command import RemotingCommand


class Gate:
    """`accounts()` are those in force now."""

    def __init__(self, accounts: Callable[[], Accounts], needs: Needs) -> None:
        self._accounts = accounts
        self._needs = needs

    def check(self, peer_address: str, command: RemotingCommand) -> None:
        """Return if the request may pass. Raises AclError, whose text goes to the peer."""
        accounts = self._accounts()
        host = host_of(peer_address)
        if accounts.trusts(host):
            return
        ext = command.ext
        access_key = ext.get(ACCESS_KEY) if ext else None
        if not ext or not access_key:
            raise AclError("No accessKey is configured")
        account = accounts.by_key.get(access_key)
        if account is None:
            raise AclError(f"No acl config for {access_key[:256]}")
        if account.white_remote_address and account.trusted.matches(host):
            return
        if not is_signed_by(account.secret_key, ext, command.body):
            raise AclError(f"Check signature failed for accessKey={access_key}")
        if not account.is_unbound:
            permit(account, command.code, self._needs(command))


def permit(account: Account, code: int, needs: list[Need] | None) -> None:
    """Raises AclError if the account lacks one of `needs`."""
    if needs is None:
        if not account.admin:
            raise AclError(
                f"Need admin permission for request code={code}, "
                f"but accessKey={account.access_key} is not"
            )
        return
    for is_group, name, permission in needs:
        owned = _owned(account, is_group, name)
        if not owned & permission:
            what = "group" if is_group else "topic"
            listed = name in (account.groups if is_group else account.topics)
            which = "permission" if listed else "default permission"
            raise AclError(f"No {which} for {what}:{name[:256] or '(by offset)'}")


def _owned(account: Account, is_group: bool, name: str) -> Permission:
    return account.on_group(name) if is_group else account.on_topic(name)
