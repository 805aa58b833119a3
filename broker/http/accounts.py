"""HTTP operations on accounts and permissions, which a Raft group changes through its log."""

from __future__ import annotations

import msgspec

from raftmq.remoting.acl import Account, AclError
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import conflict, invalid, not_found
from raftmq.web.resources.accounts import (
    AccountBody,
    AccountPath,
    AccountQuery,
    AccountsView,
    AccountView,
    WhiteAddressesBody,
)

from ..admin.acl import AccountChanges, LastAdministrator

LAST_ADMINISTRATOR = "LAST_ADMINISTRATOR"
_WRITE = (404, 409, 503, 504)


class AccountOperations:
    """The operations on accounts; `enabled` is aclEnable."""

    def __init__(self, changes: AccountChanges, *, enabled: bool) -> None:
        self._changes = changes
        self._enabled = enabled

    def operations(self) -> list[Operation]:
        account, admin = "/api/v1/accounts/{accessKey}", Role.ADMIN
        return [
            Operation("GET", "/api/v1/accounts", "listAccounts",
                      "All accounts with their permissions, without their secrets.",
                      self.accounts, role=admin, answer=AccountsView),
            Operation("PUT", account, "putAccount", "Create or change an account.", self.put,
                      role=admin, parameters=AccountPath, query=AccountQuery, body=AccountBody,
                      answer=AccountView, problems=_WRITE),
            Operation("DELETE", account, "deleteAccount", "Delete an account.", self.delete,
                      role=admin, parameters=AccountPath, query=AccountQuery, status=204,
                      problems=_WRITE),
            Operation("PUT", "/api/v1/white-addresses", "putWhiteAddresses",
                      "Replace the addresses from which nobody needs an account.", self.put_white,
                      role=admin, body=WhiteAddressesBody, answer=AccountsView, problems=_WRITE),
        ]  # fmt: skip

    async def accounts(self, _: Call) -> AccountsView:
        return self._view()

    def _view(self) -> AccountsView:
        if not self._enabled:
            return AccountsView(items=[], enabled=False, white_addresses=[])
        accounts = self._changes.accounts
        return AccountsView(
            items=[_view(one) for _, one in sorted(accounts.by_key.items())],
            enabled=True,
            white_addresses=list(accounts.white_addresses),
        )

    async def put(self, call: Call) -> AccountView:
        self._check_enabled()
        body: AccountBody = call.body
        key: str = call.parameters.access_key
        try:
            await self._changes.put(
                key,
                msgspec.to_builtins(body),
                call.caller.name,
                last_administrator=call.query.last_administrator,
            )
        except LastAdministrator as error:
            raise conflict(_plain(error), LAST_ADMINISTRATOR) from error
        except AclError as error:
            raise invalid([("", _plain(error))]) from error
        account = self._changes.accounts.by_key.get(key)
        if account is None:
            raise conflict("the account was deleted by somebody else meanwhile")
        return _view(account)

    async def delete(self, call: Call) -> Reply:
        self._check_enabled()
        key: str = call.parameters.access_key
        if key not in self._changes.accounts.by_key:
            raise not_found(f"there is no account {key}")
        try:
            await self._changes.delete(
                key, call.caller.name, last_administrator=call.query.last_administrator
            )
        except LastAdministrator as error:
            raise conflict(_plain(error), LAST_ADMINISTRATOR) from error
        except AclError as error:
            raise not_found(_plain(error)) from error
        return Reply(status=204)

    async def put_white(self, call: Call) -> AccountsView:
        self._check_enabled()
        try:
            await self._changes.put_white_addresses(call.body.addresses, call.caller.name)
        except AclError as error:
            raise invalid([("addresses", _plain(error))]) from error
        return self._view()

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise conflict("there are no accounts here: aclEnable is not set", "ACL_OFF")


def _plain(error: AclError) -> str:
    """Return the message without the name of Apache's exception."""
    return str(error).rpartition("Exception: ")[2]


def _view(account: Account) -> AccountView:
    return AccountView(
        access_key=account.access_key,
        white_remote_address=account.white_remote_address,
        admin=account.admin,
        default_topic_perm=account.default_topic_perm,
        default_group_perm=account.default_group_perm,
        topic_perms=list(account.topic_perms),
        group_perms=list(account.group_perms),
    )
