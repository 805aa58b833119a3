"""`mqadmin context`, and what a context does for the other commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raftmq.mqadmin import runner as work
from raftmq.mqadmin.cli import main
from raftmq.mqadmin.command import Command
from raftmq.mqadmin.context import HIDDEN


def run(*arguments: str, typed: str = "", **environment: str) -> Result:
    env = {"NAMESRV_ADDR": "", "RAFTMQ_ACCESS_KEY": "", "RAFTMQ_SECRET_KEY": "", **environment}
    return CliRunner().invoke(main, arguments, env=env, input=typed, catch_exceptions=False)


def add(name: str, *flags: str) -> None:
    said = run("context", "add", name, "-n", f"{name}:9876", *flags)
    assert said.exit_code == 0, said.stderr


def listed() -> dict[str, bool]:
    rows = json.loads(run("context", "list", "--json").stdout)
    return {row["name"]: row["inUse"] for row in rows}


def test_context_is_added_used_and_removed() -> None:
    assert listed() == {}
    add("test")
    assert "use it by: mqadmin context use x" in run("context", "add", "x", "-n", "x:1").stdout
    add("prod", "--use")
    assert listed() == {"prod": True, "test": False, "x": False}
    assert run("context", "use", "test").exit_code == 0
    assert listed() == {"test": True, "prod": False, "x": False}
    assert run("context", "show", "-o", "yaml").stdout == "name: test\nnamesrv: test:9876\n"
    assert run("context", "remove", "test").exit_code == 0
    assert listed() == {"prod": False, "x": False}
    gone = run("context", "show")
    assert (gone.exit_code, gone.stderr) == (2, "mqadmin: no context is in use\n")


def test_context_secret_is_read_but_not_printed() -> None:
    account = ("--accessKey", "ops", "--secretKey", "-")
    said = run("context", "add", "prod", "-n", "p:1", *account, typed="s3cret\n")
    assert said.exit_code == 0 and "s3cret" not in said.output
    shown = json.loads(run("context", "show", "prod", "--json").stdout)
    assert shown["secretKey"] == HIDDEN
    shown = json.loads(run("context", "show", "prod", "--json", "--secrets").stdout)
    assert shown["secretKey"] == "s3cret"
    assert "s3cret" not in run("context", "list").output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "prod", "-n", "p:2"), "--replace replaces it"),
        (("add", "a b", "-n", "p:2"), "no name of a context"),
        (("add", "new", "-n", "noport"), "-n: not an address"),
        (("add", "new", "-n", ";"), "no name server is named"),
        (("add", "new", "-n", "p:2", "--accessKey", "a"), "need"),
        (("use", "new"), "there is no context 'new'; known: prod"),
        (("remove", "new"), "there is no context 'new'"),
    ],
)
def test_context_rejects_wrong_arguments_and_changes_nothing(
    arguments: tuple[str, ...], says: str
) -> None:
    add("prod")
    said = run("context", *arguments)
    assert (said.exit_code, len(said.stderr.splitlines())) == (2, 1)
    assert says in said.stderr
    assert listed() == {"prod": False}


def test_command_prefers_flags_to_context_flag_to_variables_to_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flags, then the context that a flag names, then variables, then the context in use."""
    requested = []

    def execute(command: Command, values: object, target: work.Target) -> int:
        key = target.credentials.access_key if target.credentials else ""
        requested.append((list(target.name_servers), key))
        return 0

    monkeypatch.setattr(work, "execute", execute)
    add("prod", "--accessKey", "p", "--secretKey", "12345678")
    add("test", "--use")
    variables = {"NAMESRV_ADDR": "env:1"}
    for arguments, environment in (
        (("topicList",), {}),
        (("topicList",), variables),
        (("topicList",), {"RAFTMQ_CONTEXT": "prod"}),
        (("topicList", "--context", "prod"), variables),
        (("--context", "prod", "topicList"), variables),
        (("--context", "prod", "topicList", "-n", "flag:1"), variables),
        (("--accessKey", "me", "--secretKey", "x", "topicList", "--context", "prod"), variables),
    ):
        assert run(*arguments, **environment).exit_code == 0
    assert requested == [
        (["test:9876"], ""),
        (["env:1"], ""),
        (["prod:9876"], "p"),
        (["prod:9876"], "p"),
        (["prod:9876"], "p"),
        (["flag:1"], "p"),
        (["prod:9876"], "me"),
    ]
    wrong = run("topicList", "--context", "gone")
    assert (wrong.exit_code, "known: prod, test" in wrong.stderr) == (2, True)


def test_context_files_are_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    add("prod", "--tlsConfigFile", "tls.properties")
    shown = json.loads(run("context", "show", "prod", "--json").stdout)
    assert shown["tlsConfigFile"] == str(tmp_path / "tls.properties")
