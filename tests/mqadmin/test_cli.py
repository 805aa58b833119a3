"""The command line by itself: names, flags, exit status, what is printed and how."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from raftmq.client import BrokerRefused, BrokerUnreachable, NoRoute
from raftmq.mqadmin import runner as work
from raftmq.mqadmin.cli import main
from raftmq.mqadmin.command import (
    Command,
    CommandError,
    Done,
    Fields,
    Flag,
    Kind,
    Manner,
    Table,
    parse_time,
    show_time,
)
from raftmq.mqadmin.commands import COMMANDS
from raftmq.namesrv.server import NameServer, NameServerConfig

STOP_S = 120  # a bound against hanging


def run(*arguments, env=None):
    return CliRunner().invoke(main, arguments, env=env, catch_exceptions=False)


def test_mqadmin_command_names_and_flags_are_unambiguous():
    names = [command.name.lower() for command in COMMANDS]
    assert len(set(names)) == len(names)
    for command in COMMANDS:
        said = main.commands[command.name]
        options = [option for one in said.params for option in one.opts]
        assert len(set(options)) == len(options), command.name
        assert "--context" in options and "-h" not in options
        answers = not command.manner.prints
        assert ("--output" in options) == answers
        assert ("--watch" in options) == (command.manner is Manner.READS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_every_mqadmin_command_has_a_help_text(command):
    said = run("help", command.name.upper())
    assert said.exit_code == 0
    for flag in command.flags:
        assert f"--{flag.long}" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topicStatus"], "Missing option '-t'"),
        (["topicStatus", "-t", "T"], "which name server?"),
        (["topicStatus", "-t", "T", "-n", "no port"], "no port"),
        (["nonsense"], "No such command"),
        (["help", "nonsense"], "there is no sub-command"),
        (["resetOffsetByTime", "-g", "g", "-t", "T", "-s", "soon"], "'soon' is no time"),
        (["brokerStatus", "-n", "127.0.0.1:1"], "-b HOST:PORT or -c CLUSTER"),
        (["members", "-b", "g", "-o", "grow", "-n", "127.0.0.1:1"], "expected list, add, promote"),
    ],
)
def test_wrong_usage_exits_with_2_and_an_error_message(arguments, says):
    result = run(*arguments, env={"NAMESRV_ADDR": ""})
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr


def test_unreachable_name_server_exits_with_3_and_one_line():
    result = run("topicList", "-n", "127.0.0.1:1")
    assert result.exit_code == 3
    assert result.stderr.startswith("mqadmin: no name server answered")
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "status", "manner"),
    [
        (NoRoute("T", "unknown"), 1, Manner.CHANGES),
        (BrokerRefused(26, "no such group", "b:1"), 1, Manner.CHANGES),
        (BrokerRefused(1, "[OUTCOME_UNKNOWN] not committed in time", "b:1"), 4, Manner.CHANGES),
        (CommandError("not\x1b[2J there"), 1, Manner.CHANGES),
        (CommandError("say which", usage=True), 2, Manner.CHANGES),
        (BrokerUnreachable("b:1: refused"), 3, Manner.CHANGES),
        (BrokerUnreachable("b:1: no answer", True), 4, Manner.CHANGES),
        (BrokerUnreachable("b:1: no answer", True), 4, Manner.SENDS),
        (BrokerUnreachable("b:1: no answer", True), 3, Manner.READS),
        (BrokerUnreachable("b:1: no answer", True), 3, Manner.STREAMS),
    ],
)
def test_exit_status_follows_from_the_error(error, status, manner, monkeypatch, capsys):
    async def fails(*_):
        raise error

    monkeypatch.setattr(Command, "load", lambda command: fails)
    command = Command("fails", "Fails.", (), "", manner)
    target = work.Target(["127.0.0.1:1"], None, {})
    assert work.execute(command, {"json": False}, target) == status
    said = capsys.readouterr().err
    assert said.startswith("mqadmin: ") and "\x1b" not in said
    assert ("updateTopic makes one" in said) == isinstance(error, NoRoute)
    assert ("unknown whether" in said) == (status == 4)


@pytest.fixture(scope="module")
def namesrv():
    """A name server on a loop of its own."""
    loop = asyncio.new_event_loop()
    config = NameServerConfig(bind="127.0.0.1", port=0, http_enable=False)
    server = NameServer(config)
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.address
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(STOP_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(STOP_S)
    loop.close()


def test_output_is_tables_or_json_and_namesrv_addr_is_read(namesrv):
    env = {"NAMESRV_ADDR": namesrv}
    assert run("updateKvConfig", "-s", "S", "-k", "k", "-v", "v", env=env).exit_code == 0
    as_json = run("TOPICLIST", "--json", env=env)
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (0, [])
    assert "(none)" in run("topicList", env=env).stdout
    gone = run("topicRoute", "-t", "T", env=env)
    assert (gone.exit_code, "no route to topic 'T'" in gone.stderr) == (1, True)
    headless = run("updateTopic", "-c", "C", "-t", "T", env=env)
    assert (headless.exit_code, "there is no cluster 'C'" in headless.stderr) == (1, True)


ROWS: list[dict[str, Any]] = [{"name": "a", "count": 2}, {"name": "yes: no", "count": None}]
PARTS = [Table(ROWS, "rows"), Fields({"more": [1, 2]}, "rest"), Done("done", {"x": 1})]
DATA = {"rows": ROWS, "rest": {"more": [1, 2]}, "part3": {"done": "done", "x": 1}}


@pytest.mark.parametrize("ms", [253_402_387_200_000, 2**60, 2**63 - 1])
def test_time_outside_the_calendar_is_printed_as_its_number(ms):
    assert show_time(ms) == str(ms)


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_closed_output_pipe_is_not_a_failure(namesrv, form):
    reads, writes = os.pipe()
    os.close(reads)
    arguments = ("topicList", "-n", namesrv, "-o", form)
    with os.fdopen(writes, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "raftmq.mqadmin", *arguments],
            cwd=Path(__file__).parents[2],
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=STOP_S,
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def answers(monkeypatch):
    """Have every command answer with PARTS."""

    async def answer(*_):
        return PARTS

    monkeypatch.setattr(Command, "load", lambda command: answer)


@pytest.mark.parametrize(
    ("flags", "read"),
    [
        (("--json",), json.loads),
        (("-o", "json"), json.loads),
        (("--output", "yaml"), yaml.safe_load),
    ],
)
def test_command_with_several_parts_prints_one_document(namesrv, answers, flags, read):
    said = run("topicList", *flags, env={"NAMESRV_ADDR": namesrv})
    assert (said.exit_code, said.stderr) == (0, "")
    assert read(said.stdout) == DATA


class Enough(Exception):
    """Ends a watch, which goes on by itself."""


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("json", lambda text: [json.loads(line) for line in text.splitlines()]),
        ("yaml", lambda text: list(yaml.safe_load_all(text))),
        ("table", lambda text: [DATA] * text.count("rows\n")),
    ],
)
def test_watch_flag_prints_repeatedly(namesrv, monkeypatch, capsysbinary, form, read):
    looks = 0

    async def answer(*_):
        nonlocal looks
        looks += 1
        if looks == 2:
            raise NoRoute("T", "gone for a moment")
        if looks == 4:
            raise Enough
        return PARTS

    monkeypatch.setattr(Command, "load", lambda command: answer)
    target = work.Target([namesrv], None, {})
    command = Command("answers", "", (Flag("f", "flag", "", Kind.SWITCH),), "")
    with pytest.raises(Enough):
        work.execute(command, {"output": form, "json": False, "watch": 0.1}, target)
    said = capsysbinary.readouterr()
    assert read(said.out.decode()) == [DATA] * 2
    assert b"gone for a moment" in said.err


def test_parse_time_reads_dates_milliseconds_and_now():
    moment = datetime(2024, 3, 1, 12, 30, 5)
    ms = int(moment.timestamp()) * 1000
    assert parse_time("2024-03-01#12:30:05:250", 0) == ms + 250
    assert parse_time("2024-03-01#12:30:05", 0) == ms
    assert parse_time("1700000000000", 0) == 1_700_000_000_000
    assert parse_time("-1", 0) == -1
    assert parse_time("now", 42) == 42
    with pytest.raises(ValueError, match="expected now, milliseconds"):
        parse_time("2024-03-01 12:30:05", 0)
