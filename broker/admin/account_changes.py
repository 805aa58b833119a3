"""Changes of accounts, for the handlers of the wire protocol and for the HTTP operations alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raftmq.remoting.acl import Accounts, AclError, account_from_config

from ..accountbook import AccountBook

log = logging.getLogger("raftmq.broker.acl")


class LastAdministrator(AclError):
    """The change would leave no administrator."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key} is the last administrator: nobody could change accounts or topics any more;"
            " with lastAdministrator=true (--force of mqadmin) it is done all the same"
        )


class AccountChanges:
    """Changes accounts; on return a change is durable. All methods raise AclError, Refused and
    RaftError. `by` says in the log who asked for it. Only with `last_administrator` an account
    ceases to be the only one of an administrator (LastAdministrator)."""

    def __init__(self, book: AccountBook, wall_ms: Callable[[], int], *, is_classic: bool) -> None:
        self._book = book
        self._wall_ms = wall_ms
        self._is_classic = is_classic

    @property
    def accounts(self) -> Accounts:
        """Return the accounts in force."""
        return self._book.current()

    async def put(
        self, key: str, fields: Mapping[str, Any], by: str, *, last_administrator: bool = False
    ) -> None:
        """Create or change an account; `fields` are plain_acl.yml's, and absent ones stay."""
        now_ms = self._wall_ms()
        value = {**fields, "accessKey": key}

        def changed(accounts: Accounts) -> Accounts:
            account = account_from_config(value, accounts.by_key.get(key))
            if not (account.admin or last_administrator):
                _check_not_last(accounts, key)
            return accounts.with_account(account, now_ms)

        await self._book.change(changed)
        log.warning("acl_changed op=put access_key=%s by=%s", key, by)

    async def delete(self, key: str, by: str, *, last_administrator: bool = False) -> None:
        """Delete an account."""
        now_ms = self._wall_ms()

        def changed(accounts: Accounts) -> Accounts:
            if not last_administrator:
                _check_not_last(accounts, key)
            return self._without(accounts, key, now_ms)

        await self._book.change(changed)
        log.warning("acl_changed op=delete access_key=%s by=%s", key, by)

    def _without(self, accounts: Accounts, key: str, now_ms: int) -> Accounts:
        """Delete an account. In a Raft group it may have been deleted through another replica a
        moment ago: tools send the deletion to each."""
        if key not in accounts.by_key and not self._is_classic:
            return accounts
        return accounts.without(key, now_ms)

    async def put_white_addresses(self, addresses: Sequence[str], by: str) -> None:
        """Replace the global white list."""
        now_ms = self._wall_ms()
        await self._book.change(lambda found: found.with_white_addresses(addresses, now_ms))
        log.warning("acl_changed op=white addresses=%s by=%s", ",".join(addresses), by)


def _check_not_last(accounts: Accounts, key: str) -> None:
    """Raise LastAdministrator if no other account is an administrator's."""
    if {one.access_key for one in accounts.by_key.values() if one.admin} == {key}:
        raise LastAdministrator(key)
