"""mqcluster: a whole cluster as background processes on this machine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from raftmq import __version__
from raftmq.chaos.cluster import members
from raftmq.chaos.cluster.cluster import DOWN_TIMEOUT_S, UP_TIMEOUT_S, Cluster, NodeStatus
from raftmq.chaos.cluster.clusterfile import ClusterError, SettingsError
from raftmq.chaos.cluster.members import CHANGE_TIMEOUT_S
from raftmq.chaos.cluster.restart import restart_all, restart_rolling
from raftmq.chaos.cluster.topology import GROUPS_MAX, MODES, NAME_SERVERS_MAX, REPLICAS_MAX, Shape
from raftmq.chaos.cluster.transfer import transfer

T = TypeVar("T")

DIRECTORY = click.option(
    "--dir",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the cluster keeps its data, logs and cluster.json.",
)
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mqcluster")
def main() -> None:
    """Run name servers and broker groups as processes on this machine.

    \b
      mqcluster up --dir /tmp/demo
      mqcluster up --dir /tmp/classic --mode 2m-2s-sync
      mqcluster status --dir /tmp/demo
      mqcluster kill --dir /tmp/demo leader
      mqcluster start --dir /tmp/demo n0
      mqcluster restart --dir /tmp/demo --rolling
      mqcluster add --dir /tmp/demo
      mqcluster remove --dir /tmp/demo n1
      mqcluster down --dir /tmp/demo
    """


@main.command()
@DIRECTORY
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    help="How groups keep their messages (raft for a new cluster); see: modes.",
)
@click.option("--groups", type=click.IntRange(1, GROUPS_MAX), help="Broker groups.")
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    help="Brokers in each group, the leader or master included.",
)
@click.option(
    "--name-servers", type=click.IntRange(1, NAME_SERVERS_MAX), help="Name servers to start."
)
@click.option(
    "--namesrv",
    metavar="HOST:PORT[;…]",
    help="Use these name servers instead of starting one.",
)
@click.option(
    "--links/--no-links",
    default=None,
    help="Carry the traffic through a proxy that can cut and slow each link.",
)
@click.option(
    "--faultable/--no-faultable", default=None, help="Run the brokers over the fault layer."
)
@click.option(
    "--netns/--no-netns",
    default=None,
    help="Give every process a host of its own: network namespaces. Needs root.",
)
@click.option(
    "--standard-ports",
    is_flag=True,
    help="Listen where clients and documents look first: name server 9876, dashboard 9880, "
    "brokers 10911, 10921, …. Otherwise on any free ports, so that clusters can be many.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A broker.conf key, e.g. flushDiskType=SYNC_FLUSH. Repeatable; remembered.",
)
@click.option("--timeout", default=UP_TIMEOUT_S, show_default=True, help="Seconds to come up in.")
def up(
    directory: Path,
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
    timeout: float,
) -> None:
    """Start the cluster in DIR; return once a send would be acknowledged.

    A cluster that DIR holds already is started again with its data. If it does not come up in
    time the logs' last lines are printed, nothing is left running and the exit status is 1;
    settings are remembered all the same. Settings that the brokers would refuse are told before
    anything is made or started, and the exit status is 2.
    """
    wanted = parse_settings(settings)

    async def work(cluster: Cluster) -> None:
        shape = Shape(
            mode,
            groups,
            replicas,
            name_servers,
            namesrv,
            links,
            faultable,
            netns,
            standard_ports,
        )
        found = await cluster.up(shape, wanted, timeout)
        click.echo(f"up: group {', '.join(found.groups)}, name server {found.namesrv}")
        for server in found.name_servers:
            if server.http and not found.netns:
                click.echo(f"dashboard: http://{server.http}/")
        show(await cluster.status())

    run(directory, work)


@main.command("modes")
def list_modes() -> None:
    """Name the modes a cluster can have."""
    for mode in MODES.values():
        click.echo(f"{mode.name:12}{mode.description}")


@main.command()
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(directory: Path, as_json: bool) -> None:
    """Show every process: pid, address, role, term, commit."""

    async def work(cluster: Cluster) -> None:
        found = await cluster.status()
        if as_json:
            click.echo(status_json(cluster, found))
        else:
            show(found)

    run(directory, work)


@main.command()
@DIRECTORY
@click.argument("target", metavar="leader[:GROUP]|NAME")
@click.option(
    "--signal",
    "signal_name",
    type=click.Choice(list(SIGNALS), case_sensitive=False),
    default="KILL",
    show_default=True,
    help="STOP freezes the process, CONT lets it go on.",
)
def kill(directory: Path, target: str, signal_name: str) -> None:
    """Send a signal to the leader, or to the process called NAME."""

    async def work(cluster: Cluster) -> None:
        node = await cluster.find(target)
        process = cluster.signal(node.name, SIGNALS[signal_name])
        if signal_name == "KILL":
            await cluster.wait_dead(process)
        elif signal_name == "STOP":
            await cluster.wait_stopped(process)
        click.echo(f"sent SIG{signal_name} to {node.name} (pid {process.pid}, {node.address})")

    run(directory, work)


@main.command("transfer")
@DIRECTORY
@click.argument("target", default="", metavar="[NAME]")
@click.option("--group", help="Of which broker group (the first one).")
def transfer_leadership(directory: Path, target: str, group: str | None) -> None:
    """Hand leadership over to NAME, or to the follower that has most."""

    async def work(cluster: Cluster) -> None:
        old, new = await transfer(cluster, group, target)
        click.echo(f"{old.name} handed leadership over to {new.name}")

    run(directory, work)


@main.command("add")
@DIRECTORY
@click.option("--group", help="To which broker group (the first one).")
@click.option(
    "--timeout", default=CHANGE_TIMEOUT_S, show_default=True, help="Seconds to catch up in."
)
def add_member(directory: Path, group: str | None, timeout: float) -> None:
    """Add a broker to a Raft group: start it, let it catch up, make it a voter."""

    async def work(cluster: Cluster) -> None:
        node = await members.add(cluster, group, click.echo, timeout)
        click.echo(f"{node.name} is a voter of {node.group}")

    run(directory, work)


@main.command("remove")
@DIRECTORY
@click.argument("name")
@click.option(
    "--timeout", default=CHANGE_TIMEOUT_S, show_default=True, help="Seconds to be taken out in."
)
def remove_member(directory: Path, name: str, timeout: float) -> None:
    """Take the broker called NAME, dead or alive, out of its Raft group; its files stay."""

    async def work(cluster: Cluster) -> None:
        node, how = await members.remove(cluster, name, timeout)
        click.echo(f"{name} is no member of {node.group} any more; its process: {how}")

    run(directory, work)


@main.command()
@DIRECTORY
@click.argument("name")
def start(directory: Path, name: str) -> None:
    """Start the process called NAME again, with its data."""

    async def work(cluster: Cluster) -> None:
        process = cluster.start(name)
        click.echo(f"started {name} (pid {process.pid}, {cluster.state().node(name).address})")

    run(directory, work)


@main.command()
@DIRECTORY
@click.option(
    "--rolling",
    is_flag=True,
    help="One after the other, the cluster whole in between: clients notice nothing.",
)
def restart(directory: Path, rolling: bool) -> None:
    """Stop the processes in order and start them again, with their data.

    Leaders hand leadership over before they stop. Without --rolling everything stops at once.
    """

    async def work(cluster: Cluster) -> None:
        if rolling:
            await restart_rolling(cluster, click.echo)
        else:
            await restart_all(cluster)
        show(await cluster.status())

    run(directory, work)


@main.command()
@DIRECTORY
@click.option(
    "--timeout",
    default=DOWN_TIMEOUT_S,
    show_default=True,
    help="Seconds for an orderly end before SIGKILL.",
)
def down(directory: Path, timeout: float) -> None:
    """Stop every process of the cluster; the data stays."""

    async def work(cluster: Cluster) -> None:
        for name, how in (await cluster.down(timeout)).items():
            click.echo(f"{name}: {how}")

    run(directory, work)


def parse_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """Return `key=value` texts as a mapping. Raises click.BadParameter."""
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"expected KEY=VALUE, found {setting!r}", param_hint="--set")
        found[key.strip()] = value.strip()
    return found


def run(directory: Path, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` on the cluster in `directory`; a ClusterError becomes one message and status 1
    (WrongSettings: 2).

    SIGTERM is treated like Ctrl-C: the work is cancelled and cleans up after itself.
    """

    async def whole() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        cluster = Cluster(directory)
        try:
            return await work(cluster)
        finally:
            await cluster.close()

    try:
        return asyncio.run(whole())
    except ClusterError as error:
        told = WrongSettings if isinstance(error, SettingsError) else click.ClickException
        raise told(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.Abort from None


def show(found: list[NodeStatus]) -> None:
    """Print the table that a person reads."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("name", "pid", "state", "address", "role"):
        table.add_column(heading, no_wrap=True)
    for heading in ("term", "commit", "applied", "last"):
        table.add_column(heading, justify="right", no_wrap=True)
    for status in found:
        view = status.view
        role = status.role + (" (ready)" if view and view.leads and view.leader_ready else "")
        figures = ["", "", "", ""]
        if view is not None:
            numbers = (view.term, view.commit_index, view.applied_index, view.last_index)
            figures = [str(number) for number in numbers]
        pid = str(status.node.process.pid) if status.node.process and status.alive else ""
        style = "" if status.state == "running" else "red" if not status.alive else "yellow"
        row = (status.node.name, pid, status.state, status.node.address, role)
        table.add_row(*row, *figures, style=style)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    console.print(table)


def status_json(cluster: Cluster, found: list[NodeStatus]) -> str:
    """Return one JSON object: the cluster, and each process with its own view (null: no answer)."""
    state = cluster.state()
    nodes = []
    for status in found:
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
                "role": view.role if view else None,
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


if __name__ == "__main__":
    main()
