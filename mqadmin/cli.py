"""mqadmin's command line: Apache's sub-commands and flags, made from their declarations.

What runs them is in mqadmin.work, imported when one runs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from raftmq import __version__
from raftmq.mqadmin.command import Command, Flag, Kind, parse_time
from raftmq.mqadmin.commands import COMMANDS

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
    ctx.obj = given


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
        from raftmq.mqadmin.work import run

        sys.exit(run(command, values, click.get_current_context().obj or {}))

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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


for _command in COMMANDS:
    main.add_command(_clicked(_command))
