"""Saved contexts, names for clusters that replace repeated addresses in tools.

A context has values of environment variables for name servers, account and TLS. They are stored in
`$XDG_CONFIG_HOME/raftmq/contexts.json` (by default in `~/.config`), readable only by its owner,
because it may have secret keys:

    {"current": "prod", "contexts": {"prod": {"namesrv": "10.0.0.1:9876", "accessKey": "ops", …}}}

Precedence: flags, and the context of a flag; then environment variables; then the context in
RAFTMQ_CONTEXT, or else the current context. The latter is ignored entirely if name servers are
given, because its account and TLS settings are for its own cluster. An account is never mixed from
two sources. Blocking.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from raftmq.ops.strict_json import loads

VARIABLE = "RAFTMQ_CONTEXT"
NAME_SERVERS = "NAMESRV_ADDR"
# A context's fields → their environment variables, grouped.
GROUPS: tuple[Mapping[str, str], ...] = (
    {"namesrv": NAME_SERVERS},
    {
        "accessKey": "RAFTMQ_ACCESS_KEY",
        "secretKey": "RAFTMQ_SECRET_KEY",
        "securityToken": "RAFTMQ_SECURITY_TOKEN",
    },
    {"tlsConfigFile": "RAFTMQ_TLS_CONFIG_FILE"},
    {"registrationKeyFile": "RAFTMQ_REGISTRATION_KEY_FILE"},
)
FIELDS = tuple(name for group in GROUPS for name in group)
SECRETS = frozenset({"secretKey", "securityToken"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700


class ContextError(ValueError):
    """A context does not exist, or contexts cannot be read or written. Without secrets."""


@dataclass(slots=True)
class Contexts:
    """All contexts by name, and the current name ("" for none)."""

    current: str = ""
    by_name: dict[str, dict[str, str]] = field(default_factory=dict)

    def get(self, name: str) -> dict[str, str]:
        """Return a context's fields. Raises ContextError."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ContextError(f"there is no context {name!r}; known: {known}")
        return self.by_name[name]


def path_of(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CONFIG_HOME", "")
    # The specification ignores relative paths.
    base = home if os.path.isabs(home) else os.path.expanduser("~/.config")
    return Path(base) / "raftmq" / "contexts.json"


def read(path: Path) -> Contexts:
    """Read the contexts; empty without a file. Raises ContextError."""
    try:
        document = loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise ContextError(f"{path}: {error.strerror}") from error
    except ValueError:  # its text could contain a secret
        raise ContextError(f"{path} is not JSON") from None
    try:
        by_name = {
            str(name): {str(key): str(value) for key, value in fields.items() if key in FIELDS}
            for name, fields in document["contexts"].items()
        }
        return Contexts(str(document.get("current") or ""), by_name)
    except (AttributeError, KeyError, TypeError):
        raise ContextError(f"{path} holds no contexts") from None


@contextmanager
def changing(path: Path) -> Iterator[Contexts]:
    """Read the contexts, and write them back without an error, locked. Raises ContextError."""
    try:
        path.parent.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "a", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            contexts = read(path)
            yield contexts
            _write(path, contexts)
    except OSError as error:
        raise ContextError(f"{error.filename or path}: {error.strerror}") from None


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ContextError(
            f"{name!r} is no name of a context: letters, digits, '.', '_' and '-', at most 64"
        )


def resolve(
    environment: Mapping[str, str], named: str = "", *, servers_given: bool = False
) -> dict[str, str]:
    """Return the environment with a context's values. The context `named` by a flag overrides
    variables. Otherwise the context in RAFTMQ_CONTEXT or the current context is the fallback,
    unless name servers are given, by a flag (`servers_given`) or variable. Raises ContextError."""
    resolved = dict(environment)
    if not named and (servers_given or environment.get(NAME_SERVERS)):
        return resolved
    chosen = named or environment.get(VARIABLE, "")
    try:
        contexts = read(path_of(environment))
    except ContextError as error:
        if not chosen and isinstance(error.__cause__, PermissionError):
            return resolved  # a service with a different user's home
        raise
    chosen = chosen or contexts.current
    if not chosen:
        return resolved
    fields = contexts.get(chosen)
    for group in GROUPS:
        values = {variable: fields.get(name, "") for name, variable in group.items()}
        given = any(resolved.get(variable) for variable in group.values())
        if any(values.values()) and (named or not given):
            resolved |= values
    return resolved


def _write(path: Path, contexts: Contexts) -> None:
    content = {"current": contexts.current, "contexts": contexts.by_name}
    new = path.with_suffix(".new")
    with open(new, "w", encoding="utf-8", opener=_private) as file:
        os.fchmod(file.fileno(), _FILE_MODE)  # if the file was created with a different mode
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)
