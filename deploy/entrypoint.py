#!/usr/bin/env python3
"""Starts a container's command, once the cluster's secrets exist.

When it can be reached from other machines, the HTTP API needs tokens, brokers need a secret by
which they recognise each other, and name servers a key by which they recognise brokers. The first
container to start makes those that are not there yet, in the directory that all containers of a
cluster share:

    tokens.json        one token for each role: viewer, operator, admin (httpTokensFile)
    cluster.token      the admin's token, which name servers show to brokers (httpClusterTokenFile)
    metrics.token      the viewer's token, which Prometheus shows
    peer.secret        the brokers of a group prove to each other that they have it (peerSecretFile)
    registration.key   brokers sign their registrations with it (registrationKeyFile)

The directory is RAFTMQ_SECRETS (default /run/raftmq); no other user may read the files. What cannot
be used is named in a line, and the exit status is 2, as for a wrong configuration.
"""

import json
import os
import secrets
import sys
from pathlib import Path
from typing import NoReturn

ROLES = ("viewer", "operator", "admin")
WRONG = 2  # exit status: started again as it is, it would end again


class Unusable(Exception):
    """A file of the directory is not what it must be."""


def make_secrets(directory: Path) -> None:
    """Make the files that are not there. If several containers do so at once, the first one's
    count. Raises Unusable, OSError."""
    tokens = directory / "tokens.json"
    if not tokens.exists():
        entries = [
            {"token": secrets.token_urlsafe(32), "role": role, "name": role} for role in ROLES
        ]
        _write(tokens, json.dumps({"tokens": entries}, indent=1))
    for name, role in (("cluster.token", "admin"), ("metrics.token", "viewer")):
        if (directory / name).exists():
            continue
        of_role = _tokens(tokens, role)
        if not of_role:
            raise Unusable(f"{tokens} has no {role}, and there is no {directory / name}")
        _write(directory / name, of_role[0])
    if not (directory / "peer.secret").exists():
        _write(directory / "peer.secret", secrets.token_urlsafe(32))
    if not (directory / "registration.key").exists():
        _write(directory / "registration.key", secrets.token_urlsafe(32) + "\n")


def _tokens(path: Path, role: str) -> list[str]:
    """Return a role's tokens. Raises Unusable, OSError."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["tokens"]
        tokens = [entry["token"] for entry in entries if entry["role"] == role]
        if not all(isinstance(token, str) for token in tokens):
            raise TypeError("a token is no text")
        return tokens
    except (ValueError, TypeError, KeyError) as error:
        form = '{"tokens": [{"token": "...", "role": "admin", "name": "..."}]}'
        raise Unusable(f"{path} is not of the form {form}") from error


def _write(path: Path, text: str) -> None:
    """Create a file with all of its content at once; keep one that is there already."""
    own = path.with_name(f".{path.name}.{os.uname().nodename}")
    own.unlink(missing_ok=True)
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        os.link(own, path)
    except FileExistsError:
        pass  # another container was first; its tokens count
    own.unlink()


def main() -> None:
    directory = Path(os.environ.get("RAFTMQ_SECRETS", "/run/raftmq"))
    try:
        make_secrets(directory)
    except Unusable as error:
        _end(str(error))
    except OSError as error:
        _end(f"RAFTMQ_SECRETS={directory}: {error}")
    if len(sys.argv) < 2:
        _end("no command")
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        _end(f"{sys.argv[1]}: {error.strerror}")


def _end(why: str) -> NoReturn:
    print(f"raftmq-entrypoint: {why}", file=sys.stderr)
    sys.exit(WRONG)


if __name__ == "__main__":
    main()
