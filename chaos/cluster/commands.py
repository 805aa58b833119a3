"""The commands of `mqcluster`: their work and their output."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import orjson
from rich.box import SIMPLE_HEAD
from rich.table import Table

from raftmq.client.admin import drain_options
from raftmq.ops.console import QuietConsole, print_no_more

from . import groups, members
from .cluster import Cluster, NodeStatus
from .clusterfile import ClusterError, SettingsError
from .credentials import who_refuses
from .restart import restart_all, restart_rolling
from .topology import MODES, Shape
from .transfer import transfer

PIPE_COLUMNS = 120  # a file or pipe has no width of its own
SIGNALS = {
    "KILL": signal.SIGKILL,
    "TERM": signal.SIGTERM,
    "STOP": signal.SIGSTOP,
    "CONT": signal.SIGCONT,
}


class WrongSettings(click.ClickException):
    """The user's input is wrong, and nothing was done."""

    exit_code = 2


class Interrupted(click.ClickException):
    """Ctrl-C, or SIGTERM."""

    exit_code = 130  # as of mqadmin


def on_cluster(command: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return the command with a directory in place of the cluster in it."""

    def run_command(directory: Path, **given: Any) -> None:
        run(directory, lambda cluster: command(cluster, **given))

    return run_command


def run(directory: Path, work: Callable[[Cluster], Awaitable[None]]) -> None:
    """Run `work` on the cluster in `directory`; a ClusterError becomes a message and status 1
    (WrongSettings: 2, Interrupted: 130).

    SIGTERM acts like Ctrl-C: it cancels the work, which cleans up.
    """

    async def with_cluster() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        cluster = Cluster(directory)
        try:
            await work(cluster)
        finally:
            await cluster.close()

    try:
        asyncio.run(with_cluster())
    except ClusterError as error:
        kind = WrongSettings if isinstance(error, SettingsError) else click.ClickException
        raise kind(str(error)) from error
    except OSError as error:  # a directory that cannot be made, a disk that is full
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise click.ClickException(text) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise Interrupted("interrupted") from None


@on_cluster
async def up(
    cluster: Cluster,
    mode: str | None,
    groups: int | None,
    replicas: int | None,
    name_servers: int | None,
    namesrv: str | None,
    links: bool | None,
    faultable: bool | None,
    netns: bool | None,
    standard_ports: bool,
    settings: tuple[str, ...],
    timeout_s: float,
    proxies: int | None,
    proxy_settings: tuple[str, ...],
) -> None:
    desired, of_proxies = parse_settings(settings), parse_settings(proxy_settings, "--set-proxy")
    shape = Shape(
        *(mode, groups, replicas, name_servers, namesrv),
        *(links, faultable, netns, standard_ports, proxies),
    )
    result = await cluster.up(shape, desired, timeout_s, progress, of_proxies)
    say(f"up: group {', '.join(result.groups)}, name server {result.namesrv}")
    for server in result.name_servers:
        if server.http and not result.netns:
            say(f"dashboard: http://{server.http}/")
    if result.grpc_proxies:
        say(f"gRPC: {';'.join(node.address for node in result.grpc_proxies)}")
    show(await cluster.status())
    if outdated := cluster.outdated():
        say(f"with former settings until a restart (mqcluster restart): {', '.join(outdated)}")


def list_modes() -> None:
    for mode in MODES.values():
        say(f"{mode.name:12}{mode.description}")


@on_cluster
async def status(cluster: Cluster, as_json: bool) -> None:
    result = await cluster.status()
    if as_json:
        say(status_json(cluster, result))
    else:
        show(result)


@on_cluster
async def kill(cluster: Cluster, target: str, signal_name: str) -> None:
    node = await cluster.find(target)
    process = cluster.signal(node.name, SIGNALS[signal_name])
    if signal_name == "KILL":
        await cluster.wait_dead(process)
    elif signal_name == "STOP":
        await cluster.wait_stopped(process)
    say(f"sent SIG{signal_name} to {node.name} (pid {process.pid}, {node.address})")


@on_cluster
async def transfer_leadership(cluster: Cluster, target: str, group: str | None) -> None:
    old, new = await transfer(cluster, group, target)
    say(f"{old.name} handed leadership over to {new.name}")


@on_cluster
async def add_member(cluster: Cluster, group: str | None, timeout_s: float) -> None:
    node = await members.add(cluster, group, say, timeout_s)
    say(f"{node.name} is a voter of {node.group}")


@on_cluster
async def remove_member(cluster: Cluster, name: str, timeout_s: float) -> None:
    progress(f"taking {name} out of its group")
    node, how = await members.remove(cluster, name, timeout_s)
    say(f"{name} is no member of {node.group} any more; its process: {how}")


@on_cluster
async def add_group(cluster: Cluster, name: str | None, replicas: int, timeout_s: float) -> None:
    nodes = await groups.add(cluster, name, replicas, progress, timeout_s)
    say(f"{nodes[0].group} takes sends: {', '.join(node.name for node in nodes)}")
    show(await cluster.status())


@on_cluster
async def drain_group(cluster: Cluster, name: str, cancel: bool, **moves: Any) -> None:
    options = drain_options(**moves)
    if options and cancel:
        raise click.UsageError("--cancel has no other options")
    status = await groups.drain(cluster, name, options, cancel=cancel)
    say(f"{name} takes sends again" if cancel else f"{name} is draining: {status['remainder']}")


@on_cluster
async def remove_group(cluster: Cluster, name: str, lose: bool, wait: float) -> None:
    left = await groups.remove(cluster, name, say, lose=lose, wait_s=wait)
    say(f"{name} is removed and stopped; its stores stay in {', '.join(map(str, left))}")


@on_cluster
async def start(cluster: Cluster, name: str) -> None:
    process = cluster.start(name)
    say(f"started {name} (pid {process.pid}, {cluster.state().node(name).address})")


@on_cluster
async def restart(cluster: Cluster, rolling: bool) -> None:
    if rolling:
        await restart_rolling(cluster, say)
    else:
        progress("stopping everything, and starting it again")
        await restart_all(cluster)
    show(await cluster.status())


@on_cluster
async def down(cluster: Cluster, timeout_s: float) -> None:
    progress("stopping brokers in order, then name servers")
    for name, how in (await cluster.down(timeout_s)).items():
        say(f"{name}: {how}")


def say(text: str) -> None:
    """Print a line. An output error changes nothing else."""
    try:
        click.echo(text)
    except BrokenPipeError:
        print_no_more()


def progress(text: str) -> None:
    """Print progress on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def parse_settings(settings: tuple[str, ...], option: str = "--set") -> dict[str, str]:
    """Return `key=value` texts as a mapping. Raises click.BadParameter."""
    result: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"expected KEY=VALUE, found {setting!r}", param_hint=option)
        result[key.strip()] = value.strip()
    return result


def show(statuses: list[NodeStatus]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("name", "pid", "state", "address", "role"):
        table.add_column(heading, overflow="fold")  # on a narrow terminal in lines, but whole
    for heading in ("term", "commit", "applied", "last"):
        table.add_column(heading, justify="right", overflow="fold")
    for status in statuses:
        view = status.view
        role = status.role + (" (ready)" if view and view.leads and view.leader_ready else "")
        role = role or ("refuses to tell" if status.refusal else "")
        figures = ["", "", "", ""]
        if view is not None:
            numbers = (view.term, view.commit_index, view.applied_index, view.last_index)
            figures = [str(number) for number in numbers]
        pid = str(status.node.process.pid) if status.node.process and status.alive else ""
        style = "" if status.state == "running" else "red" if not status.alive else "yellow"
        row = (status.node.name, pid, status.state, status.node.address, role)
        table.add_row(*row, *figures, style=style)
    console = QuietConsole()
    if not console.is_terminal:
        console = QuietConsole(width=PIPE_COLUMNS)
    console.print(table)
    refused = next((status for status in statuses if status.refusal), None)
    if refused is not None:
        click.echo(who_refuses(refused.node.name, refused.refusal), err=True)


def status_json(cluster: Cluster, statuses: list[NodeStatus]) -> str:
    """Return a JSON object of the cluster, each process with its view (null: silent)."""
    state = cluster.state()
    nodes = []
    for status in statuses:
        node, view = status.node, status.view
        nodes.append(
            {
                "name": node.name,
                "kind": node.kind,
                "group": node.group,
                "pid": node.process.pid if node.process and status.alive else None,
                "alive": status.alive,
                "state": status.state,
                "address": node.address,
                "http": node.http or None,
                "role": view.role if view else None,
                "refusal": status.refusal or None,
                "term": view.term if view else None,
                "leader": view.leader if view else None,
                "leaderReady": view.leader_ready if view else None,
                "commit": view.commit_index if view else None,
                "applied": view.applied_index if view else None,
                "last": view.last_index if view else None,
                "durable": view.durable_index if view else None,
            }
        )
    data = {
        "mode": state.mode,
        "groups": state.groups,
        "namesrv": state.namesrv,
        "nodes": nodes,
    }
    return orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
