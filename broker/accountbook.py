"""Where a broker's accounts are kept, and how they change.

Raft mode: in the replicated table `AclTable` (config/plainAcl.json, commands in the log). A group
that has no accounts yet takes them from the file `aclFile` of whichever replica leads first; until
then each replica goes by its own file. From then on the file has no effect, unless `aclFileWins` is
set: then a replica that becomes leader replaces the table with its file, once per start.

Classic mode: the file is the truth. A change rewrites the file before it is in force or answered; a
file that somebody edits is taken over within `WATCH_MS`. One that cannot be read changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from raftmq.broker.errors import EngineError
from raftmq.broker.housekeeping import Chore
from raftmq.broker.tables.acltable import delete_account, put_account, put_white_addresses, seed
from raftmq.broker.tables.state import several
from raftmq.remoting.acl import Accounts, AclError
from raftmq.remoting.aclfile import AccountFile

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker

LOG = logging.getLogger("raftmq.broker.acl")

WATCH_MS = 1_000  # between two looks at a classic broker's file
SEED_MS = 500  # between two attempts of a leader to put the file's accounts into the log


class AccountBook:
    """The accounts of a broker with aclEnable; one per broker. `on_change()` is called when other
    accounts come into force."""

    def __init__(self, broker: Broker, on_change: Callable[[], None]) -> None:
        self._broker = broker
        self._config = broker.config
        self._on_change = on_change
        self._file = AccountFile(broker.config.acl_file)
        self._wins = broker.config.acl_file_wins
        self._changing = asyncio.Lock()  # one change at a time: each builds on the last one

    def use_log(
        self,
        propose: Callable[[bytes], Awaitable[int]],
        propose_then: Callable[[bytes, Callable[[Exception | None], None]], None],
        barrier: Callable[[], Awaitable[None]],
    ) -> None:
        """Set the way changes are made in Raft mode: `propose` returns once a command is committed
        and applied here, `barrier` once this replica certainly leads."""
        self._propose, self._propose_then, self._barrier = propose, propose_then, barrier

    @property
    def path(self) -> str:
        return str(self._file.path)

    def current(self) -> Accounts:
        """Return the accounts in force."""
        table = self._broker.state.acl
        if self._config.is_classic or table.accounts is None:
            return self._file.accounts
        return table.accounts

    def load(self) -> None:
        """Read the file at the start, when the tables are loaded. Blocking. Raises EngineError."""
        config, table = self._config, self._broker.state.acl
        if not self._file.exists and not config.is_classic:
            if table.accounts is not None or config.raft_join:
                LOG.info("acl_file_missing path=%s: the group has its accounts", self._file.path)
                return
        try:
            self._file.read()
        except AclError as error:
            raise EngineError(f"aclEnable=true: aclFile={error}") from error

    def chores(self) -> list[Chore]:
        if self._config.is_classic:
            return [Chore("acl_file", WATCH_MS, self._look_at_file)]
        return [Chore("acl_seed", SEED_MS, self.seed_if_needed)]

    # ---- changes --------------------------------------------------------------------------

    async def change(self, changed: Callable[[Accounts], Accounts]) -> None:
        """Put `changed(accounts)` in force; on return the change is durable. Raises AclError,
        Refused, RaftError."""
        async with self._changing:
            if self._config.is_classic:
                await self._rewrite(changed)
            else:
                await self._replicate(changed)
        self._on_change()

    async def _replicate(self, changed: Callable[[Accounts], Accounts]) -> None:
        broker = self._broker
        await self._barrier()  # only a replica that certainly leads knows the current accounts
        before = self.current()
        after = changed(before)
        if after is before and broker.state.acl.accounts is not None:
            return
        commands = [] if broker.state.acl.accounts is not None else [seed(before)]
        commands += difference(before, after)
        await self._propose(several(commands))

    async def _rewrite(self, changed: Callable[[Accounts], Accounts]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._file.read_if_changed)
        after = changed(self._file.accounts)
        await loop.run_in_executor(None, self._file.replace, after)

    def seed_if_needed(self) -> None:
        """Put the file's accounts into the log if needed; a chore of a leader in Raft mode."""
        broker = self._broker
        table = broker.state.acl
        if not broker.roles.leading or self._changing.locked():
            return
        if table.accounts is not None and not self._wins:
            return
        if not self._file.exists:
            return
        force, self._wins = self._wins, False

        def done(error: Exception | None) -> None:
            if error is not None:
                self._wins = force
                LOG.info("acl_not_seeded: %s", error)
            else:
                LOG.warning("acl_seeded path=%s forced=%s", self._file.path, force)
                self._on_change()

        self._propose_then(seed(self._file.accounts, force=force), done)

    async def _look_at_file(self) -> None:
        async with self._changing:
            before = self._file.accounts
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._file.read_if_changed)
        if self._file.accounts is not before:
            self._on_change()


def difference(before: Accounts, after: Accounts) -> list[bytes]:
    """Return the commands that turn `before` into `after`."""
    commands = [
        put_account(account)
        for key, account in after.by_key.items()
        if before.by_key.get(key) != account
    ]
    commands += [delete_account(key) for key in before.by_key if key not in after.by_key]
    if before.white_addresses != after.white_addresses:
        commands.append(put_white_addresses(after.white_addresses))
    return commands or [put_white_addresses(after.white_addresses)]  # moves the version on
