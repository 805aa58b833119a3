"""Keeps a broker's accounts and changes them.

Raft mode: in the replicated table `AclTable` (config/plainAcl.json, commands in the log). A group
that has no accounts yet takes them from the file `aclFile` of whichever replica leads first; until
then each replica goes by its own file. From then on the file has no effect, unless `aclFileWins` is
set: then a replica that becomes leader replaces the table with its file, once per start. The file
is read again at that moment; one that cannot be read replaces nothing.

Classic mode: the accounts are those in the file. A change rewrites the file before it is in force
or answered. An edited file takes effect within `WATCH_MS`; one that cannot be read changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from raftmq.remoting.acl import Accounts, AclError
from raftmq.remoting.acl.account_file import AccountFile

from .config import BrokerConfig
from .context import Context
from .errors import EngineError
from .scheduler import Chore
from .tables.acl import (
    AclTable,
    delete_account,
    put_account,
    put_white_addresses,
    seed,
)
from .tables.state import several

LOG = logging.getLogger("raftmq.broker.acl")

WATCH_MS = 1_000  # between two looks at a classic broker's file
SEED_MS = 500  # between two attempts of a leader to put the file's accounts into the log


def load_account_file(config: BrokerConfig, table: AclTable) -> AccountFile:
    """Read the file of accounts at the start, when the tables are loaded. Blocking. Raises
    EngineError."""
    file = AccountFile(config.acl_file)
    if not config.acl_enable:
        return file
    if not file.exists and not config.is_classic and not config.acl_file_wins:
        if table.accounts is not None or config.raft_join:
            LOG.info("acl_file_missing path=%s: the group has its accounts", file.path)
            return file
    try:
        file.read()
    except AclError as error:
        raise EngineError(f"aclEnable=true: aclFile={error}") from error
    return file


class AccountBook:
    """The accounts of a broker with aclEnable; one per broker."""

    def __init__(self, context: Context, file: AccountFile) -> None:
        self._context = context
        self._config = context.config
        self._table = context.state.acl
        self._file = file
        self._wins = context.config.acl_file_wins
        self._seen = self.current()
        self._told = ""  # why the file did not take the place of the group's accounts
        self._changing = asyncio.Lock()  # one change at a time: each builds on the last one

    @property
    def path(self) -> str:
        return str(self._file.path)

    def current(self) -> Accounts:
        """Return the accounts in force: another object after each change."""
        if self._config.is_classic or self._table.accounts is None:
            return self._file.accounts
        return self._table.accounts

    @property
    def has_new(self) -> bool:
        """True if other accounts came into force since `changed` was called last."""
        return self.current() is not self._seen

    def changed(self) -> bool:
        """Return whether other accounts came into force since this was called last."""
        before, self._seen = self._seen, self.current()
        return self._seen is not before

    def chores(self) -> list[Chore]:
        if self._config.is_classic:
            return [Chore("acl_file", WATCH_MS, self._look_at_file)]
        return [Chore("acl_seed", SEED_MS, self.seed_if_needed)]

    # ---- changes --------------------------------------------------------------------------

    async def change(self, changed: Callable[[Accounts], Accounts]) -> None:
        """Put `changed(accounts)` in force; on return the change is durable. Raises AclError,
        Refused, RaftError."""
        if self._config.is_classic:
            await self._with_file(lambda: self._rewrite(changed))
            return
        async with self._changing:
            await self._replicate(changed)

    async def _replicate(self, changed: Callable[[Accounts], Accounts]) -> None:
        await (
            self._context.log.barrier()
        )  # only a replica that certainly leads knows the current accounts
        before = self.current()
        after = changed(before)
        if after is before and self._table.accounts is not None:
            return
        commands = [] if self._table.accounts is not None else [seed(before)]
        commands += difference(before, after)
        await self._context.log.propose(several(commands))

    def _rewrite(self, changed: Callable[[Accounts], Accounts]) -> None:
        self._file.read_if_changed()
        self._file.replace(changed(self._file.accounts))

    async def _with_file(self, work: Callable[[], None]) -> None:
        """Run what blocks in a thread, as the only change. Nobody ends a thread: if the caller is
        cancelled, the next change waits all the same until this one has ended."""
        await self._changing.acquire()
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(lambda _: self._changing.release())
        await asyncio.shield(running)

    async def seed_if_needed(self) -> None:
        """Put what the file says now into the log if needed; a chore of a leader in Raft mode."""
        if not self._needs_seed or not self._file.exists:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._file.read)
        except AclError as error:
            if (told := str(error)) != self._told:
                LOG.error("acl_not_seeded: %s", told)
            self._told = told
            return
        if not self._needs_seed:  # any more
            return
        force, self._wins = self._wins, False

        def done(error: Exception | None) -> None:
            if error is not None:
                self._wins = force
                LOG.info("acl_not_seeded: %s", error)
            else:
                LOG.warning("acl_seeded path=%s forced=%s", self._file.path, force)

        self._context.log.propose_then(seed(self._file.accounts, force=force), done)

    @property
    def _needs_seed(self) -> bool:
        """True if this replica leads, no change is under way, and the file's accounts are due."""
        if not self._context.roles.leading or self._changing.locked():
            return False
        return self._wins or self._table.accounts is None

    async def _look_at_file(self) -> None:
        await self._with_file(self._file.read_if_changed)


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
    return commands or [put_white_addresses(after.white_addresses)]  # advances the version
