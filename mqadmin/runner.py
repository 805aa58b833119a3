"""Runs a sub-command of mqadmin and prints its answer.

Exit status is 0 for success; 1 for a rejected request, a missing object or a partial answer; 2 for
wrong usage; 3 without an answer; 4 for an unknown outcome; 5 if a later run has to continue; 130 if
interrupted. Errors are a line on stderr. Ctrl-C ends `--watch`, `consume --follow` and `top` with
status 0.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from raftmq.client.admin import Admin
from raftmq.client.errors import BrokerUnreachable, ClientError, NameServerUnreachable, NoRoute
from raftmq.client.instance import InstanceConfig
from raftmq.remoting.acl.account_file import parse_credentials
from raftmq.remoting.acl.signature import Credentials, credentials_of_environment
from raftmq.remoting.address import parse_address, parse_address_list
from raftmq.remoting.contexts import NAME_SERVERS, resolve
from raftmq.remoting.errors import ConnectError, RemotingError
from raftmq.remoting.registration_proof import load_registration_keys
from raftmq.remoting.tls_file import client_tls_of

from . import output
from .command import Arguments, Command, CommandError, Manner, Section, Table
from .message_format import escaped
from .terminal import Terminal

REFUSED, USAGE, UNREACHABLE, UNKNOWN, LATER, INTERRUPTED = 1, 2, 3, 4, 5, 130
REGISTRATION_KEY_FILE = "RAFTMQ_REGISTRATION_KEY_FILE"  # environment
HOME = "ROCKETMQ_HOME"
TOOLS_FILE = Path("conf") / "tools.yml"
CLEAR_SCREEN = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster of a command. `environment` has the settings of TLS and keys."""

    name_servers: Sequence[str]
    credentials: Credentials | None
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Printing:
    """The output format, and the period of a repeated command or 0."""

    form: str = "table"
    every_s: float = 0.0


def run(command: Command, values: dict[str, Any], given: Mapping[str, str]) -> int:
    """Run the command with the credentials and the context in `given`; return the exit status."""
    account = dict(given)
    context = values.pop("context", None) or account.pop("context", "")
    account.pop("context", None)
    servers = values.pop("namesrvAddr", None)
    try:
        environment = resolve(os.environ, context, servers_given=bool(servers))
        credentials = find_credentials(CredentialFlags(**account), environment)
        name_servers = name_servers_of(servers, environment)
    except ValueError as error:
        return _complain(str(error), USAGE)
    return execute(command, values, Target(name_servers, credentials, environment))


def name_servers_of(given: str | None, environment: Mapping[str, str]) -> list[str]:
    """Return the name servers of `-n` or of the environment. Raises ValueError."""
    result = given or environment.get(NAME_SERVERS)
    if not result:
        raise ValueError(
            "which name server? Give -n HOST:PORT, set NAMESRV_ADDR, or save a context "
            "(mqadmin context add)"
        )
    name_servers = parse_address_list(result)
    try:
        for address in name_servers:
            parse_address(address)
    except ConnectError as error:
        raise ValueError(f"-n: {error}") from None
    return name_servers


def execute(command: Command, values: dict[str, Any], target: Target) -> int:
    """Run the command and print its answer, once or repeatedly; return the status."""
    form = "json" if values.get("json") else values.pop("output", "table")
    printing = Printing(form, values.pop("watch", None) or values.get("interval") or 0)
    try:
        return asyncio.run(_guarded(command, Arguments(values), target, printing))
    except KeyboardInterrupt:
        if printing.every_s > 0:
            return 0
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        _discard_output()
        return 0


def _discard_output() -> None:
    """Redirect standard output, so that the interpreter's exit does not flush into a closed pipe
    and fail with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _guarded(
    command: Command, arguments: Arguments, target: Target, printing: Printing
) -> int:
    """Run the command; report errors as a line and a status."""
    try:
        async with Admin(
            target.name_servers, instance_config=await _instance_config(target)
        ) as admin:
            if command.manner.prints:
                status: int = await command.load()(admin, arguments, Terminal())
                return status
            if printing.every_s > 0:
                return await _watch(command, admin, arguments, printing)
            answer: Sequence[Section] = await command.load()(admin, arguments)
            output.write(answer, printing.form)
            return max((_status(section) for section in answer), default=0)
    except Exception as error:
        result = describe(error, command.manner)
        if result is None:
            raise
        text, status = result
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        return _complain("; ".join([text, *getattr(error, "__notes__", [])]), status)


def _status(section: Section) -> int:
    if not isinstance(section, Table):
        return 0
    if section.unknown or section.later:
        return UNKNOWN if section.unknown else LATER
    return 0 if section.complete else REFUSED


async def _watch(command: Command, admin: Admin, arguments: Arguments, printing: Printing) -> int:
    """Print the answer repeatedly; a failed request is reported and repeated."""
    clears = printing.form == "table" and sys.stdout.isatty()
    subject = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    while True:
        try:
            sections: Sequence[Section] = await command.load()(admin, arguments)
        except Exception as error:
            result = describe(error, command.manner)
            if result is None or result[1] == USAGE:
                raise
            _complain(*result)
        else:
            if clears:
                now = f"{datetime.now():%H:%M:%S}"
                click.echo(f"{CLEAR_SCREEN}every {printing.every_s:g} s: {subject}   {now}\n")
            output.write(sections, printing.form, repeated=True)
        await asyncio.sleep(printing.every_s)


def describe(error: Exception, manner: Manner) -> tuple[str, int] | None:
    """Return the message and the exit status of an operating error, or None for a bug."""
    if isinstance(error, CommandError):
        return str(error), USAGE if error.usage else REFUSED
    if isinstance(error, ClientError):
        if error.outcome_unknown and manner.only_reads:
            return str(error), UNREACHABLE
        if error.outcome_unknown:
            return f"it is unknown whether this was done: {error}", UNKNOWN
        nobody = isinstance(error, NameServerUnreachable | BrokerUnreachable)
        hint = "; topicList shows the topics, updateTopic makes one"
        text = f"{error}{hint if isinstance(error, NoRoute) else ''}"
        return text, UNREACHABLE if nobody else REFUSED
    if isinstance(error, RemotingError):  # an invalid answer
        return str(error), REFUSED
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), REFUSED
    if isinstance(error, ValueError):  # a value that the client rejects
        return str(error), USAGE
    return None


async def _instance_config(target: Target) -> InstanceConfig:
    """Read the files with the connection settings. Raises TlsError, ValueError."""
    tls = await asyncio.to_thread(client_tls_of, target.environment)
    path = target.environment.get(REGISTRATION_KEY_FILE, "")
    keys = await asyncio.to_thread(load_registration_keys, path, REGISTRATION_KEY_FILE)
    return InstanceConfig(
        credentials=target.credentials, tls=tls, registration_key=keys[0] if keys else b""
    )


def _complain(message: str, status: int) -> int:
    click.echo(f"mqadmin: {escaped(' '.join(message.split()))}", err=True)
    return status


@dataclass(frozen=True, slots=True)
class CredentialFlags:
    """The credentials on the command line, "" if missing."""

    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    tools_file: str = ""


def find_credentials(given: CredentialFlags, environment: Mapping[str, str]) -> Credentials | None:
    """Return the first credentials, or None. Blocking. Raises ValueError without a secret."""
    if given.access_key or given.secret_key:
        token = given.security_token or None
        return Credentials(given.access_key, given.secret_key, token)
    if given.tools_file:
        return _read_tools_file(Path(given.tools_file))
    result = credentials_of_environment(environment)
    if result is not None:
        return result
    home = environment.get(HOME)
    path = Path(home) / TOOLS_FILE if home else TOOLS_FILE
    return _read_tools_file(path) if path.exists() else None


def _read_tools_file(path: Path) -> Credentials:
    try:
        return parse_credentials(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {type(error).__name__}") from None
    except RemotingError as error:
        raise ValueError(f"{path}: {error}") from None
