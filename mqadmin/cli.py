"""mqadmin's command line, made from the declarations of sub-commands.

mqadmin.runner executes them and is imported for a command that runs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from raftmq import __version__
from raftmq.ops.interpreter import version_option, without_gc

from .command import Command, Flag, Kind, Manner, Positional, parse_time
from .commands import COMMANDS
from .completion import completion_command
from .context import complete_context, context_group

INTERRUPTED = 130  # exit status
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Time(click.ParamType):  # type: ignore[type-arg]  # it has one from click 8.4 on
    """A time as `now`, milliseconds, or a local time."""

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
    Kind.NUMBER: click.FLOAT,
}


class Commands(click.Group):
    """Finds sub-commands by name, ignoring case, as Apache's mqadmin does."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        names = {name.lower(): name for name in self.commands}
        return super().get_command(ctx, names.get(cmd_name.lower(), cmd_name))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=Commands, context_settings=CONTEXT)
@version_option("mqadmin", __version__)
@click.option("--accessKey", "access_key", default="", help="Sign requests: the account,")
@click.option("--secretKey", "secret_key", default="", help="and its secret.")
@click.option("--securityToken", "security_token", default="", help="The token, if there is one.")
@click.option(
    "--toolsFile", "tools_file", default="", metavar="FILE",
    help="Read them there, as Apache's conf/tools.yml has them.",
)  # fmt: skip
@click.option(
    "--context", default="", metavar="NAME", shell_complete=complete_context,
    help="The saved context to use.",
)  # fmt: skip
@click.pass_context
def main(ctx: click.Context, /, **given: str) -> None:
    """Administer a RocketMQ-compatible cluster, ours or Apache's.

    \b
      mqadmin clusterList -n 127.0.0.1:9876
      mqadmin context add prod -n 10.0.0.1:9876 --use
      mqadmin consume orders --follow
      mqadmin help resetOffsetByTime

    For clusters with access control, requests are signed with the first credentials found, in this
    order: the flags below, before the sub-command; the context of --context; the variables
    RAFTMQ_ACCESS_KEY, RAFTMQ_SECRET_KEY and RAFTMQ_SECURITY_TOKEN; the default context;
    $ROCKETMQ_HOME/conf/tools.yml.
    """
    ctx.obj = given


@main.command("help", help="Show the description and the flags of a sub-command.")
@click.argument("command", required=False)
@click.pass_context
def help_command(ctx: click.Context, command: str | None) -> None:
    parent = ctx.parent
    assert parent is not None
    if command is None:
        click.echo(main.get_help(parent))
        return
    result = main.get_command(parent, command)
    if result is None:
        raise click.UsageError(f"there is no sub-command {command!r}; see: mqadmin help")
    with click.Context(result, info_name=result.name, parent=parent) as context:
        click.echo(result.get_help(context))


def _clicked(command: Command) -> click.Command:
    parameters: list[click.Parameter] = [
        click.Option(
            ["-n", "--namesrvAddr", "namesrvAddr"],
            metavar="HOST:PORT[;…]",
            help="Name servers; or the variable NAMESRV_ADDR, or a context's.",
        ),
        *(_option(flag) for flag in command.flags),
        *(_argument(positional) for positional in command.positionals),
        *_common(command),
    ]

    def call(**values: Any) -> None:
        try:
            with without_gc():
                from .runner import run

            sys.exit(run(command, values, click.get_current_context().obj or {}))
        except KeyboardInterrupt:  # during its import, or a second Ctrl-C
            sys.exit(INTERRUPTED)

    return click.Command(
        command.name, callback=call, params=parameters, help=command.doc, context_settings=CONTEXT
    )


def _common(command: Command) -> list[click.Option]:
    """Return the options of all commands, and of answers if the command has an answer."""
    result = [
        click.Option(
            ["--context", "context"],
            metavar="NAME",
            help="The saved context to use; see: mqadmin context.",
            shell_complete=complete_context,
        )
    ]
    if command.manner.prints:
        return result
    # A flag -o of Apache's command keeps its meaning.
    short = [] if any(flag.short == "o" for flag in command.flags) else ["-o"]
    result += [
        click.Option(
            [*short, "--output", "output"],
            type=click.Choice(("table", "json", "yaml")),
            default="table",
            help="How to print the answer.",
        ),
        click.Option(["--json", "json"], is_flag=True, help="The same as --output json."),
    ]
    if command.manner is Manner.READS:
        result.append(
            click.Option(
                ["--watch", "watch"],
                metavar="SECONDS",
                type=click.FloatRange(0.1),
                help="Ask again and again, after so many seconds, until Ctrl-C.",
            )
        )
    return result


def _option(flag: Flag) -> click.Option:
    names = [f"-{flag.short}"] if flag.short else []
    names += [f"--{flag.long}", flag.long]
    if flag.kind is Kind.SWITCH:
        return click.Option(names, is_flag=True, help=flag.doc)
    # Click would take an explicit default of None as a value, and not require the option.
    default = {} if flag.default is None else {"default": flag.default, "show_default": True}
    kind = click.Choice(flag.choices) if flag.choices else TYPES[flag.kind]
    return click.Option(
        names, type=kind, required=flag.required, help=flag.doc, multiple=flag.repeated, **default
    )


def _argument(positional: Positional) -> click.Argument:
    if positional.repeated:
        return click.Argument([positional.name], nargs=-1, metavar=f"[{positional.name.upper()}]…")
    return click.Argument([positional.name], metavar=positional.name.upper())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


main.add_command(context_group)
main.add_command(completion_command)
for _command in COMMANDS:
    main.add_command(_clicked(_command))
