"""Runs a sub-command of mqadmin and prints its answer.

Exit status: 0 done; 1 refused, not found, or answered only in part; 2 wrong usage; 3 no answer; 4
it is unknown whether it was done; 130 interrupted. The error is one line on stderr. Ctrl-C is how a
command ends that goes on by itself (`--watch`, `consume --follow`, `top`): that is 0.
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
from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.address import parse_address, parse_address_list
from raftmq.remoting.contexts import NAME_SERVERS, resolve
from raftmq.remoting.errors import ConnectError, RemotingError
from raftmq.remoting.key_file import load_registration_keys
from raftmq.remoting.tls_file import client_tls_of

from . import output
from .command import Arguments, Command, CommandError, Manner, Part, Table
from .credentials import Given, find
from .message_format import escaped
from .terminal import Terminal

REFUSED, USAGE, UNREACHABLE, UNKNOWN, INTERRUPTED = 1, 2, 3, 4, 130
REGISTRATION_KEY_FILE = "RAFTMQ_REGISTRATION_KEY_FILE"  # environment
CLEAR_SCREEN = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command is for. `environment` says how to connect: TLS, keys."""

    name_servers: Sequence[str]
    credentials: Credentials | None
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Printing:
    """How to print an answer (table, json, yaml); again and again if `every_s` is above 0."""

    form: str = "table"
    every_s: float = 0.0


def run(command: Command, values: dict[str, Any], given: Mapping[str, str]) -> int:
    """Run the command with credentials and the context as `given` before it; return the status."""
    account = dict(given)
    context = values.pop("context", None) or account.pop("context", "")
    account.pop("context", None)
    servers = values.pop("namesrvAddr", None)
    try:
        environment = resolve(os.environ, context, servers_given=bool(servers))
        credentials = find(Given(**account), environment)
        name_servers = name_servers_of(servers, environment)
    except ValueError as error:
        return _complain(str(error), USAGE)
    return execute(command, values, Target(name_servers, credentials, environment))


def name_servers_of(given: str | None, environment: Mapping[str, str]) -> list[str]:
    """Return the name servers of `-n`, else of the environment. Raises ValueError."""
    found = given or environment.get(NAME_SERVERS)
    if not found:
        raise ValueError(
            "which name server? Give -n HOST:PORT, set NAMESRV_ADDR, or save a context "
            "(mqadmin context add)"
        )
    name_servers = parse_address_list(found)
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
    except BrokenPipeError:  # who read it has seen enough, as `head` does
        _discard_output()
        return 0


def _discard_output() -> None:
    """Let go of what standard output did not take: the interpreter's end would fail at it, too, and
    give a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _guarded(
    command: Command, arguments: Arguments, target: Target, printing: Printing
) -> int:
    """Run the command; turn what went wrong into a line and a status."""
    try:
        async with Admin(
            target.name_servers, instance_config=await _instance_config(target)
        ) as admin:
            if command.manner.prints:
                status: int = await command.load()(admin, arguments, Terminal())
                return status
            if printing.every_s > 0:
                return await _watch(command, admin, arguments, printing)
            answer: Sequence[Part] = await command.load()(admin, arguments)
            output.write(answer, printing.form)
            return max((_status(part) for part in answer), default=0)
    except Exception as error:
        found = said_of(error, command.manner)
        if found is None:
            raise
        words, status = found
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        return _complain("; ".join([words, *getattr(error, "__notes__", [])]), status)


def _status(part: Part) -> int:
    if not isinstance(part, Table):
        return 0
    return UNKNOWN if part.unknown else 0 if part.complete else REFUSED


async def _watch(command: Command, admin: Admin, arguments: Arguments, printing: Printing) -> int:
    """Print the answer again and again; one that cannot be had is told, and asked for again."""
    clears = printing.form == "table" and sys.stdout.isatty()
    what = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    while True:
        try:
            parts: Sequence[Part] = await command.load()(admin, arguments)
        except Exception as error:
            found = said_of(error, command.manner)
            if found is None or found[1] == USAGE:
                raise
            _complain(*found)
        else:
            if clears:
                now = f"{datetime.now():%H:%M:%S}"
                click.echo(f"{CLEAR_SCREEN}every {printing.every_s:g} s: {what}   {now}\n")
            output.write(parts, printing.form, repeated=True)
        await asyncio.sleep(printing.every_s)


def said_of(error: Exception, manner: Manner) -> tuple[str, int] | None:
    """Return the line and the exit status for an operating error of a command; None: it is a
    bug."""
    if isinstance(error, CommandError):
        return str(error), USAGE if error.usage else REFUSED
    if isinstance(error, ClientError):
        if error.outcome_unknown and manner.only_reads:
            return str(error), UNREACHABLE
        if error.outcome_unknown:
            return f"it is unknown whether this was done: {error}", UNKNOWN
        nobody = isinstance(error, NameServerUnreachable | BrokerUnreachable)
        hint = "; topicList shows the topics, updateTopic makes one"
        words = f"{error}{hint if isinstance(error, NoRoute) else ''}"
        return words, UNREACHABLE if nobody else REFUSED
    if isinstance(error, RemotingError):  # an answer that cannot be read
        return str(error), REFUSED
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), REFUSED
    if isinstance(error, ValueError):  # a value that the client does not accept
        return str(error), USAGE
    return None


async def _instance_config(target: Target) -> InstanceConfig:
    """Read the files that say how to connect. Raises TlsError, ValueError."""
    tls = await asyncio.to_thread(client_tls_of, target.environment)
    path = target.environment.get(REGISTRATION_KEY_FILE, "")
    keys = await asyncio.to_thread(load_registration_keys, path, REGISTRATION_KEY_FILE)
    return InstanceConfig(
        credentials=target.credentials, tls=tls, registration_key=keys[0] if keys else b""
    )


def _complain(message: str, status: int) -> int:
    click.echo(f"mqadmin: {escaped(' '.join(message.split()))}", err=True)
    return status
