"""docs/errors.md names every error that the code has, none that it has not, and quotes its words.

They are found in the programs: enums and exceptions by import, the rest in syntax trees."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import click

from raftmq import commands
from raftmq.audit import cli as mqaudit
from raftmq.audit.command_line import EXIT_UNUSABLE
from raftmq.broker.errors import UNKNOWN
from raftmq.broker.http.api import UNAVAILABLE_TAGS
from raftmq.chaos import commands as mqchaos
from raftmq.chaos.cluster import commands as mqcluster
from raftmq.client import errors as client_errors
from raftmq.mqadmin import runner as mqadmin
from raftmq.ops import config_cli as configcli
from raftmq.proxy.protocol.messaging_pb2 import Code
from raftmq.remoting.codes import ResponseCode
from raftmq.web import problem
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "errors.md"
SERVERS = ("broker", "dledger", "namesrv", "ops", "proxy", "remoting", "store", "web")
ANSWERING = ("broker", "namesrv", "remoting")  # by the remoting protocol
ROOMS = (*SERVERS, "audit", "chaos", "client", "mqadmin", "raftmq")
LEVELS = ("warning", "error", "exception", "critical")
TAG = re.compile(r"\[([A-Z]+(?:_[A-Z]+)*)\](?: |$)")
CODE = re.compile(r"[A-Z]{4,}(?:_[A-Z]+)*|[A-Z]{2,}(?:_[A-Z]+)+")
CODED = ("ApiProblem", "conflict", "unavailable")  # calls that are given a problem's code
EVENT = re.compile(r"[a-z][a-z0-9_]+")
NUMBERED = re.compile(r"(\d+) `([A-Z_]+)`")
QUOTED = re.compile(r"`([^`]+)`")
REPORT_ARGUMENTS = 4  # of remoting/tls_listener.py's _report
LOOKED_AT = (
    *(ast.Assign, ast.AsyncFunctionDef, ast.Attribute, ast.Call),
    *(ast.Constant, ast.Expr, ast.FunctionDef),
)
LOWER = {"master_not_reached", "store_noted"}  # logged at INFO where that is decided
FOREIGN = {"Address already in use", "Error:"}  # texts of the operating system and of click
PIECES = re.compile(r'"\s*\n\s*f?"')  # between two strings of one
QUOTE_MIN = 6  # characters of a quotation between two gaps that must be in the code


@cache
def nodes_of(room: str) -> tuple[tuple[str, tuple[ast.AST, ...]], ...]:
    """The modules of a room, each with the nodes of its syntax tree."""
    result = []
    for path in sorted((ROOT / room).rglob("*.py")):
        if path.name != "messaging_pb2.py":
            name = ".".join(("raftmq", *path.relative_to(ROOT).with_suffix("").parts))
            every = ast.walk(ast.parse(path.read_text()))
            result.append((name, tuple(node for node in every if isinstance(node, LOOKED_AT))))
    return tuple(result)


def nodes(*rooms: str) -> Iterator[tuple[str, ast.AST]]:
    for room in rooms:
        for name, result in nodes_of(room):
            for node in result:
                yield name, node


def strings(*rooms: str) -> Iterator[tuple[str, ast.Constant]]:
    """Every string of a room that is no docstring."""
    docs = {id(node.value) for _, node in nodes(*rooms) if isinstance(node, ast.Expr)}
    for module, node in nodes(*rooms):
        if isinstance(node, ast.Constant) and id(node) not in docs:
            yield module, node


def calls(*rooms: str) -> Iterator[tuple[str, str, ast.Call]]:
    """Every call of a room: (module, name of what is called, the call)."""
    for module, node in nodes(*rooms):
        if isinstance(node, ast.Call):
            result = node.func
            name = result.attr if isinstance(result, ast.Attribute) else getattr(result, "id", "")
            yield module, name, node


def text_of(module: str, node: ast.AST) -> str:
    """Return a string that is written there, or that a constant of the module holds; else ""."""
    if isinstance(node, ast.Name):
        value = getattr(importlib.import_module(module), node.id, "")
        return value if isinstance(value, str) else ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def source(*rooms: str) -> str:
    """The programs' text, strings that are written in several pieces joined."""
    paths = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    return PIECES.sub("", "\n".join(path.read_text() for path in paths))


def tags() -> set[str]:
    """The words in brackets that answers begin with."""
    texts = (text_of(module, node) for module, node in strings(*ANSWERING))
    matches = {tag for text in texts for tag in TAG.findall(text)}
    for module, _, call in calls(*ANSWERING):
        for keyword in call.keywords:
            if keyword.arg == "tag":
                matches.add(text_of(module, keyword.value))
        if isinstance(call.func, ast.Name) and call.func.id == "_refused" and call.args:
            matches.add(text_of(module, call.args[0]))  # of exactly-once writers
    return {tag for tag in matches | {UNKNOWN} if CODE.fullmatch(tag)}


def given_codes() -> set[str]:
    """The response codes that a server's code names."""
    return {
        node.attr
        for module, node in nodes(*ANSWERING)
        if isinstance(node, ast.Attribute) and node.attr in ResponseCode.__members__
        if module != "raftmq.remoting.codes"
    }


def problems() -> set[str]:
    """The `code`s of the HTTP API's error answers."""
    makers = [make for make in vars(problem).values() if inspect.isfunction(make)]
    defaults = [inspect.signature(make).parameters.get("code") for make in makers]
    result = {one.default for one in defaults if one is not None}
    for module, node in nodes("broker", "namesrv", "proxy", "web"):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in CODED:
                    result |= codes_given(module, node, call)
    result |= {tag for tag in UNAVAILABLE_TAGS if tag in tags()}
    return {code for code in result if isinstance(code, str) and CODE.fullmatch(code)}


def codes_given(module: str, function: ast.AST, call: ast.Call) -> set[str]:
    """The codes that a call makes a problem with; if a local variable holds the code, every code
    that its function has."""
    given = {text_of(module, argument) for argument in call.args}
    local = any(isinstance(one, ast.Name) and one.id == "code" for one in call.args)
    inside = ast.walk(function) if local else ()
    return given | {text_of(module, one) for one in inside if isinstance(one, ast.expr)}


def grpc_codes() -> set[str]:
    """The codes of RocketMQ's that the proxy's code names."""
    return {
        node.attr
        for _, node in nodes("proxy")
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("Code", "pb.Code")
        if node.attr in Code.keys() and node.attr != "OK"
    }


def events(*rooms: str) -> set[str]:
    """The first words of what is logged at WARNING or above."""
    result = set()
    for module, name, call in calls(*rooms):
        if not call.args or "log" not in ast.unparse(call.func).lower():
            continue
        if name in LEVELS:
            result |= strings_of(module, call.args[0])
        elif name == "log":  # of a level that is decided as it goes
            result |= {text for one in ast.walk(call) if (text := text_of(module, one))}
    if "remoting" in rooms:  # its listener logs some events by a function
        given = (call.args for _, name, call in calls("remoting") if name == "_report")
        result |= {text_of("", args[1]) for args in given if len(args) == REPORT_ARGUMENTS}
    return {match[0] for text in result if (match := EVENT.match(text))} - LOWER


def strings_of(module: str, node: ast.expr) -> set[str]:
    """Return the strings that an argument can be; of a local variable every template that its
    module assigns to one of that name."""
    if isinstance(node, ast.Name) and not node.id.isupper():
        given = (
            text_of(module, one.value)
            for name, one in nodes(module.split(".")[1])
            if name == module and isinstance(one, ast.Assign)
            if ast.unparse(one.targets[0]) == node.id
        )
        return {text for text in given if "=%s" in text}
    return {text_of(module, node)}


# ---- the page


@dataclass(frozen=True, slots=True)
class Row:
    """A table's row: its cells, and the names in backticks of a column."""

    cells: tuple[str, ...]

    def names(self, column: int) -> list[str]:
        return QUOTED.findall(self.cells[column])


@cache
def rows(heading: str) -> tuple[Row, ...]:
    """The rows of all tables below a heading, up to the next of its level or above."""
    level = heading.split()[0]
    text = PAGE.read_text()
    at = text.index(f"\n{heading}\n")
    rest = text[at + len(heading) + 2 :]
    end = re.search(rf"^#{{1,{len(level)}}} ", rest, re.MULTILINE)
    lines = rest[: end.start() if end else None].splitlines()
    result = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    split = [Row(tuple(cell.strip() for cell in cells)) for cells in result]
    titles = {split[0].cells[0]} | {"code", "event", "the text"}
    return tuple(row for row in split if row.cells[0] not in titles)


def named(heading: str, column: int = 0) -> list[str]:
    return [name for row in rows(heading) for name in row.names(column)]


HEADING_OF_TAGS = "## Answers that begin with a word in brackets"
HEADING_OF_CODES = "## Answers by code"
HEADING_OF_ENDS = "## A command that ends at once"
HEADING_OF_LOGS = "## Log lines"


def test_every_error_tag_is_documented_with_its_code() -> None:
    assert {name.strip("[]") for name in named(HEADING_OF_TAGS)} == tags()
    for row in rows(HEADING_OF_TAGS):
        assert int(row.cells[1]) in set(ResponseCode), row


def test_every_response_code_is_documented_with_its_number() -> None:
    result = {}
    for row in rows(HEADING_OF_CODES):
        for number, name in NUMBERED.findall(row.cells[0]):
            result[name] = int(number)
    assert result == {code.name: code.value for code in ResponseCode}


def test_response_codes_of_apaches_alone_are_not_used_here() -> None:
    explained = [row for row in rows(HEADING_OF_CODES) if len(row.cells) > 2]
    ours = {name for row in explained for _, name in NUMBERED.findall(row.cells[0])}
    assert ours == given_codes()


def test_every_http_problem_is_documented() -> None:
    assert set(named("## The HTTP APIs")) == problems()
    assert len(problems()) > 20


def test_http_problems_are_documented_with_their_statuses() -> None:
    made = [
        *(make("") for make in (problem.malformed, problem.unauthorized, problem.forbidden)),
        *(make("") for make in (problem.not_found, problem.conflict, problem.stale)),
        *(make("") for make in (problem.too_large, problem.busy, problem.unavailable)),
        *(make("") for make in (problem.not_leader, problem.outcome_unknown, problem.timed_out)),
        problem.invalid([]),
        problem.version_required(),
    ]
    statuses = {name: row.cells[1] for row in rows("## The HTTP APIs") for name in row.names(0)}
    assert not [one for one in made if str(one.status) not in statuses[one.code]]


def test_every_proxy_code_is_documented() -> None:
    assert set(named("## Clients of RocketMQ 5: the gRPC proxy")) == grpc_codes()


def test_every_client_exception_is_documented_with_its_code() -> None:
    heading = "## Exceptions of the Python client"
    every = {
        name
        for name, kind in vars(client_errors).items()
        if inspect.isclass(kind) and issubclass(kind, client_errors.ClientError)
    }
    assert set(named(heading)) == every
    own = {value for name, value in vars(client_errors).items() if name.startswith("CODE_")}
    reported = {int(row.cells[1]) for row in rows(heading) if row.cells[1].startswith("-")}
    assert reported == own | {-1}


def test_every_log_event_from_warning_on_is_documented() -> None:
    """An event may stand in two tables: the client logs some that servers log, too."""
    result = named(HEADING_OF_LOGS)
    assert set(result) == events(*SERVERS, "client", "spark")
    client = named("### The Python client's")
    assert set(client) == events("client")
    servers = result[: len(result) - len(client)]
    assert len(servers) == len(set(servers))


def test_documented_exit_statuses_equal_the_commands() -> None:
    reported: dict[str, set[int]] = {}
    for row in rows(HEADING_OF_ENDS):
        if len(row.cells) > 2:
            for name in row.names(0) or [row.cells[0]]:
                reported.setdefault(name, set()).add(int(row.cells[1]))
    assert reported == {
        "any": {commands.NOT_INSTALLED, commands.INTERRUPTED},
        "any but servers": {commands.BROKEN},
        "mqbroker": {1, configcli.WRONG, os.EX_TEMPFAIL},
        "mqnamesrv": {1, configcli.WRONG},
        "mqproxy": {1, configcli.WRONG},
        "mqadmin": {mqadmin.REFUSED, mqadmin.USAGE, mqadmin.UNREACHABLE, mqadmin.UNKNOWN},
        "mqcluster": {
            click.ClickException.exit_code,
            mqcluster.WrongSettings.exit_code,
            mqcluster.Interrupted.exit_code,
        },
        "mqchaos": {*mqchaos.EXIT_OF.values(), mqchaos.EXIT_UNUSABLE} - {0},
        "mqaudit": {EXIT_UNUSABLE, *mqaudit.EXITS.values()},
    }
    assert set(reported) - {"any", "any but servers"} == set(commands.COMMANDS)


def test_quoted_error_texts_occur_in_the_code() -> None:
    """Where nothing is between two gaps (`…`) but some characters, anything has them."""
    texts = []
    for heading, column in ((HEADING_OF_CODES, 1), ("## Exceptions of the Python client", 2)):
        texts += [text for row in rows(heading) if len(row.cells) > 2 for text in row.names(column)]
    for row in rows(HEADING_OF_ENDS):
        texts += row.names(2) if row.cells[0].startswith(("`mq", "any")) else row.names(0)
    assert len(texts) > 60
    parts = {part.strip() for text in texts for part in text.split("…") if not TAG.match(text)}
    code = source(*ROOMS)
    long = [part for part in parts - FOREIGN if len(part) >= QUOTE_MIN]
    strange = [part for part in long if part not in code]
    assert not strange
