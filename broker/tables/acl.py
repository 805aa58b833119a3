"""The replicated table of a Raft group's accounts.

Commands (secrets are in them, and so in the log and its snapshots):

    {"op":"acl_seed","config":plain_acl,"force":bool}  the first accounts; later ones change
                                                       nothing unless forced
    {"op":"acl_put","account":account}                 replaces the whole account
    {"op":"acl_delete","accessKey":key}
    {"op":"acl_white","addresses":[…]}                 replaces the existing ones

An invalid command raises StateError; its text does not contain it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from raftmq.remoting.acl import (
    Account,
    Accounts,
    AclError,
    account_from_config,
    accounts_from_config,
)

from ..errors import StateError

COMMANDS = ("acl_seed", "acl_put", "acl_delete", "acl_white")


class AclTable:
    """The accounts; `accounts` is None before the first import."""

    def __init__(self) -> None:
        self.accounts: Accounts | None = None
        self.applied_index = 0

    def apply(self, command: Mapping[str, Any], now_ms: int) -> None:
        """Apply a command. Raises StateError."""
        try:
            self._apply(command, now_ms)
        except (AclError, KeyError, TypeError, ValueError, AttributeError) as error:
            kind = type(error).__name__
            raise StateError(f"a command {command.get('op')!r} cannot be applied: {kind}") from None

    def _apply(self, command: Mapping[str, Any], now_ms: int) -> None:
        op = command["op"]
        if op == "acl_seed":
            if self.accounts is None or command["force"]:
                self.accounts = accounts_from_config(command["config"])
            return
        accounts = self.accounts or Accounts()
        if op == "acl_put":
            account = account_from_config(command["account"])
            self.accounts = accounts.with_account(account, now_ms)
        elif op == "acl_delete":
            if command["accessKey"] in accounts.by_key:
                self.accounts = accounts.without(command["accessKey"], now_ms)
        elif op == "acl_white":
            self.accounts = accounts.with_white_addresses(map(str, command["addresses"]), now_ms)
        else:
            raise ValueError(op)

    def own(self) -> None:
        """Do nothing, because the accounts are immutable."""

    def to_json(self) -> dict[str, Any]:
        accounts = self.accounts
        return {"seeded": accounts is not None, **(accounts or Accounts()).to_config()}

    def load(self, value: Mapping[str, Any], applied_index: int) -> None:
        """Load a snapshot, all or nothing. Raises StateError."""
        try:
            self.accounts = accounts_from_config(value) if value["seeded"] else None
        except AclError:
            raise StateError("a snapshot of the accounts makes no sense") from None
        self.applied_index = applied_index


def seed(accounts: Accounts, *, force: bool = False) -> bytes:
    return orjson.dumps({"op": "acl_seed", "config": accounts.to_config(), "force": force})


def put_account(account: Account) -> bytes:
    return orjson.dumps({"op": "acl_put", "account": account.to_config()})


def delete_account(access_key: str) -> bytes:
    return orjson.dumps({"op": "acl_delete", "accessKey": access_key})


def put_white_addresses(addresses: Iterable[str]) -> bytes:
    return orjson.dumps({"op": "acl_white", "addresses": list(addresses)})
