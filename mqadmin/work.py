"""Runs a sub-command of mqadmin and prints its answer.

Exit status: 0 done; 1 refused, or not found; 2 wrong usage; 3 no answer; 4 it is unknown whether it
was done. The error is one line on stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from raftmq.client.admin import Admin
from raftmq.client.errors import BrokerUnreachable, ClientError, NameServerUnreachable
from raftmq.client.instance import InstanceConfig
from raftmq.mqadmin import output
from raftmq.mqadmin.command import Arguments, Command, CommandError, Part
from raftmq.mqadmin.credentials import Given, find
from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.address import parse_address, parse_address_list
from raftmq.remoting.errors import ConnectError, RemotingError
from raftmq.remoting.keyfile import load_registration_keys
from raftmq.remoting.tlsfile import client_tls_of

REFUSED, USAGE, UNREACHABLE, UNKNOWN = 1, 2, 3, 4
REGISTRATION_KEY_FILE = "RAFTMQ_REGISTRATION_KEY_FILE"  # environment


def run(command: Command, values: dict[str, Any], given: Mapping[str, str]) -> int:
    """Run the command with credentials as `given` on the command line; return the exit status."""
    try:
        credentials = find(Given(**given), os.environ)
    except ValueError as error:
        return _complain(str(error), USAGE)
    return execute(command, values, credentials)


def execute(
    command: Command, values: dict[str, Any], credentials: Credentials | None = None
) -> int:
    """Run the command and print its answer, repeatedly with `--interval`; return the status."""
    namesrv = values.pop("namesrvAddr", None)
    wants_json = values.pop("json")
    interval_s = values.get("interval") or 0
    while True:
        status = _once(command, namesrv, values, wants_json, credentials)
        if interval_s <= 0 or status == USAGE:
            return status
        time.sleep(interval_s)


def _once(
    command: Command,
    namesrv: str | None,
    values: dict[str, Any],
    wants_json: bool,
    credentials: Credentials | None,
) -> int:
    if not namesrv:
        return _complain("which name server? Give -n HOST:PORT, or set NAMESRV_ADDR", USAGE)
    name_servers = parse_address_list(namesrv)
    try:
        for address in name_servers:
            parse_address(address)
    except ConnectError as error:
        return _complain(f"-n: {error}", USAGE)
    try:
        parts = asyncio.run(_answer(command, name_servers, Arguments(values), credentials))
    except CommandError as error:
        return _complain(str(error), USAGE if error.usage else REFUSED)
    except ClientError as error:
        if error.outcome_unknown:
            return _complain(f"it is unknown whether this was done: {error}", UNKNOWN)
        nobody = isinstance(error, NameServerUnreachable | BrokerUnreachable)
        return _complain(str(error), UNREACHABLE if nobody else REFUSED)
    except RemotingError as error:  # an answer that cannot be read
        return _complain(str(error), REFUSED)
    except ValueError as error:  # a value that the client does not accept
        return _complain(str(error), USAGE)
    if wants_json:
        sys.stdout.buffer.write(output.as_json(parts) + b"\n")
        sys.stdout.buffer.flush()
    else:
        output.show(parts, output.make_console())
    return 0


async def _answer(
    command: Command,
    namesrv: Sequence[str],
    arguments: Arguments,
    credentials: Credentials | None,
) -> Sequence[Part]:
    tls = await asyncio.to_thread(client_tls_of, os.environ)
    path = os.environ.get(REGISTRATION_KEY_FILE, "")
    keys = await asyncio.to_thread(load_registration_keys, path, REGISTRATION_KEY_FILE)
    config = InstanceConfig(
        credentials=credentials, tls=tls, registration_key=keys[0] if keys else b""
    )
    async with Admin(namesrv, instance_config=config) as admin:
        return await command.load()(admin, arguments)


def _complain(message: str, status: int) -> int:
    click.echo(f"mqadmin: {message}", err=True)
    return status
