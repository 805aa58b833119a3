"""The command `mqbroker rescue`, and its output.

Exit status: 0 done or shown; 1 failure; 2 rejected choice; 75 (EX_TEMPFAIL) a store is in use by a
different process.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import NoReturn

import click
import orjson

from raftmq.dledger.transport.peer_info_message import GROUP_ID_SIZE_BYTES
from raftmq.store.store_lock import StoreInUse

from ..backup.manifest import iso
from .history import History, Unreadable, only_in, parting, read
from .keep import Refused, carry_out, check

FAILED = 1
WRONG = 2


def rescue(
    stores: tuple[str, ...],
    keep: tuple[str, ...],
    join: str | None,
    execute: bool,
    anyway: bool,
    as_json: bool,
) -> None:
    """Rescue, with the options of `mqbroker rescue`."""
    unknown = [store for store in keep if store not in stores]
    if unknown:
        _end(WRONG, f"--keep {unknown[0]} is none of the stores that are named")
    try:
        group_id = bytes.fromhex(join) if join else secrets.token_bytes(GROUP_ID_SIZE_BYTES)
    except ValueError:
        group_id = b""
    if len(group_id) != GROUP_ID_SIZE_BYTES:
        _end(WRONG, f"--join {join}: a group id has {2 * GROUP_ID_SIZE_BYTES} hexadecimal digits")
    with ExitStack() as held:
        histories: list[History] = []
        unreadable: list[str] = []
        for store in stores:
            try:
                histories.append(read(store, held))
            except StoreInUse as error:
                _end(os.EX_TEMPFAIL, str(error))
            except Unreadable as error:
                unreadable.append(str(error))
        if as_json:
            if len(histories) != 1 or unreadable:
                _end(WRONG, "; ".join(unreadable) or "--json prints the history of one store")
            click.echo(orjson.dumps(histories[0].to_json()))
            return
        _show(histories, unreadable)
        if not keep and not join:
            return
        try:
            check(histories, keep, group_id, damaged=anyway)
        except Refused as error:
            _end(WRONG, str(error))
        if any(text.startswith(f"{store}:") for text in unreadable for store in keep):
            _end(WRONG, "a store that cannot be read cannot be kept")
        if unreadable and not anyway:
            _end(WRONG, "nothing is done while a store cannot be read: --anyway sets it aside")
        others = [store for store in stores if store not in keep and os.path.isdir(store)]
        _plan(keep, others, group_id, execute)
        if execute:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            try:
                done = carry_out(keep, others, group_id, stamp)
            except OSError as error:
                _end(
                    FAILED,
                    f"{error}: give the same command again, with --anyway --join {group_id.hex()}",
                )
            for store, where in done.aside.items():
                click.echo(f"aside       {store}: everything is in {where}")
            for store, where in done.kept.items():
                click.echo(f"kept        {store}: the files that changed are in {where}")
            for text in done.undo:
                click.echo(f"undo        with all brokers stopped: {text}")
            click.echo(f"group id    {group_id.hex()}")


def _show(histories: list[History], unreadable: list[str]) -> None:
    for history in histories:
        first, last = (history.marks[0], history.marks[-1]) if history.marks else (None, None)
        click.echo(f"store       {history.store}: {history.node or 'no node'} of {history.group}")
        click.echo(f"  group id  {history.group_id or 'none'}")
        owner = f", of {history.owner}" if history.owner not in ("", history.node) else ""
        trusted = "" if history.recovered else ", promises may be lost"
        click.echo(f"  votes     term {history.term}{owner}{trusted}")
        if first is not None and last is not None:
            times = f"{iso(first.time_ms)} to {iso(last.time_ms)}"
            click.echo(
                f"  frames    {history.first} to {history.last}, {last.messages} messages, {times}"
            )
        else:
            click.echo("  frames    none")
        for run in history.runs[-8:]:
            click.echo(f"  term      {run.term}: frames {run.first} to {run.last}")
        click.echo(f"  committed up to {history.committed}, as this store knows")
        for node, (term, index) in history.noted.items():
            click.echo(f"  noted     {node} held frame {index} in term {term}")
        if history.damage:
            click.echo(f"  damaged   {history.damage}")
    for text in unreadable:
        click.echo(f"unreadable  {text}")
    _compare(histories)
    absent = {node for one in histories for node in one.noted} - {one.node for one in histories}
    for node in sorted(absent):
        click.echo(f"not named   {node}: its store may have more than these")
    for history in histories:
        _loss(history, histories)


def _compare(histories: list[History]) -> None:
    for at, one in enumerate(histories):
        for other in histories[at + 1 :]:
            names, parted = f"{_name(one)} and {_name(other)}", parting(one, other)
            if parted is None:
                click.echo(f"compare     {names}: no frame is in both")
            elif parted.differs is None:
                click.echo(f"compare     {names}: alike up to frame {parted.common}")
            else:
                click.echo(
                    f"fork        {names}: alike up to frame {parted.common}, and frame"
                    f" {parted.differs} differs"
                )


def _loss(kept: History, histories: list[History]) -> None:
    nothing = True
    for other in histories:
        only = None if other is kept else only_in(other, kept)
        if only is not None:
            nothing = False
            click.echo(
                f"keep {_name(kept)}: lacks frames {only.first} to {only.last} of {_name(other)}:"
                f" {only.last - only.first + 1} frames, up to {only.messages} messages, stored"
                f" {iso(only.from_ms)} to {iso(only.to_ms)}; {only.committed} of these frames were"
                " committed there"
            )
    if nothing:
        click.echo(f"keep {_name(kept)}: lacks nothing that the other stores have")


def _plan(keep: tuple[str, ...], others: list[str], group_id: bytes, execute: bool) -> None:
    does = "does" if execute else "would do, with --execute"
    click.echo(f"this {does}:")
    for store in others:
        click.echo(f"  {store}: move everything into a directory aside-TIME there")
    for store in keep:
        click.echo(f"  {store}: keep the log as it is; give it the new group id")
    click.echo("then start the replicas. One kept store needs all of them once, to elect a leader")
    if others or keep:
        click.echo(
            "on other machines, for each store that is not kept:"
            f" mqbroker rescue STORE --join {group_id.hex() if execute else 'GROUPID'} --execute"
        )


def _name(history: History) -> str:
    return history.node or history.store


def _end(status: int, text: str) -> NoReturn:
    click.echo(f"mqbroker: rescue: {text}", err=True)
    sys.exit(status)
