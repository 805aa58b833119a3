"""Brings the compose file up for real: with tools/compose-offline.sh, in an engine of its own.

Nothing of the machine's own containers, ports or firewall is touched. Needs root, apt and pip;
where they are not, the tests fail and say so: a compose file that nobody has brought up is not
tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "compose-offline.sh"
UP_TIMEOUT_S = 600.0
CALL_TIMEOUT_S = 900.0
HEALTHY_TIMEOUT_S = 400.0
NAMESRV = "127.0.0.1:9876;127.0.0.1:9877"


def health_of(containers: list[dict[str, Any]]) -> dict[str, str]:
    """Return the state of health by service."""
    return {
        one["Config"]["Labels"]["com.docker.compose.service"]: one["State"]["Health"]["Status"]
        for one in containers
    }


class Stage:
    """The engine and what runs in it. `up` first, `down` in the end."""

    def __init__(self, state: Path | None = None) -> None:
        """`state`: the tool's folder, which keeps images and wheels between runs."""
        self.command = [str(TOOL)]
        temporary = Path(os.environ.get("TMPDIR", tempfile.gettempdir()))
        self.state = state or temporary / "raftmq-compose"
        self.socket = self.state / "run" / "docker.sock"
        self.environment = os.environ | {
            "STATE": str(self.state),
            "PYTHON": sys.executable,
            "DOCKER_HOST": f"unix://{self.socket}",
            "RAFTMQ_HEALTH_INTERVAL": "5s",  # the first look is an interval after the start
            "RAFTMQ_HEALTH_TIMEOUT": "120s",  # Python may start slowly on a machine that is busy
        }

    def up(self) -> str:
        assert os.geteuid() == 0, (
            "the compose file is brought up in an engine of its own, which needs root; "
            "as another user this cannot be tested here"
        )
        return self.tool("up", timeout_s=UP_TIMEOUT_S)

    def tools(self) -> str:
        """The image of the profiles chaos and audit."""
        return self.tool("tools", timeout_s=UP_TIMEOUT_S)

    def down(self) -> None:
        self.tool("down")

    def compose(self, *words: str) -> str:
        return self.tool("compose", *words)

    def docker(self, *words: str) -> str:
        return self.tool("docker", *words)

    def run_service(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """`docker compose run` of a profile's service, or of another command in its place; its
        status is the caller's to judge."""
        text = ("--profile", name, "run", "--rm", "-T", name, *command)
        return self._run("compose", *text, timeout_s=CALL_TIMEOUT_S)

    def within(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command where the published ports are; its status is the caller's to judge."""
        return self._run("in", *command, timeout_s=CALL_TIMEOUT_S)

    def mqadmin(self, *words: str, tls: Path | None = None) -> subprocess.CompletedProcess[str]:
        """From outside, where the published ports are; `tls`: the client's tls.properties."""
        shown = [] if tls is None else ["env", f"RAFTMQ_TLS_CONFIG_FILE={tls}"]
        command = [sys.executable, "-m", "mqadmin", words[0], "-n", NAMESRV, *words[1:]]
        return self.within(*shown, *command)

    def said_by(self, *words: str, tls: Path | None = None) -> str:
        """Return the output of a command, run again until it succeeds: it gives a server few
        seconds."""

        def done() -> subprocess.CompletedProcess[str] | None:
            tried = self.mqadmin(*words, tls=tls)
            return None if tried.returncode else tried

        result = wait_until(
            done,
            lambda: self.mqadmin(*words, tls=tls),
            patience_s=HEALTHY_TIMEOUT_S,
            pause_s=0.5,
        )
        assert result is not None
        return result.stdout

    def containers(self) -> list[dict[str, Any]]:
        """Return what the engine says of each."""
        return json.loads(self.docker("inspect", *self.compose("ps", "-q").split()))

    def volume(self, name: str) -> Path:
        return Path(self.docker("volume", "inspect", "-f", "{{.Mountpoint}}", f"raftmq_{name}"))

    def tool(self, *words: str, timeout_s: float = CALL_TIMEOUT_S) -> str:
        done = self._run(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def _run(self, *words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
