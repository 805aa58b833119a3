"""A broker process, from its configuration to its exit status.

Exit status: 0 stopped as requested; 1 the broker failed or could not start, for example because a
port is in use or the log is damaged; 2 the command line, configuration or store is wrong, so that a
restart does not help; 75 (EX_TEMPFAIL) a different process owns the store. Logs go to standard
error. Standard output has one line when the broker listens.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import click
import uvloop

from raftmq.dledger.raft.errors import RaftError
from raftmq.ops.config_dump import properties
from raftmq.ops.descriptors import raise_descriptor_limit
from raftmq.ops.logs import report_configuration, set_up
from raftmq.ops.memory import return_large_blocks
from raftmq.ops.options import ConfigError, Loaded
from raftmq.ops.permissions import warn_if_others_read
from raftmq.packages import PROXY_PACKAGES, missing_package
from raftmq.remoting.connection import FROM_PEER
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.registration_proof import KeyFileError
from raftmq.remoting.tls import TlsError
from raftmq.store.disk import OsDisk
from raftmq.store.errors import StoreError
from raftmq.store.identity import WrongIdentity
from raftmq.store.store_lock import StoreInUse, StoreLock, lock_store
from raftmq.web.settings import WebConfigError

from .broker import Broker, open_broker
from .config import OPTIONS, BrokerConfig, load
from .durations import DURATIONS, Durations
from .errors import EngineError, StateError
from .grpcproxy import proxy_process
from .http.faults import FaultDoor
from .replication.engine import RAFT, Replication
from .startup import described

log = logging.getLogger("raftmq.broker.process")

T = TypeVar("T")

# The hot path makes tuples, not cycles. Collecting 700 young objects, the default, costs a leader
# several percent and frees nothing that reference counts would not.
GC_THRESHOLDS = (50_000, 20, 50)


START_ERRORS = (
    EngineError,
    OSError,
    RaftError,
    RemotingError,
    StateError,
    StoreError,
    WebConfigError,
)
WRONG = EngineError | KeyFileError | TlsError | WebConfigError | WrongIdentity  # wrong input


@dataclass(frozen=True, slots=True)
class Machine:
    """A broker's disk and wall clock in ms. `faults` injects errors into both."""

    disk: OsDisk
    wall_ms: Callable[[], int]
    faults: FaultDoor | None = None
    replication: Replication = RAFT
    durations: Durations = DURATIONS


def this_machine(root: str) -> Machine:
    return Machine(OsDisk(root), lambda: time.time_ns() // 1_000_000)


def serve(
    path: str | None,
    name_servers: str | None,
    settings: tuple[str, ...],
    printed: str | None,
    log_level: str | None,
    machine_of: Callable[[str], Machine] | None = None,
) -> int:
    """Run the broker with the options of `mqbroker`; return the exit status. `printed` is "all" or
    "set" to print the configuration instead."""
    overrides = list(settings)
    if name_servers:
        overrides.append(f"namesrvAddr={name_servers}")
    if log_level:
        overrides.append(f"logLevel={log_level.upper()}")
    try:
        loaded = load(path, overrides, os.environ)
    except ConfigError as error:
        click.echo(f"mqbroker: {error}", err=True)
        return 2
    config = loaded.config
    if printed:
        only = loaded.locations if printed == "set" else None
        click.echo(properties(OPTIONS, config, only), nl=False)
        return 0
    if config.grpc_port and (package := missing_package(PROXY_PACKAGES)):
        reason = f"grpcPort needs the package {package}: pip install 'raftmq[proxy]'"
        click.echo(f"mqbroker: {reason}", err=True)
        return 2
    where: dict[str, object] = {
        "service": "broker",
        "node": config.node_name,
        "group": config.group_name,
    }
    set_up(config.log_format, config.log_level, where)
    return_large_blocks()
    raise_descriptor_limit()
    report_configuration(loaded, os.environ)
    say_what_is_open(loaded, path)
    return owned(config, machine_of or this_machine, where)


def say_what_is_open(loaded: Loaded[BrokerConfig], path: str | None) -> None:
    """Log the addresses served by default, and files that more users than the owner can read."""
    config = loaded.config
    if "bind_address" not in loaded.locations:
        log.warning(
            "serves_this_machine_only bindAddress=%s: there are no accounts (aclEnable) and no"
            " bindAddress",
            config.bind_address,
        )
    secret = [o.name for o in OPTIONS.values() if o.secret and getattr(config, o.name)]
    if path and any(loaded.locations[name].startswith(path) for name in secret):
        warn_if_others_read(path, "it holds secrets")
    if config.acl_enable:
        warn_if_others_read(config.acl_file, "it holds the accounts' secrets")
    warn_if_others_read(config.store_path_root_dir, "it holds messages")


def owned(
    config: BrokerConfig, machine_of: Callable[[str], Machine], where: dict[str, object]
) -> int:
    """Run a broker that owns its store, from before its first file is opened until all are closed;
    return the exit status."""
    try:
        lock = lock_store(config.store_path_root_dir, described(config))
    except StoreInUse as error:
        log.critical("store_in_use %s", error)
        click.echo(f"mqbroker: {error}", err=True)
        return os.EX_TEMPFAIL
    except OSError as error:
        log.critical("start_failed %s: %s", type(error).__name__, error)
        click.echo(f"mqbroker: cannot start: {error}", err=True)
        return 1
    gc.set_threshold(*GC_THRESHOLDS)  # loading 100,000 topics makes no garbage
    try:
        return uvloop.run(run(config, machine_of(config.store_path_root_dir), lock, where))
    finally:
        lock.release()


async def run(
    config: BrokerConfig, machine: Machine, lock: StoreLock, where: dict[str, object]
) -> int:
    """Run a broker until a signal or a failure; return the exit status. `lock` is its store's.
    `where` holds the fields of each log line; the current term is added."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        status = None
        while status is None:
            status = await _run_one(config, machine, lock, stopping, where)
    finally:
        stopping.cancel()
    return status


async def _run_one(
    config: BrokerConfig,
    machine: Machine,
    lock: StoreLock,
    stopping: asyncio.Future[Any],
    where: dict[str, object],
) -> int | None:
    """Run until the broker ends. Return the exit status; None to start a new broker."""
    loop = asyncio.get_running_loop()
    opening = open_broker(
        config,
        machine.disk,
        lock=lock,
        wall_ms=machine.wall_ms,
        faults=machine.faults,
        replication=machine.replication,
        durations=machine.durations,
    )
    broker = None
    try:
        broker = await _unless(stopping, opening)
        if broker is not None:
            where["term"] = lambda roles=broker.roles: roles.term
            loop.set_exception_handler(partial(_on_exception, broker))
            started = await _unless(stopping, _started(broker))
        if broker is None or started is None:
            log.info("stopping reason=signal, before the start was through")
            return int(broker is not None and not await _stopped(broker))
    except START_ERRORS as error:
        log.critical("start_failed %s: %s", type(error).__name__, error)
        click.echo(f"mqbroker: cannot start: {error}", err=True)
        if broker is not None:
            await _stopped(broker)
        return 2 if isinstance(error, WRONG) else 1
    gc.collect()
    gc.freeze()
    click.echo(f"mqbroker {config.broker_name}/{config.node_name} listens on {broker.address}")
    sys.stdout.flush()
    stop = broker.life.stop_requested
    requested = asyncio.ensure_future(stop.wait())
    ends: list[asyncio.Future[Any]] = [stopping, broker.failed, requested]
    async with proxy_process(config, os.environ):
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    reason = broker.failed.result() if broker.failed.done() else ""
    log.info("stopping reason=%s", reason or ("asked" if requested.done() else "signal"))
    requested.cancel()
    stopped = await _stopped(broker)
    if stopped and broker.restarts and not stopping.done() and not stop.is_set():
        return None
    if reason:
        click.echo(f"mqbroker: failed: {reason}", err=True)
    return 1 if reason or not stopped else 0


async def _stopped(broker: Broker) -> bool:
    """Stop the broker; return False if it could not write everything, for example to a full disk.
    No acknowledged message is lost, because the next start recovers from the log."""
    try:
        await broker.stop()
    except START_ERRORS as error:
        log.critical("stop_failed %s: %s", type(error).__name__, error)
        click.echo(f"mqbroker: stopped, but could not write everything: {error}", err=True)
        return False
    return True


async def _started(broker: Broker) -> bool:
    await broker.start()
    return True


async def _unless(stopping: asyncio.Future[Any], work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, perhaps after a long wait for peers; None on a signal."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    return None if task.cancelled() else task.result()


def _on_exception(broker: Broker, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Handle a callback's exception. A broken invariant ends the broker; the rest is logged."""
    error = context.get("exception")
    if isinstance(error, socket.gaierror):
        # From a dial that was cancelled while its host name was resolved, which uvloop does not
        # cancel. The dialler has logged that already, and dials again.
        log.info("late_lookup_failed error=%s", error)
        return
    message = context.get("message")
    log.error("loop_exception %s", message, exc_info=error, extra=FROM_PEER)  # type: ignore[arg-type]
    if isinstance(error, AssertionError):
        broker.fail(f"broken invariant: {error!r}")
