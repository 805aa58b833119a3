"""The command line of `mqbroker rescue` (docs/runbooks/two-histories.md).

broker.rescue.commands has the implementation, imported when needed.
"""

from __future__ import annotations

from typing import Any

import click


@click.command("rescue")
@click.argument("stores", nargs=-1, required=True, metavar="STORE…")
@click.option("--keep", multiple=True, metavar="STORE", help="The group goes on with this store.")
@click.option(
    "--join",
    metavar="GROUPID",
    help="Complete a rescue that kept a store on another machine, and printed this id.",
)
@click.option("--execute", is_flag=True, help="Carry it out; without it, only show it.")
@click.option(
    "--anyway",
    is_flag=True,
    help="Although a store cannot be read, or the log to be kept is damaged.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the histories, to compare elsewhere.")
def rescue(**given: Any) -> None:
    """Compare the stores of a group's stopped replicas, and choose which of them goes on.

    \b
    Example:
      mqbroker rescue /data/n0 /data/n1 /data/n2
      mqbroker rescue /data/n0 /data/n1 /data/n2 --keep /data/n0
      mqbroker rescue /data/n0 /data/n1 /data/n2 --keep /data/n0 --execute

    For a group that cannot go on by itself: stores that were set back together, or histories that
    differ. Each STORE is a storePathRootDir, or a file with what --json printed on another machine.

    Nothing is removed. The log of a kept store is not changed; everything in the other stores moves
    into a directory aside-TIME below them, and their replicas are filled from the kept ones.
    """
    from . import commands as work

    work.rescue(**given)
