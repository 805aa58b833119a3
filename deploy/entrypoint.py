#!/usr/bin/env python3
"""Starts a container's command, once the cluster's secrets exist.

Off loopback the HTTP API wants tokens, brokers want a secret by which they know each other, and
name servers a key by which they know brokers.
Unless somebody has put them there, they are made here, by whichever container comes first, in the
directory that all of a cluster's containers share:

    tokens.json     one token for each role: viewer, operator, admin (httpTokensFile)
    cluster.token   what the name servers show to brokers: the admin's (httpClusterTokenFile)
    metrics.token   what Prometheus shows: the viewer's
    peer.secret     what the brokers of a group prove to each other that they have (peerSecretFile)
    registration.key   what brokers sign their registrations with (registrationKeyFile)

The directory is RAFTMQ_SECRETS (default /run/raftmq); nobody else may read the files.
"""

import json
import os
import secrets
import sys
from pathlib import Path

ROLES = ("viewer", "operator", "admin")


def make_secrets(directory: Path) -> None:
    """The files that are not there. Of several containers that do this at once one wins."""
    tokens = directory / "tokens.json"
    if not tokens.exists():
        entries = [
            {"token": secrets.token_urlsafe(32), "role": role, "name": role} for role in ROLES
        ]
        _place(tokens, json.dumps({"tokens": entries}, indent=1))
    for name, role in (("cluster.token", "admin"), ("metrics.token", "viewer")):
        if (directory / name).exists():
            continue
        found = json.loads(tokens.read_text(encoding="utf-8"))["tokens"]
        of_role = [entry["token"] for entry in found if entry["role"] == role]
        if not of_role:
            raise SystemExit(f"{tokens} has no {role}, and there is no {directory / name}")
        _place(directory / name, of_role[0])
    if not (directory / "peer.secret").exists():
        _place(directory / "peer.secret", secrets.token_urlsafe(32))
    if not (directory / "registration.key").exists():
        _place(directory / "registration.key", secrets.token_urlsafe(32) + "\n")


def _place(path: Path, text: str) -> None:
    """Write a file whole; one that is there already stays."""
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
    make_secrets(Path(os.environ.get("RAFTMQ_SECRETS", "/run/raftmq")))
    if len(sys.argv) < 2:
        raise SystemExit("no command")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
