"""mqadmin's command line: Apache's sub-commands and flags, made from their declarations.

Exit status: 0 done; 1 refused, or not found; 2 wrong usage; 3 no answer; 4 it is unknown whether it
was done. The error is one line on stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from raftmq import __version__
from raftmq.client.admin import Admin
from raftmq.client.errors import BrokerUnreachable, ClientError, NameServerUnreachable
from raftmq.client.instance import InstanceConfig
from raftmq.mqadmin import output
from raftmq.mqadmin.command import Arguments, Command, CommandError, Flag, Kind, Part, parse_time
from raftmq.mqadmin.commands import COMMANDS
from raftmq.mqadmin.credentials import Given, find
from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.address import parse_address, parse_address_list
from raftmq.remoting.errors import ConnectError, RemotingError
from raftmq.remoting.keyfile import load_registration_keys
from raftmq.remoting.tlsfile import client_tls_of

REFUSED, USAGE, UNREACHABLE, UNKNOWN = 1, 2, 3, 4
REGISTRATION_KEY_FILE = "RAFTMQ_REGISTRATION_KEY_FILE"  # environment
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Time(click.ParamType):  # type: ignore[type-arg]  # it has one from click 8.4 on
    """A time: `now`, milliseconds, or a local time."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return value if isinstance(value, int) else parse_time(str(value), _now_ms())
        except ValueError as error:
            self.fail(str(error), param, ctx)


TYPES: dict[Kind, Any] = {
    Kind.TEXT: click.STRING,
    Kind.INTEGER: click.INT,
    Kind.BOOLEAN: click.BOOL,
    Kind.TIME: Time(),
}


class Commands(click.Group):
    """Finds sub-commands by name, ignoring case, as Apache's mqadmin does."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        names = {name.lower(): name for name in self.commands}
        return super().get_command(ctx, names.get(cmd_name.lower(), cmd_name))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="mqadmin")
@click.option("--accessKey", "access_key", default="", help="Sign requests: the account,")
@click.option("--secretKey", "secret_key", default="", help="and its secret.")
@click.option("--securityToken", "security_token", default="", help="The token, if there is one.")
@click.option(
    "--toolsFile", "tools_file", default="", metavar="FILE",
    help="Read them there, as Apache's conf/tools.yml has them.",
)  # fmt: skip
@click.pass_context
def main(ctx: click.Context, /, **given: str) -> None:
    """Administer a RocketMQ-compatible cluster: ours or Apache's.

    \b
      mqadmin clusterList -n 127.0.0.1:9876
      mqadmin help resetOffsetByTime

    For clusters with access control, requests are signed with the first credentials found: from the
    flags below, given before the sub-command; from the variables RAFTMQ_ACCESS_KEY,
    RAFTMQ_SECRET_KEY and RAFTMQ_SECURITY_TOKEN; from $ROCKETMQ_HOME/conf/tools.yml.
    """
    ctx.obj = Given(**given)


@main.command("help", help="Say what a sub-command does and which flags it has.")
@click.argument("command", required=False)
@click.pass_context
def help_command(ctx: click.Context, command: str | None) -> None:
    parent = ctx.parent
    assert parent is not None
    if command is None:
        click.echo(main.get_help(parent))
        return
    found = main.get_command(parent, command)
    if found is None:
        raise click.UsageError(f"there is no sub-command {command!r}; see: mqadmin help")
    with click.Context(found, info_name=found.name, parent=parent) as context:
        click.echo(found.get_help(context))


def _clicked(command: Command) -> click.Command:
    parameters: list[click.Parameter] = [
        click.Option(
            ["-n", "--namesrvAddr", "namesrvAddr"],
            envvar="NAMESRV_ADDR",
            metavar="HOST:PORT[;…]",
            help="Name servers; or the variable NAMESRV_ADDR.",
        ),
        *(_option(flag) for flag in command.flags),
        click.Option(["--json", "json"], is_flag=True, help="Print JSON instead of tables."),
    ]

    def call(**values: Any) -> None:
        given = click.get_current_context().obj
        try:
            credentials = find(given or Given(), os.environ)
        except ValueError as error:
            sys.exit(_complain(str(error), USAGE))
        sys.exit(execute(command, values, credentials))

    return click.Command(
        command.name, callback=call, params=parameters, help=command.doc, context_settings=CONTEXT
    )


def _option(flag: Flag) -> click.Option:
    names = [f"-{flag.short}"] if flag.short else []
    names += [f"--{flag.long}", flag.long]
    if flag.kind is Kind.SWITCH:
        return click.Option(names, is_flag=True, help=flag.doc)
    # Click takes an explicit default of None for a value, and would not require the option.
    default = {} if flag.default is None else {"default": flag.default, "show_default": True}
    return click.Option(
        names, type=TYPES[flag.kind], required=flag.required, help=flag.doc, **default
    )


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
        return await command.run(admin, arguments)


def _complain(message: str, status: int) -> int:
    click.echo(f"mqadmin: {message}", err=True)
    return status


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


for _command in COMMANDS:
    main.add_command(_clicked(_command))
