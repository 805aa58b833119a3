"""Every command line in the README and the documents is one that our commands would take: it is
parsed by the real ones (click), and runs nothing. Modules that they name are there."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest
import yaml

from raftmq.chaos.run.scenario import find_scenario
from raftmq.chaos.workloads.catalogue import WORKLOADS
from raftmq.commands import COMMANDS
from tests.docs.pages import PAGES, ROOT, Block, blocks, calls, command_lines, commands

TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
MODULE = re.compile(r"`((?:[a-z_]+/)+[\w-]+\.(?:py|sh|toml|txt|yml))`")
PLACEHOLDERS = {"COMMAND", "SUBCOMMAND"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS: dict[str, str] = PROJECT["scripts"]
PRODUCT = ("mqadmin", "mqaudit", "mqbroker", "mqchaos", "mqcluster", "mqnamesrv", "mqproxy")


@cache
def script(name: str) -> click.Command:
    """Return the function that the installed command of that name calls."""
    assert SCRIPTS[name] == f"raftmq.commands:{name}"
    result = importlib.import_module(COMMANDS[name][0]).main
    assert isinstance(result, click.Command)
    return result


def complaint(words: list[str]) -> str:
    """Why a simple command would be refused; "" for one that would be taken, or is not ours."""
    name, *arguments = words
    if re.match(r"\d+\.\d+\.\d+\.\d+:", name):
        return "is no command: quote the ; before it"
    if not arguments:
        return ""  # its name alone
    if name in SCRIPTS:
        return parsed(script(name), name, arguments)
    if name == "make":
        targets = TARGET.findall((ROOT / "Makefile").read_text())
        unknown = [word for word in arguments if "=" not in word and word not in targets]
        return f"make has no target {', '.join(unknown)}" if unknown else ""
    if name in ("python", "python3") and arguments[0] == "-m":
        top = arguments[1].partition(".")[0]
        ours = (ROOT / top).is_dir()
        there = not ours or importlib.util.find_spec(arguments[1]) is not None
        return "" if there else f"no module {arguments[1]}"
    if name in ("python", "python3") and not arguments[0].startswith("-"):
        return "" if (ROOT / arguments[0]).is_file() else f"no file {arguments[0]}"
    if name == "docker" and arguments[:1] == ["compose"]:
        return unknown_profile(arguments)
    if name.startswith(("tools/", "./tools/")):
        return "" if (ROOT / name).is_file() else f"no file {name}"
    return ""


def parsed(command: click.Command, name: str, arguments: list[str]) -> str:
    """Follow a command line through click down to its last sub-command."""
    parent: click.Context | None = None
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=parent)
            rest = [*context._protected_args, *context.args]
            if not isinstance(command, click.Group) or not rest or rest[0] in PLACEHOLDERS:
                return ""
            result, command_below, arguments = command.resolve_command(context, rest)
            assert result is not None
            assert command_below is not None
            name, command, parent = result, command_below, context
    except click.exceptions.Exit:
        return ""  # --help
    except click.BadParameter as error:
        # Files of the reader's own are not here.
        return "" if "does not exist" in error.message else error.format_message()
    except click.UsageError as error:
        return error.format_message()


def unknown_profile(arguments: list[str]) -> str:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    known = {profile for service in services.values() for profile in service.get("profiles", ())}
    requested = {b for a, b in pairwise(arguments) if a == "--profile"}
    return f"no profile {requested - known}" if requested - known else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_command_lines_are_valid(page: Path) -> None:
    wrong = [
        f"{block.where}: {line.strip()}: {why}"
        for block in [*blocks(page), *indented(page)]
        for line in command_lines(block)
        for text in commands(line)
        if (why := complaint(text))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_commands_within_sentences_have_valid_names_and_flags(page: Path) -> None:
    """There they are often shortened, so nothing is asked for that is required."""
    text = re.sub(r"^\s*```.*?^\s*```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    wrong = [
        f"{page.relative_to(ROOT)}: {code}: {why}"
        for code in INLINE.findall(text)
        for texts in commands(code)
        if texts[0] in SCRIPTS and (why := unknown_word(texts))
    ]
    assert not wrong, "\n".join(wrong)


def unknown_word(words: list[str]) -> str:
    command, path = script(words[0]), words[0]
    known = set(flags(command))
    for word in words[1:]:
        if isinstance(command, click.Group) and re.fullmatch(r"[a-z]\w*", word):
            below = command.commands.get(word)
            if below is None and command.invoke_without_command:
                continue  # a flag's value
            if below is None:
                return f"{path} has no {word}"
            command, path = below, f"{path} {word}"
            known |= set(flags(command))
        elif word.startswith("-") and word.partition("=")[0] not in known:
            return f"{path} has no {word}"
    return ""


def flags(command: click.Command) -> list[str]:
    context = click.Context(command)
    return [flag for option in command.get_params(context) for flag in option.opts] + ["--help"]


def indented(page: Path) -> list[Block]:
    """Code by four spaces, one line each."""
    matches = re.findall(r"^    (mq[a-z]+ .*)$", page.read_text(), re.MULTILINE)
    return [Block(page, 0, "", line) for line in matches if line.split()[0] in SCRIPTS]


def test_documents_contain_commands_to_check() -> None:
    lines = [line for page in PAGES for block in blocks(page) for line in command_lines(block)]
    names = {text[0] for line in lines for text in commands(line)}
    assert names >= {*PRODUCT, "make", "python", "docker"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mqcluster upp --dir /tmp/c", "No such command 'upp'"),
        ("mqcluster up --dir /tmp/c --replica 3", "--replica"),
        ("mqcluster up --dir /tmp/c --replicas many", "many"),
        ("mqcluster status", "Missing option '--dir'"),
        ("mqcluster kill --dir /tmp/c", "Missing argument"),
        ("mqcluster status --dir /tmp/c && mqadmin clusterLst -n H:1", "clusterLst"),
        ("NAMESRV_ADDR=H:1 mqadmin topicStatus", "Missing option"),
        ("mqchaos run failover --dir /tmp/r --minute 3 | tail", "--minute"),
        ("mqaudit --run /tmp --cores many", "many"),
        ("mqbroker config chek x", "chek"),
        ("make dmo", "no target dmo"),
        ("python -m tests.simulatr --seeds 1", "no module"),
        ("python docs/examples/sned.py", "no file"),
        ("docker compose --profile chas up", "no profile"),
        ("tools/no-such.sh up", "no file"),
    ],
)
def test_wrong_command_line_is_detected(line: str, why: str) -> None:
    block = Block(ROOT / "README.md", 1, "bash", line)
    result = [complaint(texts) for one in command_lines(block) for texts in commands(one)]
    assert any(why in text for text in result), result


@pytest.mark.parametrize(
    ("code", "why"), [("mqcluster upp", "no upp"), ("mqcluster add --grp x", "no --grp")]
)
def test_wrong_command_within_a_sentence_is_detected(code: str, why: str) -> None:
    (text,) = commands(code)
    assert why in unknown_word(text)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('curl -s "$NS/api/v1/topics?q=inv&limit=10" | jq .', [("GET", "/api/v1/topics")]),
        ("v=$(curl -fsS -X PUT -d '{}' $API/api/v1/topics/T)", [("PUT", "/api/v1/topics/T")]),
        ("curl -H 'A: b' -d '{\"a\": 1}' http://127.0.0.1:9880/x", [("POST", "/x")]),
        ("wget http://127.0.0.1:9880/x", []),
        ("curl https://example.org", []),
    ],
)
def test_curl_calls_are_extracted(line: str, found: list[tuple[str, str]]) -> None:
    assert [call for text in commands(line) for call in calls(text)] == found


def test_documented_workloads_and_scenarios_exist() -> None:
    chaos = (ROOT / "docs" / "chaos.md").read_text()
    workloads = set(re.findall(r"^\| `([a-z]+)` \|", chaos, re.MULTILINE))
    assert {"log", "ordered"} <= workloads <= set(WORKLOADS)
    lines = [line for page in PAGES for block in blocks(page) for line in command_lines(block)]
    runs = [text for line in lines for text in commands(line) if text[:2] == ["mqchaos", "run"]]
    requested = {text[2] for text in runs} - {"SCENARIO", "$RAFTMQ_SCENARIO"}
    assert len(requested) > 5
    for wishes in requested:
        assert find_scenario(wishes).wants()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_modules_exist(page: Path) -> None:
    """From the root, or from a room. What is below conf/ is
    Apache's, and an operator's."""
    named = [name for name in MODULE.findall(page.read_text()) if not name.startswith("conf/")]
    assert not [
        name for name in named if not ((ROOT / name).is_file() or list(ROOT.glob(f"*/{name}")))
    ]
