"""The command line of `mqcluster`: a whole cluster as background processes on this machine.

The commands are in chaos.cluster.commands, imported when one of them runs, so that `--help` and the
shell's completion start quickly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from raftmq import __version__
from raftmq.ops.interpreter import version_option

from .timeouts import CHANGE_TIMEOUT_S, DOWN_TIMEOUT_S, UP_TIMEOUT_S
from .topology import GROUPS_MAX, MODES, NAME_SERVERS_MAX, PROXIES_MAX, REPLICAS_MAX

SIGNALS = ("KILL", "TERM", "STOP", "CONT")
DIRECTORY = click.option(
    "--dir",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the cluster keeps its data, logs and cluster.json.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@version_option("mqcluster", __version__)
def main() -> None:
    """Run name servers, broker groups and gRPC proxies as processes on this machine.

    \b
      mqcluster up --dir /tmp/demo
      mqcluster up --dir /tmp/classic --mode 2m-2s-sync
      mqcluster up --dir /tmp/grpc --proxies 2
      mqcluster status --dir /tmp/demo
      mqcluster kill --dir /tmp/demo leader
      mqcluster start --dir /tmp/demo n0
      mqcluster restart --dir /tmp/demo --rolling
      mqcluster add --dir /tmp/demo
      mqcluster remove --dir /tmp/demo n1
      mqcluster add-group --dir /tmp/demo
      mqcluster drain-group --dir /tmp/demo --name broker-b
      mqcluster remove-group --dir /tmp/demo --name broker-b --wait 600
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
    "--proxies",
    type=click.IntRange(0, PROXIES_MAX),
    help="gRPC proxies (mqproxy) to start, for clients of RocketMQ 5. An existing cluster may be "
    "given more.",
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
    "brokers 10911, 10921, …, gRPC 8081. Otherwise on any free ports: there can be many clusters.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A broker.conf key, e.g. flushDiskType=SYNC_FLUSH. Repeatable; remembered. Keys of "
    "accounts and TLS count for gRPC proxies, too.",
)
@click.option(
    "--set-proxy",
    "proxy_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of mqproxy's configuration, e.g. idempotentSends=true. Repeatable; remembered.",
)
@click.option(
    "--timeout", "timeout_s", default=UP_TIMEOUT_S, show_default=True, help="Seconds to come up in."
)
def up(**given: Any) -> None:
    """Start the cluster in DIR; return once a send would be acknowledged.

    A cluster in DIR is started again with its data. If it does not start in time, the last lines of
    its logs are printed, all processes are stopped and the exit status is 1; settings are kept.
    Running processes keep their settings until a restart, and are listed. Settings that the servers
    would reject, and gRPC proxies without their packages, are reported before anything is started,
    and the exit status is 2.
    """
    _work().up(**given)


@main.command("modes")
def list_modes() -> None:
    """Name the modes a cluster can have."""
    _work().list_modes()


@main.command()
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def status(**given: Any) -> None:
    """Show every process: pid, address, role, term, commit."""
    _work().status(**given)


@main.command()
@DIRECTORY
@click.argument("target", metavar="leader[:GROUP]|NAME")
@click.option(
    "--signal",
    "signal_name",
    type=click.Choice(SIGNALS, case_sensitive=False),
    default="KILL",
    show_default=True,
    help="STOP freezes the process, CONT lets it go on.",
)
def kill(**given: Any) -> None:
    """Send a signal to the leader, or to the process called NAME."""
    _work().kill(**given)


@main.command("transfer")
@DIRECTORY
@click.argument("target", default="", metavar="[NAME]")
@click.option("--group", help="Of which broker group (the first one).")
def transfer_leadership(**given: Any) -> None:
    """Hand leadership over to NAME, or to the follower that has most."""
    _work().transfer_leadership(**given)


@main.command("add")
@DIRECTORY
@click.option("--group", help="To which broker group (the first one).")
@click.option(
    "--timeout",
    "timeout_s",
    default=CHANGE_TIMEOUT_S,
    show_default=True,
    help="Seconds to catch up in.",
)
def add_member(**given: Any) -> None:
    """Add a broker to a Raft group: start it, let it catch up, make it a voter."""
    _work().add_member(**given)


@main.command("remove")
@DIRECTORY
@click.argument("name")
@click.option(
    "--timeout",
    "timeout_s",
    default=CHANGE_TIMEOUT_S,
    show_default=True,
    help="Seconds to be taken out in.",
)
def remove_member(**given: Any) -> None:
    """Take the broker called NAME, dead or alive, out of its Raft group; its files stay."""
    _work().remove_member(**given)


GROUP = click.option("--name", required=True, metavar="NAME", help="The broker group.")


@main.command("add-group")
@DIRECTORY
@click.option("--name", metavar="NAME", help="Its name (the next letter: broker-b, …).")
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    default=3,
    show_default=True,
    help="Its brokers.",
)
@click.option(
    "--timeout", "timeout_s", default=UP_TIMEOUT_S, show_default=True, help="Seconds to come up in."
)
def add_group(**given: Any) -> None:
    """Start one more broker group; return once a send to it would be acknowledged."""
    _work().add_group(**given)


@main.command("drain-group")
@DIRECTORY
@GROUP
@click.option("--cancel", is_flag=True, help="Take it back.")
@click.option(
    "--move-timers", is_flag=True, help="Move timer and delayed messages to another group."
)
@click.option("--move-dead-letters", is_flag=True, help="Move dead letters, too.")
@click.option(
    "--to", default="", metavar="NAME", help="Move them there (the group with the fewest timers)."
)
@click.option(
    "--given-up",
    multiple=True,
    metavar="NAME",
    help="A consumer group whose messages may be lost; may be repeated.",
)
def drain_group(**given: Any) -> None:
    """Empty a broker group: clients send elsewhere, and consume the rest."""
    _work().drain_group(**given)


@main.command("remove-group")
@DIRECTORY
@GROUP
@click.option("--lose", is_flag=True, help="Even if it is not empty, or none of it runs.")
@click.option("--wait", default=0.0, show_default=True, help="Seconds to wait until it is empty.")
def remove_group(**given: Any) -> None:
    """Remove an empty broker group from the cluster and stop it; its stores stay."""
    _work().remove_group(**given)


@main.command()
@DIRECTORY
@click.argument("name")
def start(**given: Any) -> None:
    """Start the process called NAME again, with its data."""
    _work().start(**given)


@main.command()
@DIRECTORY
@click.option(
    "--rolling",
    is_flag=True,
    help="One after the other, the cluster whole in between: clients notice nothing.",
)
def restart(**given: Any) -> None:
    """Stop the processes in order and start them again, with their data.

    Leaders hand leadership over before they stop. Without --rolling everything stops at once.
    """
    _work().restart(**given)


@main.command()
@DIRECTORY
@click.option(
    "--timeout",
    "timeout_s",
    default=DOWN_TIMEOUT_S,
    show_default=True,
    help="Seconds for an orderly end before SIGKILL.",
)
def down(**given: Any) -> None:
    """Stop every process of the cluster; the data stays."""
    _work().down(**given)


def _work() -> Any:
    from . import commands as work

    return work


if __name__ == "__main__":
    main()
