"""Reads plain_acl.yml and tools.yml, Apache's files of accounts and of a tool's credentials. Pure.

Values are read as strings (no numbers, no booleans), so a secret of digits stays as written. Errors
name line and column, never the content, which holds secrets.
"""

from __future__ import annotations

from typing import Any

import yaml

from .accounts import Accounts, AclError, accounts_from_config
from .signature import Credentials

FILE_SIZE_BYTES_MAX = 4 * 1024 * 1024  # because it becomes one frame of a Raft log


def parse_accounts(text: str) -> Accounts:
    """Parse plain_acl.yml. Raises AclError."""
    return accounts_from_config(_loaded(text))


def accounts_text(accounts: Accounts) -> str:
    """Write plain_acl.yml with these accounts; `parse_accounts` reads it back."""
    text: str = yaml.safe_dump(accounts.to_config(), sort_keys=False, allow_unicode=True)
    return text


def parse_credentials(text: str) -> Credentials:
    """Parse tools.yml: accessKey, secretKey and optionally securityToken. Raises AclError."""
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
