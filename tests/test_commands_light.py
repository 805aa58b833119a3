"""`--help`, `--version` and the shell's completion of every command import little."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.commands import COMMANDS
from raftmq.mqadmin.commands import COMMANDS as ADMIN_COMMANDS

ROOT = Path(__file__).parent.parent
# Each of them takes longer to import than the interpreter to start, or leads to one that does.
HEAVY = {
    "aiohttp",
    "asyncio",
    "google_crc32c",
    "logging",
    "msgspec",
    "numpy",
    "pyarrow",
    "pyspark",
    "rich",
    "ssl",
    "tenacity",
    "uvloop",
}
MODULES_MAX = 150  # 123 to 143 on 23 November 2026, of them 100 click's and the interpreter's own
SAY_MODULES = r"""
import sys
from raftmq.commands import COMMAND
try:
    COMMAND()
except SystemExit:
    pass
print("\n" + " ".join(sys.modules), file=sys.stderr)
"""

START_BROKER = """
import asyncio, sys
import raftmq.broker.process
from raftmq.broker.broker import open_broker
from raftmq.broker.config import (build_config)
from raftmq.ops.options import Setting
from raftmq.store.disk import OsDisk
from tests.ports import bound

root, listener = sys.argv[1], bound()
values = {
    "enableDLegerCommitLog": "true",
    "dLegerPeers": f"n0-127.0.0.1:{listener.getsockname()[1]}",
    "dLegerSelfId": "n0",
    "listenPort": "0",
    "storePathRootDir": root,
}
config = build_config([Setting(key, value, "test") for key, value in values.items()])

async def start():
    broker = await open_broker(config, OsDisk(root), replication_socket=listener)
    await broker.start()
    print(*sys.modules, flush=True)
    await broker.stop()

asyncio.run(start())
"""


def imported(command: str, *arguments: str, **environment: str) -> tuple[str, set[str]]:
    """Run a command; return what it printed, and the names of the modules that it imported."""
    code = SAY_MODULES.replace("COMMAND", command)
    code = f"import sys; sys.argv = {[command, *arguments]!r}\n{code}"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout, set(ran.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("asked", ["--help", "--version", "completion"])
def test_help_version_and_completion_import_few_modules(command: str, asked: str) -> None:
    if asked == "completion":
        variables = {
            f"_{command.upper()}_COMPLETE": "bash_complete",
            "COMP_WORDS": f"{command} --ver",
            "COMP_CWORD": "1",
        }
        printed, modules = imported(command, **variables)
        assert "plain,--version" in printed
    else:
        printed, modules = imported(command, asked)
        assert printed.startswith("Usage: " if asked == "--help" else command)
    assert not modules & HEAVY
    assert len(modules) <= MODULES_MAX


@pytest.mark.parametrize(
    ("server", "heavy"),
    [
        # aiohttp is imported once clients are served, prometheus_client at the first scrape, and
        # yaml for the accounts of aclEnable.
        ("namesrv", {"aiohttp", "grpc", "jwt", "numpy", "prometheus_client", "rich", "yaml"}),
        ("proxy", {"aiohttp", "jwt", "numpy", "prometheus_client", "rich", "yaml"}),
    ],
)
def test_server_start_imports_no_unneeded_heavy_module(server: str, heavy: set[str]) -> None:
    code = f"import sys, raftmq.{server}.process; print(*sys.modules)"
    assert not heavy & printed_by(code)


@pytest.mark.parametrize(
    ("command", "arguments", "heavy"),
    [
        ("mqbroker", ["health", "--address", "127.0.0.1:1"], HEAVY - {"logging", "ssl"}),
        ("mqnamesrv", ["health", "--address", "127.0.0.1:1"], HEAVY - {"logging", "ssl"}),
        ("mqproxy", ["health", "--address", "127.0.0.1:1"], HEAVY - {"logging", "ssl"}),
        (
            "mqadmin",
            ["clusterList", "-n", "127.0.0.1:1", "-o", "json"],
            {"aiohttp", "numpy", "prometheus_client", "rich", "yaml"},
        ),
    ],
)
def test_command_imports_no_unneeded_heavy_module(
    command: str, arguments: list[str], heavy: set[str]
) -> None:
    _, modules = imported(command, *arguments)
    assert "raftmq.remoting.codes" in modules or command == "mqproxy"  # it has run
    assert not modules & heavy


def test_broker_imports_no_heavy_module_before_serving(tmp_path: Path) -> None:
    """aiohttp comes with the first HTTP connection, prometheus_client with the first scrape, and
    numpy with the first message to index."""
    heavy = {"aiohttp", "grpc", "jwt", "numpy", "prometheus_client", "rich", "tenacity", "yaml"}
    assert not heavy & printed_by(START_BROKER, str(tmp_path))


def printed_by(code: str, *arguments: str) -> set[str]:
    """Run code in a process of its own; return the words that it prints."""
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(ran.stdout.split())


def test_every_mqadmin_command_names_its_coroutine_function() -> None:
    result = [command.load() for command in ADMIN_COMMANDS]
    assert all(inspect.iscoroutinefunction(function) for function in result)
    assert len(set(result)) == len(ADMIN_COMMANDS)
    for module, _ in COMMANDS.values():
        importlib.import_module(module)
