"""A file of accounts (plain_acl.yml): read, read again when somebody edited it, replaced whole.
Shell; every method but `accounts` blocks."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from raftmq.remoting.acl import Accounts, AclError
from raftmq.remoting.acl.plainfile import accounts_text, parse_accounts

LOG = logging.getLogger("raftmq.remoting.acl")

FILE_MODE = 0o600  # whoever may read it knows every secret


class AccountFile:
    """`accounts` are those of the last time that it could be read."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.accounts = Accounts()
        self._stamp: tuple[int, int, int] | None = None  # of the file as it was looked at last

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def read(self) -> None:
        """Raises AclError, which names the file and holds nothing of what is in it."""
        try:
            self._stamp = self._stamp_now()  # what is wrong is complained of once
            self.accounts = parse_accounts(self.path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise AclError(f"{self.path}: not UTF-8 at byte {error.start}") from None
        except OSError as error:
            raise AclError(f"{self.path}: {os.strerror(error.errno or 0)}") from error
        except AclError as error:
            raise AclError(f"{self.path}: {error}") from error
        LOG.info("acl_file_read path=%s accounts=%d", self.path, len(self.accounts.by_key))

    def read_if_changed(self) -> None:
        """What cannot be read is logged, and the accounts stay."""
        try:
            if self._stamp_now() != self._stamp:
                self.read()
        except (AclError, OSError) as error:
            LOG.error("acl_file_not_read: %s", error)

    def replace(self, accounts: Accounts) -> None:
        """Durable and whole, and only then in force: beside, synced, renamed. Raises AclError."""
        beside = self.path.with_name(self.path.name + ".tmp")
        try:
            number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(accounts_text(accounts))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
            self._stamp = self._stamp_now()
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise AclError(f"the file of accounts was not written: {reason}") from error
        self.accounts = accounts

    def _stamp_now(self) -> tuple[int, int, int]:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
