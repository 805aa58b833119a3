"""The command lines of `mqbroker backup`, `verify` and `restore` (docs/backup.md).

broker.backup.commands has the implementation, imported when needed.
"""

from __future__ import annotations

from typing import Any

import click


@click.command("backup")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--from", "addresses", metavar="HOST:PORT[;…]", help="The replicas to choose from.")
@click.option("-n", "--namesrvAddr", "name_servers", help="Or ask name servers for them, and")
@click.option("--brokerName", "broker_name", help="whose replicas.")
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(dir_okay=False),
    help="Or the broker.conf of a stopped replica on this machine: its store is read.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key of it.")
@click.option(
    "--full-log",
    is_flag=True,
    help="Of a stopped replica, the only one left: all frames, committed or not.",
)
@click.option(
    "--bytes-per-s",
    "rate",
    default="64MiB",
    show_default=True,
    help="Read no faster than that; 0: as fast as it goes.",
)
@click.option(
    "--unconfirmed",
    is_flag=True,
    help="Ask no leader: take what the replica knows to be committed. For a group without one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def backup(**given: Any) -> None:
    """Back a running Raft group up into DIRECTORY, or bring the backup there up to date.

    \b
    Example:
      mqbroker backup /backup/group-a -n 127.0.0.1:9876 --brokerName group-a

    It is read from a healthy follower if there is one. Sends go on meanwhile. Data that DIRECTORY
    already has is not copied again, even after an interruption.
    """
    from . import commands as work

    work.backup(**given)


@click.command("verify")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(**given: Any) -> None:
    """Read all of a backup, and name what is damaged: exit status 0 intact, 1 damaged, 2 no backup.

    Every checksum is compared: of files, of every frame, and of the manifest; frames must follow
    each other without a gap.
    """
    from . import commands as work

    work.verify(**given)


@click.command("restore")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--into",
    "stores",
    multiple=True,
    metavar="STORE",
    help="A replica's storePathRootDir, new or empty; may be repeated. Needs --peers.",
)
@click.option("--peers", metavar="n0-host:port;…", help="dLegerPeers of the new group.")
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(dir_okay=False),
    help="Or the broker.conf of the replica to be restored: it says both.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key of it.")
@click.option("--to-index", type=int, help="Only frames up to this one.")
@click.option(
    "--to-time", help="Only what was stored until then: ISO 8601 (UTC), or ms since 1970."
)
@click.option(
    "--incarnation",
    metavar="new|UUID",
    help="Where one run does not make all stores: 'new' in the first, what that prints in the"
    " others.",
)
def restore(**given: Any) -> None:
    """Make the stores of a new group from the backup in DIRECTORY.

    \b
    Example:
      mqbroker restore /backup/group-a --into /data/n0 --into /data/n1 --into /data/n2 \\
        --peers 'n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911'

    All replicas of the new group are restored from the same backup with the same options, here or
    each on its own host. The members are those of --peers, whatever the old group's were.

    Each restoration makes another group, of whose id its --incarnation is a part: stores of two
    restorations never mix. One that makes all stores at once needs none.
    """
    from . import commands as work

    work.restore(**given)
