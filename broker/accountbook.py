"""The accounts of a broker, and changes of them.

In Raft mode accounts live in the replicated table `AclTable` (config/plainAcl.json, commands in the
log). A group without accounts imports them from the `aclFile` of its first leader; until then each
replica applies its own file. Afterwards the file has no effect. With `aclFileWins` each new leader
replaces the table by its file, once per start. The file is read at that moment; an unreadable file
changes nothing.

In classic mode the accounts are those of the file. A change is written to the file before it takes
effect or is answered. An edited file takes effect within `WATCH_MS`, unless it cannot be read.
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

WATCH_MS = 1_000  # between two checks of a classic broker's file
SEED_MS = 500  # between two attempts of a leader to import the file


def load_account_file(config: BrokerConfig, table: AclTable) -> AccountFile:
    """Read the account file, once tables are loaded. Blocking. Raises EngineError."""
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
    def __init__(self, context: Context, file: AccountFile) -> None:
        self._context = context
        self._config = context.config
        self._table = context.state.acl
        self._file = file
        self._wins = context.config.acl_file_wins
        self._seen = self.current()
        self._logged = ""  # the reason for which the file did not replace the group's accounts
        self._changing = asyncio.Lock()  # each change is based on the last

    @property
    def path(self) -> str:
        return str(self._file.path)

    def current(self) -> Accounts:
        """Return the accounts in force, a new object after each change."""
        if self._config.is_classic or self._table.accounts is None:
            return self._file.accounts
        return self._table.accounts

    @property
    def has_new(self) -> bool:
        """True if the accounts changed since the last call of `changed`."""
        return self.current() is not self._seen

    def changed(self) -> bool:
        """Return whether the accounts changed since the last call."""
        before, self._seen = self._seen, self.current()
        return self._seen is not before

    def chores(self) -> list[Chore]:
        if self._config.is_classic:
            return [Chore("acl_file", WATCH_MS, self._check_file)]
        return [Chore("acl_seed", SEED_MS, self.seed_if_needed)]

    async def change(self, changed: Callable[[Accounts], Accounts]) -> None:
        """Apply `changed(accounts)` durably. Raises AclError, Refused, RaftError."""
        if self._config.is_classic:
            await self._with_file(lambda: self._rewrite(changed))
            return
        async with self._changing:
            await self._replicate(changed)

    async def _replicate(self, changed: Callable[[Accounts], Accounts]) -> None:
        await self._context.log.barrier()  # only a proven leader has the current accounts
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
        """Run blocking work in a thread, exclusively. After a cancellation the next change waits
        for the thread, which cannot be stopped."""
        await self._changing.acquire()
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(lambda _: self._changing.release())
        await asyncio.shield(running)

    async def seed_if_needed(self) -> None:
        """Import the account file into the log if needed; a chore of a leader in Raft mode."""
        if not self._needs_seed or not self._file.exists:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._file.read)
        except AclError as error:
            if (text := str(error)) != self._logged:
                LOG.error("acl_not_seeded: %s", text)
            self._logged = text
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
        """True if this replica leads, no change is in progress and an import is due."""
        roles = self._context.roles
        if not roles.leading or roles.joining or self._changing.locked():
            return False
        return self._wins or self._table.accounts is None

    async def _check_file(self) -> None:
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
