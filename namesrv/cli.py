"""The command `mqnamesrv`: run one name server until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Any

import click
import uvloop

from raftmq import __version__
from raftmq.namesrv.config import OPTIONS, ConfigError, NameServerConfig, load
from raftmq.namesrv.health import health
from raftmq.namesrv.server import NameServer
from raftmq.ops.configcli import WRONG, config_commands
from raftmq.ops.logs import set_up
from raftmq.ops.memory import return_large_blocks
from raftmq.ops.permissions import keep_from_others, warn_if_others_read
from raftmq.remoting.errors import RemotingError
from raftmq.web.auth import WebConfigError

LOG = logging.getLogger("raftmq.namesrv")
LOG_LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, prog_name="mqnamesrv")
@click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False), metavar="FILE",
    help="namesrv.toml, or properties. Keys: docs/configuration.md.",
)  # fmt: skip
@click.option(
    "-p", "--listen-port", type=int, metavar="PORT",
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
@click.option(
    "--frame-size-max", metavar="BYTES",
    help="Largest request taken; a larger one closes its connection. [frameSizeMax: 64MiB]",
)  # fmt: skip
@click.option("--log-level", type=LOG_LEVELS, help="What to log, on stderr. [logLevel: INFO]")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Override one key of the configuration; may be repeated.",
)  # fmt: skip
@click.pass_context
def main(
    context: click.Context,
    path: str | None,
    listen_port: int | None,
    bind: str | None,
    store: str | None,
    frame_size_max: str | None,
    log_level: str | None,
    settings: tuple[str, ...],
) -> None:
    """Run a name server: the phone book of a RocketMQ cluster.

    Brokers register here and say which topics they have; producers and consumers ask here where
    a topic lives. Give every broker and client the addresses of all name servers, as
    "host1:9876;host2:9876": name servers do not know each other.

    Environment variables override the file: RAFTMQ_LISTEN_PORT=9877 is listenPort, and so on.
    Options override both. Ends in order on SIGTERM or Ctrl-C.
    """
    keep_from_others()
    if context.invoked_subcommand is not None:
        return
    own = {
        "listenPort": listen_port,
        "bindAddress": bind,
        "storePath": store,
        "frameSizeMax": frame_size_max,
        "logLevel": log_level and log_level.upper(),
    }
    overrides = [f"{key}={value}" for key, value in own.items() if value is not None]
    try:
        loaded = load(path, [*overrides, *settings], os.environ)
    except ConfigError as error:
        click.echo(f"mqnamesrv: {error}", err=True)
        sys.exit(WRONG)
    config = loaded.config
    where = {"service": "namesrv", "node": f"{config.bind}:{config.port}"}
    set_up(config.log_format, config.log_level, where, peer_lines_per_s=config.log_peer_lines_per_s)
    return_large_blocks()
    if "bind" not in loaded.places:
        LOG.warning(
            "serves_this_machine_only bindAddress=%s: there are no accounts (aclEnable) and no"
            " bindAddress",
            config.bind,
        )
    if config.acl_enable:
        warn_if_others_read(config.acl_file, "it holds the accounts' secrets")
    sys.exit(uvloop.run(run(config)))


main.add_command(config_commands("mqnamesrv", OPTIONS, load), "config")
main.add_command(health)


async def run(config: NameServerConfig) -> int:
    """Run the name server until it is told to stop; return the process's exit status."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        if not stop.done():
            stop.set_result(status)

    def broken(running: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        running.default_exception_handler(context)
        if isinstance(context.get("exception"), AssertionError):
            end(70)  # a broken invariant: wrong is worse than down

    loop.set_exception_handler(broken)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)
    server = NameServer(config)
    try:
        await server.start()
    except (OSError, RemotingError, WebConfigError) as error:
        where = f"{config.bind}:{config.port}"
        click.echo(f"mqnamesrv: cannot start on {where}: {error}", err=True)
        await server.stop()
        return 1
    click.echo(f"The Name Server boot success. serializeType=JSON, address {server.address}")
    if server.http is not None:
        click.echo(f"Dashboard and HTTP API: {server.http.url}")
    sys.stdout.flush()
    status = await stop
    LOG.info("name_server_stops")
    await server.stop()
    return status


if __name__ == "__main__":
    main()
