"""The gRPC endpoint of a small cluster, an `mqproxy` process next to the broker.

RocketMQ 5's gRPC clients connect to its port (`grpcPort`). In a process of its own, it keeps frames
of gRPC clients away from the process that owns the log. It is restarted with growing delays. Its
standard input is a pipe held open by the broker, so it ends when the broker is killed.

Accounts, TLS, address and the largest message are the broker's. They are passed in the environment,
readable by this user only, because it contains secrets. It has no HTTP API. Larger clusters run
their own proxies.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from raftmq.ops.options import VARIABLE_PREFIX

from .config import OPTIONS, BrokerConfig

log = logging.getLogger("raftmq.broker.grpcproxy")

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.5, 30.0
STOP_S = 10.0  # calls in progress may last 3 s more
# Keys with the same meaning in a proxy.
SHARED = (
    *("namesrvAddr", "brokerAddressMap", "bindAddress", "maxMessageSize", "logFormat", "logLevel"),
    *("aclEnable", "aclFile", "innerClientAuthenticationCredentials"),
    *(key for key in OPTIONS if key.startswith("tls")),
)


def environment_of(config: BrokerConfig, own: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy's environment: `own`, with the proxy's settings instead of the broker's."""
    environment = {
        name: value for name, value in own.items() if not name.startswith(VARIABLE_PREFIX)
    }
    for key in SHARED:
        value = getattr(config, OPTIONS[key].name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        environment[OPTIONS[key].variable] = text
    environment[f"{VARIABLE_PREFIX}GRPC_SERVER_PORT"] = str(config.grpc_port)
    environment[f"{VARIABLE_PREFIX}HTTP_ENABLE"] = "false"
    return environment


@asynccontextmanager
async def proxy_process(config: BrokerConfig, own: Mapping[str, str]) -> AsyncIterator[None]:
    """Keep a configured proxy running during the block. `own` is this process's environment."""
    if not config.grpc_port:
        yield
        return
    keeping = asyncio.create_task(_keep(config, own))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def _keep(config: BrokerConfig, own: Mapping[str, str]) -> None:
    """Start a proxy, and restart it after its end, until cancelled."""
    loop, port = asyncio.get_running_loop(), config.grpc_port
    backoff_s = BACKOFF_S_MIN
    while True:
        started_s = loop.time()
        try:
            why = f"status {await _run(port, environment_of(config, own))}"
        except OSError as error:  # no process or no pipe available
            why = str(error)
        if loop.time() - started_s >= BACKOFF_S_MAX:
            backoff_s = BACKOFF_S_MIN
        log.error("grpc_proxy_ended port=%d reason=%s again_in_s=%s", port, why, backoff_s)
        await asyncio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)


async def _run(port: int, environment: dict[str, str]) -> int:
    """Run a proxy to its end; return its exit status. A cancellation ends the proxy."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "raftmq.proxy.cli", "--while-stdin-is-open"),
        stdin=PIPE,
        stdout=DEVNULL,  # its events go to standard error, as the broker's do
        env=environment,
        start_new_session=True,  # Ctrl-C is the broker's
    )
    log.info("grpc_proxy_started port=%d pid=%d", port, process.pid)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
