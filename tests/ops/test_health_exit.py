"""The `health` commands of all programs ask the server that their options describe."""

from __future__ import annotations

import importlib

import pytest
from click.testing import CliRunner

from tests.ports import bound

PROGRAMS = {"broker": "listenPort", "namesrv": "listenPort", "proxy": "httpPort"}


@pytest.mark.parametrize("by_file", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_health_asks_the_server_of_the_options(program, by_file, tmp_path):
    main = importlib.import_module(f"raftmq.{program}.cli").main
    with bound() as nobody:
        port = nobody.getsockname()[1]
        setting = f"{PROGRAMS[program]}={port}"
        (tmp_path / "its.conf").write_text(setting)
        options = ("-c", str(tmp_path / "its.conf")) if by_file else ("--set", setting)
        done = CliRunner().invoke(main, [*options, "health", "--timeout", "5"])
    assert (done.exit_code, f"127.0.0.1:{port}: " in done.output) == (1, True)
