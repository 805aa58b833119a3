"""The command line of `mqproxy`.

The server is imported only to run (proxy.process), so `--help` is fast.
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
@version_option("mqproxy", __version__)
@click.option(
    "-c", "-pc", "--config", "path", type=click.Path(dir_okay=False), metavar="FILE",
    help="proxy.toml, rmq-proxy.json, or properties. Keys: docs/proxy.md.",
)  # fmt: skip
@click.option(
    "-pm", "mode", type=click.Choice(["cluster"], case_sensitive=False), expose_value=False,
    help="Apache's proxy mode; mqproxy serves a cluster. A broker with grpcPort starts its own "
    "proxy.",
)  # fmt: skip
@click.option(
    "-n", "--namesrv", metavar="HOST:PORT;…",
    help="The name servers of the cluster. [namesrvAddr: 127.0.0.1:9876]",
)  # fmt: skip
@click.option(
    "-p", "--grpc-port", type=int, metavar="PORT",
    help="TCP port that clients connect to; 0 takes any free one. [grpcServerPort: 8081]",
)  # fmt: skip
@click.option(
    "--bind", metavar="HOST",
    help="Address or name to listen on; 0.0.0.0: all of this machine's. [bindAddress: 127.0.0.1, "
    "with accounts (aclEnable) 0.0.0.0]",
)  # fmt: skip
@click.option("--log-level", type=LOG_LEVELS, help="What to log, on stderr. [logLevel: INFO]")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Override one key of the configuration; may be repeated.",
)  # fmt: skip
# Set by a broker that starts its own proxy
@click.option("--while-stdin-is-open", is_flag=True, hidden=True)
@click.pass_context
def main(context: click.Context, /, **given: Any) -> None:
    """Run a proxy, the endpoint of RocketMQ 5's gRPC clients.

    Every proxy of a cluster serves all clients, so give clients the addresses of all proxies, as
    "host1:8081;host2:8081".

    Environment variables override the file (RAFTMQ_GRPC_SERVER_PORT=8082 sets grpcServerPort), and
    options override both. SIGTERM and Ctrl-C stop the proxy in order.
    """
    from raftmq.ops.permissions import keep_from_others

    keep_from_others()
    if context.invoked_subcommand is None:
        with without_gc():
            from .process import serve

        sys.exit(serve(**given))


main.add_command(config_commands("mqproxy", "raftmq.proxy.config", "raftmq.proxy.server"), "config")
main.add_command(health)


if __name__ == "__main__":
    main()
