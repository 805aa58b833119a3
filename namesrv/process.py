"""A name server process, from its configuration to its exit status."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from typing import Any

import click
import uvloop

from raftmq.ops.config_cli import WRONG
from raftmq.ops.config_dump import properties
from raftmq.ops.descriptors import raise_descriptor_limit
from raftmq.ops.logs import report_configuration, set_up
from raftmq.ops.memory import return_large_blocks
from raftmq.ops.permissions import warn_if_others_read
from raftmq.remoting.errors import RemotingError
from raftmq.web.settings import WebConfigError

from .config import OPTIONS, ConfigError, NameServerConfig, load
from .server import NameServer

LOG = logging.getLogger("raftmq.namesrv")

# Routes have no reference cycles. A full garbage collection of a million routes blocks the loop for
# half a second, so old objects are collected rarely and the objects of the start never.
GC_THRESHOLDS = (50_000, 50, 1_000)


def serve(
    path: str | None,
    listen_port: int | None,
    bind: str | None,
    store: str | None,
    log_level: str | None,
    settings: tuple[str, ...],
    print_config: bool,
) -> int:
    """Run the name server with the options of `mqnamesrv`; return the exit status."""
    own = {
        "listenPort": listen_port,
        "bindAddress": bind,
        "storePath": store,
        "logLevel": log_level and log_level.upper(),
    }
    overrides = [f"{key}={value}" for key, value in own.items() if value is not None]
    try:
        loaded = load(path, [*overrides, *settings], os.environ)
    except ConfigError as error:
        click.echo(f"mqnamesrv: {error}", err=True)
        return WRONG
    config = loaded.config
    if print_config:
        click.echo(properties(OPTIONS, config), nl=False)
        return 0
    where = {"service": "namesrv", "node": f"{config.bind}:{config.port}"}
    set_up(config.log_format, config.log_level, where)
    return_large_blocks()
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
    gc.set_threshold(*GC_THRESHOLDS)
    return uvloop.run(run(config))


async def run(config: NameServerConfig) -> int:
    """Run the name server until SIGTERM or SIGINT; return the exit status."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        if not stop.done():
            stop.set_result(status)

    def broken(running: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        running.default_exception_handler(context)
        if isinstance(context.get("exception"), AssertionError):
            end(70)  # a broken invariant

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
    gc.collect()
    gc.freeze()
    status = await stop
    LOG.info("name_server_stops")
    await server.stop()
    return status
