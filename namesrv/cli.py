"""The command `mqnamesrv`: run one name server until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any

import click
import uvloop

from namesrv.server import FRAME_SIZE_BYTES_MAX, NameServer, NameServerConfig
from remoting.errors import RemotingError

LOG = logging.getLogger("namesrv")
LOG_LEVELS = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "-p", "--listen-port", type=click.IntRange(0, 65535), default=9876, metavar="PORT",
    help="TCP port that brokers and clients connect to; 0 takes any free one.",
)  # fmt: skip
@click.option(
    "--bind", default="0.0.0.0", metavar="HOST",
    help="Address or name to listen on; 127.0.0.1 keeps it on this machine.",
)  # fmt: skip
@click.option(
    "--store", type=click.Path(file_okay=False), default=None, metavar="DIR",
    help="Directory for the key-value configuration. Without it that is lost at exit; "
    "routes never need a file, brokers bring them.",
)  # fmt: skip
@click.option(
    "--frame-size-max", type=click.IntRange(1024, 1 << 30), default=FRAME_SIZE_BYTES_MAX,
    metavar="BYTES", help="Largest request taken; a larger one closes its connection.",
)  # fmt: skip
@click.option("--log-level", type=LOG_LEVELS, default="info", help="What to log, on stderr.")
def main(
    listen_port: int, bind: str, store: str | None, frame_size_max: int, log_level: str
) -> None:
    """Run a name server: the phone book of a RocketMQ cluster.

    Brokers register here and say which topics they have; producers and consumers ask here where
    a topic lives. Give every broker and client the addresses of all name servers, as
    "host1:9876;host2:9876": name servers do not know each other.

    Ends in order on SIGTERM or Ctrl-C.
    """
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    config = NameServerConfig(bind, listen_port, store, frame_size_max=frame_size_max)
    sys.exit(uvloop.run(run(config)))


async def run(config: NameServerConfig) -> int:
    """The whole process; returns its exit status."""
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
    except (OSError, RemotingError) as error:
        where = f"{config.bind}:{config.port}"
        click.echo(f"mqnamesrv: cannot start on {where}: {error}", err=True)
        await server.stop()
        return 1
    click.echo(f"The Name Server boot success. serializeType=JSON, address {server.address}")
    sys.stdout.flush()
    status = await stop
    LOG.info("name_server_stops")
    await server.stop()
    return status


if __name__ == "__main__":
    main()
