"""The commands that pip installs, each with what it needs: `mqadmin` comes with the client, the
others with an extra, which they name if it is missing."""

from __future__ import annotations

import importlib
import sys

NOT_INSTALLED = 2  # exit status
# Command → the module with its `main`, and the extra that has what it needs.
COMMANDS = {
    "mqadmin": ("raftmq.mqadmin.cli", ""),
    "mqbroker": ("raftmq.broker.cli", "server"),
    "mqnamesrv": ("raftmq.namesrv.cli", "server"),
    "mqcluster": ("raftmq.chaos.cluster.cli", "server"),
    "mqchaos": ("raftmq.chaos.cli", "chaos"),
    "mqaudit": ("raftmq.audit.cli", "audit"),
}


def mqadmin() -> None:
    """Ask and change a running cluster."""
    _run("mqadmin")


def mqbroker() -> None:
    """Run a broker."""
    _run("mqbroker")


def mqnamesrv() -> None:
    """Run a name server."""
    _run("mqnamesrv")


def mqcluster() -> None:
    """Run a whole cluster on this machine."""
    _run("mqcluster")


def mqchaos() -> None:
    """Run a chaos experiment."""
    _run("mqchaos")


def mqaudit() -> None:
    """Prove with Spark that no message was lost."""
    _run("mqaudit")


def _run(command: str) -> None:
    """Import the command's module and call its `main`, which imports what it needs; exit with a
    hint if a package is missing."""
    module, extra = COMMANDS[command]
    try:
        importlib.import_module(module).main(prog_name=command)
    except ModuleNotFoundError as error:
        if not extra or error.name is None or error.name.partition(".")[0] == "raftmq":
            raise
        sys.exit(_missing(command, error.name, extra))


def _missing(command: str, package: str, extra: str) -> int:
    hint = f"{command}: the package {package} is missing; pip install 'raftmq[{extra}]'"
    print(hint, file=sys.stderr)
    return NOT_INSTALLED
