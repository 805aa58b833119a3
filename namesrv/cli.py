"""The command line of `mqnamesrv`.

The server is imported only to run (namesrv.process), so `--help` is fast.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from raftmq import __version__
from raftmq.ops.config_cli import config_commands
from raftmq.ops.interpreter import version_option, without_gc

from .health import health

LOG_LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@version_option("mqnamesrv", __version__)
@click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False), metavar="FILE",
    help="namesrv.toml, or properties. Keys: docs/configuration.md.",
)  # fmt: skip
@click.option(
    "-p", "--print-config", is_flag=True, help="Print all keys' values and exit.",
)  # fmt: skip
@click.option(
    "--listen-port", type=int, metavar="PORT",
    help="TCP port that brokers and clients connect to; 0 takes any free one. [listenPort: 9876]",
)  # fmt: skip
@click.option(
    "--bind", metavar="HOST",
    help="Address or name to listen on; 0.0.0.0: all of this machine's. [bindAddress: 127.0.0.1, "
    "with accounts (aclEnable) 0.0.0.0]",
)  # fmt: skip
@click.option(
    "--store", type=click.Path(file_okay=False), metavar="DIR",
    help="Directory for the key-value configuration. Without it that is lost at exit; "
    "routes never need a file, brokers bring them. [storePath]",
)  # fmt: skip
@click.option("--log-level", type=LOG_LEVELS, help="What to log, on stderr. [logLevel: INFO]")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Override one key of the configuration; may be repeated.",
)  # fmt: skip
@click.pass_context
def main(context: click.Context, /, **given: Any) -> None:
    """Run a name server, the directory of a RocketMQ cluster.

    Brokers register their topics here, and producers and consumers look up the brokers of a topic.
    Give every broker and client the addresses of all name servers, as "host1:9876;host2:9876",
    because name servers do not communicate.

    Environment variables override the file (RAFTMQ_LISTEN_PORT=9877 sets listenPort), and options
    override both. SIGTERM and Ctrl-C stop the name server in order.
    """
    from raftmq.ops.permissions import keep_from_others

    keep_from_others()
    if context.invoked_subcommand is None:
        with without_gc():
            from .process import serve

        sys.exit(serve(**given))


main.add_command(
    config_commands("mqnamesrv", "raftmq.namesrv.config", "raftmq.namesrv.server"), "config"
)
main.add_command(health)


if __name__ == "__main__":
    main()
