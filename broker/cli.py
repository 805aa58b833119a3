"""The command line of `mqbroker`.

Implementations are imported when needed (broker.process, broker.backup.commands,
broker.rescue.commands), so that `--help` and shell completion stay fast.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from raftmq import __version__
from raftmq.ops.config_cli import config_commands
from raftmq.ops.interpreter import version_option, without_gc

from .backup.cli import backup, restore, verify
from .health import health
from .rescue.cli import rescue

GRPC_PORT = 8081  # of Apache's proxies


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@version_option("mqbroker", __version__)
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(dir_okay=False),
    help="broker.toml, or broker.conf in Apache RocketMQ's format.",
)
@click.option("-n", "--namesrvAddr", "name_servers", help="Name servers, host:port;host:port.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one key of the configuration; may be repeated.",
)
@click.option(
    "-p", "--print-config", "printed", flag_value="all", help="Print all keys' values and exit."
)
@click.option("-m", "printed", flag_value="set", help="Print the values that were set and exit.")
@click.option(
    "--enable-proxy", is_flag=True, help=f"The same as --set grpcPort={GRPC_PORT}, as at Apache's."
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="The same as --set logLevel=LEVEL.",
)
@click.pass_context
def main(context: click.Context, /, **given: Any) -> None:
    """Run one broker: a replica of a Raft group that speaks RocketMQ's protocol.

    \b
    Example, three replicas on one machine, each with a port and a store of its own:
      peers='n0-127.0.0.1:40911;n1-127.0.0.1:40921;n2-127.0.0.1:40931'
      raft="--set enableDLegerCommitLog=true --set dLegerPeers=$peers"
      mqbroker $raft --set dLegerSelfId=n0 --set listenPort=10911 --set storePathRootDir=n0/store &
      mqbroker $raft --set dLegerSelfId=n1 --set listenPort=10921 --set storePathRootDir=n1/store &
      mqbroker $raft --set dLegerSelfId=n2 --set listenPort=10931 --set storePathRootDir=n2/store &

    Common settings may stand in a file: mqbroker -c broker.conf --set dLegerSelfId=n0 …

    Environment variables override the file: RAFTMQ_LISTEN_PORT=10921 is listenPort, and so on
    (docs/configuration.md has all keys). --set overrides both.

    SIGTERM or SIGINT stop it in an orderly way: leadership is handed over, log and tables are
    written to disk.
    """
    from raftmq.ops.permissions import keep_from_others

    keep_from_others()
    if given.pop("enable_proxy"):
        given["settings"] = (f"grpcPort={GRPC_PORT}", *given["settings"])
    if context.invoked_subcommand is None:
        with without_gc():
            from .process import serve

        sys.exit(serve(**given, machine_of=context.obj))


main.add_command(
    config_commands("mqbroker", "raftmq.broker.config", "raftmq.broker.startup"), "config"
)
main.add_command(health)
main.add_command(backup)
main.add_command(verify)
main.add_command(restore)
main.add_command(rescue)


if __name__ == "__main__":
    main()
