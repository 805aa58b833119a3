"""One broker as a process of its own, with tokens, for tests that talk to it from outside."""

import atexit
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import orjson

from raftmq.chaos.cluster.ports import HeldPorts

TOKENS = {role: f"{role}-token-{'0' * 16}" for role in ("viewer", "operator", "admin")}
PATIENCE_S = 240.0
_held = HeldPorts("127.0.0.1")  # until this process ends: nobody else is given them
atexit.register(_held.close)


def tokens_file(path, mode=0o600):
    listed = [{"token": token, "role": role, "name": role} for role, token in TOKENS.items()]
    path.write_bytes(orjson.dumps({"tokens": listed}))
    path.chmod(mode)
    return path


def command(directory, *settings):
    own = (
        f"storePathRootDir={directory / 'store'}",
        "listenPort=0",
        "enableDLegerCommitLog=true",
        f"dLegerPeers=n0-127.0.0.1:{_free_port()}",
        "mappedFileSizeCommitLog=8388608",
        "diskSpaceWarningLevelRatio=100",
        "electionTimeoutMinMs=100",
        "electionTimeoutMaxMs=150",
        "heartbeatIntervalMs=40",
    )
    given = [part for setting in (*own, *settings) for part in ("--set", setting)]
    return [sys.executable, "-m", "raftmq.broker.cli", *given]


@contextmanager
def running(directory, *settings):
    """The address of its HTTP API, once it leads."""
    with (directory / "log").open("w+") as log:
        process = subprocess.Popen(command(directory, *settings), stderr=log, stdout=log)
        try:
            yield _address(process, directory / "log")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


def _address(process, log):
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        text = log.read_text()
        assert process.poll() is None, text
        if "ready=True" in text:
            return text.partition("http_listening address=")[2].split()[0]
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def _free_port():
    """Below what the system gives away by itself."""
    return _held.choose(1, random.Random())[0]
