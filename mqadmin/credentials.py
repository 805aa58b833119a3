"""mqadmin's credentials, from flags, environment variables or Apache's conf/tools.yml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raftmq.remoting.acl.account_file import parse_credentials
from raftmq.remoting.acl.signature import Credentials, credentials_of_environment
from raftmq.remoting.errors import RemotingError

HOME = "ROCKETMQ_HOME"
TOOLS_FILE = Path("conf") / "tools.yml"


@dataclass(frozen=True, slots=True)
class CredentialFlags:
    """The credentials on the command line, "" if missing."""

    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tools_file: str = ""


def find(given: CredentialFlags, environment: Mapping[str, str]) -> Credentials | None:
    """Return the first credentials found, or None. Blocking. Raises ValueError without a secret in
    its text."""
    if given.access_key or given.secret_key:
        token = given.security_token or None
        return Credentials(given.access_key, given.secret_key, token)
    if given.tools_file:
        return _read(Path(given.tools_file))
    result = credentials_of_environment(environment)
    if result is not None:
        return result
    home = environment.get(HOME)
    path = Path(home) / TOOLS_FILE if home else TOOLS_FILE
    return _read(path) if path.exists() else None


def _read(path: Path) -> Credentials:
    try:
        return parse_credentials(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {type(error).__name__}") from None
    except RemotingError as error:
        raise ValueError(f"{path}: {error}") from None
