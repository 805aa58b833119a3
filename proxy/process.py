"""A proxy process, from its configuration to its exit status."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

import click
import uvloop

from raftmq.ops.config_cli import WRONG
from raftmq.ops.descriptors import raise_descriptor_limit
from raftmq.ops.logs import report_configuration, set_up
from raftmq.ops.permissions import warn_if_others_read
from raftmq.remoting.errors import RemotingError
from raftmq.web.settings import WebConfigError

from .config import ConfigError, ProxyConfig, load
from .server import ProxyServer

LOG = logging.getLogger("raftmq.proxy")


def serve(
    path: str | None,
    namesrv: str | None,
    grpc_port: int | None,
    bind: str | None,
    log_level: str | None,
    settings: tuple[str, ...],
    while_stdin_is_open: bool = False,
) -> int:
    """Run the proxy with the options of `mqproxy`; return the exit status. A broker's own proxy
    ends with the broker, when its standard input closes."""
    own = {
        "namesrvAddr": namesrv,
        "grpcServerPort": grpc_port,
        "bindAddress": bind,
        "logLevel": log_level and log_level.upper(),
    }
    overrides = [f"{key}={value}" for key, value in own.items() if value is not None]
    try:
        loaded = load(path, [*overrides, *settings], os.environ)
    except ConfigError as error:
        click.echo(f"mqproxy: {error}", err=True)
        return WRONG
    config = loaded.config
    where = {"service": "proxy", "node": f"{config.bind}:{config.port}"}
    set_up(config.log_format, config.log_level, where)
    raise_descriptor_limit()
    report_configuration(loaded, os.environ)
    if "bind" not in loaded.locations:
        LOG.warning(
            "serves_this_machine_only bindAddress=%s: there are no accounts (aclEnable) and no"
            " bindAddress",
            config.bind,
        )
    if config.acl_enable:
        warn_if_others_read(config.acl_file, "it holds the accounts' secrets")
    return uvloop.run(run(config, while_stdin_is_open))


class Lifeline(asyncio.Protocol):
    """Detects the end of standard input."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()


async def run(config: ProxyConfig, while_stdin_is_open: bool = False) -> int:
    """Run the proxy until SIGTERM or SIGINT; return the exit status."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def end() -> None:
        if not stop.done():
            stop.set_result(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if while_stdin_is_open:
        await loop.connect_read_pipe(lambda: Lifeline(end), sys.stdin)
    server = ProxyServer(config)
    try:
        await server.start()
    except (OSError, RemotingError, WebConfigError) as error:
        click.echo(f"mqproxy: cannot start on {config.bind}:{config.port}: {error}", err=True)
        await server.stop()
        return 1
    click.echo(f"The proxy boot success. gRPC address {server.address}")
    if server.http is not None:
        click.echo(f"HTTP API: {server.http.url}")
    sys.stdout.flush()
    status = await stop
    LOG.info("proxy_stops")
    await server.stop()
    return status
