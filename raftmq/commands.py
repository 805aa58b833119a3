"""The commands that pip installs, each with what it needs: `mqadmin` comes with the client, the
others with an extra, which they name if it is missing.

No traceback reaches who uses a tool: what nobody foresaw is a line, and the traceback is in a file
that the line names. A server's goes to its log, which is standard error.
"""

from __future__ import annotations

import importlib
import sys

NOT_INSTALLED = 2  # exit status
BROKEN = 70  # exit status: a bug of ours
INTERRUPTED = 130  # exit status: Ctrl-C
SERVERS = ("mqbroker", "mqnamesrv", "mqproxy")
# Command → the module with its `main`, and the extra that has what it needs.
COMMANDS = {
    "mqadmin": ("raftmq.mqadmin.cli", ""),
    "mqbroker": ("raftmq.broker.cli", "server"),
    "mqnamesrv": ("raftmq.namesrv.cli", "server"),
    "mqproxy": ("raftmq.proxy.cli", "proxy"),
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


def mqproxy() -> None:
    """Run a gRPC proxy."""
    _run("mqproxy")


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
    except KeyboardInterrupt:  # before the command could see to it
        sys.exit(INTERRUPTED)
    except Exception as error:
        if command in SERVERS:
            raise
        sys.exit(_broken(command, error))


def _broken(command: str, error: Exception) -> int:
    """Say that there is a bug, and keep its traceback."""
    import tempfile
    import traceback

    what = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"{command}-", suffix=".traceback", delete=False
        ) as file:
            file.write("".join(traceback.format_exception(error)))
        where = f"the traceback is in {file.name}"
    except OSError as unwritten:
        where = f"its traceback could not be written ({unwritten.strerror})"
    print(f"{command}: a bug: {what}; {where}", file=sys.stderr)
    return BROKEN


def _missing(command: str, package: str, extra: str) -> int:
    hint = f"{command}: the package {package} is missing; pip install 'raftmq[{extra}]'"
    print(hint, file=sys.stderr)
    return NOT_INSTALLED
