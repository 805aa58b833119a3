"""Files of accounts (plain_acl.yml) and of a tool's credentials (tools.yml), as Apache has them.

`AccountFile` rereads its file after an edit and replaces it atomically; its methods block. Values
are read as strings, so a secret of digits stays as written. Errors name line and column, never the
content, which holds secrets.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from .accounts import Accounts, AclError, accounts_from_config
from .signature import Credentials

LOG = logging.getLogger("raftmq.remoting.acl")

FILE_MODE = 0o600  # because it holds every secret


class AccountFile:
    """A file of accounts. `accounts` are from the last successful read."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.accounts = Accounts()
        self._stamp: tuple[int, int, int] | None = None  # of the file, at the last check

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def read(self) -> None:
        """Read the file. Raises AclError with the file's name but without its content."""
        try:
            self._stamp = self._stamp_now()  # first, so that an error is reported only once
            self.accounts = parse_accounts(self.path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise AclError(f"{self.path}: not UTF-8 at byte {error.start}") from None
        except OSError as error:
            raise AclError(f"{self.path}: {os.strerror(error.errno or 0)}") from error
        except AclError as error:
            raise AclError(f"{self.path}: {error}") from error
        LOG.info("acl_file_read path=%s accounts=%d", self.path, len(self.accounts.by_key))

    def read_if_changed(self) -> None:
        """Reread the file if it changed. On failure, log it and keep the accounts."""
        try:
            if self._stamp_now() != self._stamp:
                self.read()
        except (AclError, OSError) as error:
            LOG.error("acl_file_not_read: %s", error)

    def replace(self, accounts: Accounts) -> None:
        """Write the accounts to a file, sync, rename, then use them. Raises AclError."""
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(accounts_text(accounts))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
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
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino


FILE_SIZE_BYTES_MAX = 4 * 1024 * 1024  # because it becomes a frame of a Raft log


def parse_accounts(text: str) -> Accounts:
    """Parse plain_acl.yml. Raises AclError."""
    return accounts_from_config(_loaded(text))


def accounts_text(accounts: Accounts) -> str:
    """Return plain_acl.yml with these accounts, for `parse_accounts`."""
    import yaml

    text: str = yaml.safe_dump(accounts.to_config(), sort_keys=False, allow_unicode=True)
    return text


def parse_credentials(text: str) -> Credentials:
    """Parse accessKey, secretKey and the optional securityToken of tools.yml. Raises AclError."""
    value = _loaded(text)
    if not isinstance(value, dict):
        raise AclError("not a mapping of accessKey and secretKey")
    try:
        return Credentials(
            str(value.get("accessKey") or ""),
            str(value.get("secretKey") or ""),
            str(value.get("securityToken") or "") or None,
        )
    except ValueError as error:
        raise AclError(str(error)) from error


def _loaded(text: str) -> Any:
    import yaml

    if len(text) > FILE_SIZE_BYTES_MAX:
        raise AclError(f"more than {FILE_SIZE_BYTES_MAX} bytes")
    try:
        value = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise AclError(f"not YAML{where}") from None
    except yaml.YAMLError:
        raise AclError("not YAML") from None
    return None if value == "" else value
