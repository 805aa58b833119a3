"""The commands `mqbroker backup`, `verify` and `restore`, and their output.

Exit status: 0 done or intact; 1 failure or damage; 2 an invalid request, such as a missing backup,
a store that is not empty, a wrong option or configuration; 75 (EX_TEMPFAIL) the store is in use by
a different process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from datetime import UTC, datetime
from typing import Any, NoReturn

import click
import orjson

from raftmq.dledger.raft.errors import RaftError
from raftmq.ops.logs import set_level
from raftmq.ops.options import BYTES, ConfigError, Option
from raftmq.remoting.acl.signature import Credentials, credentials_of_environment
from raftmq.remoting.address import format_address, parse_address_list
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.tls_file import tls_of
from raftmq.store.config import StoreConfig
from raftmq.store.errors import StoreError
from raftmq.store.store_lock import StoreInUse

from ..config import BrokerConfig, load, parse_founders
from ..construction import store_config
from ..errors import StateError
from .create import Taken, take
from .directory import BackupDirectory
from .manifest import BackupError, Manifest, iso
from .offline_source import StoppedSource
from .online_source import RemoteSource, choose, replicas_of
from .point_in_time import APART_MS
from .restore import Point, Restored, check_empty, point_of
from .restore import restore as restore_stores
from .settings import notable
from .verify import complaints

FAILED = 1
WRONG = 2
FAILURES = (BackupError, ConfigError, OSError, RaftError, RemotingError, StateError, StoreError)
RATE = Option("", "--bytes-per-s", 64 << 20, "", BYTES, low=0)


def backup(
    directory: str,
    addresses: str | None,
    name_servers: str | None,
    broker_name: str | None,
    path: str | None,
    settings: tuple[str, ...],
    full_log: bool,
    rate: str,
    unconfirmed: bool,
    as_json: bool,
) -> None:
    """Back up, with the options of `mqbroker backup`."""
    ways = (addresses, name_servers and broker_name, path or settings)
    if sum(map(bool, ways)) != 1:
        _end(WRONG, "backup: give one of --from, -n with --brokerName, and --config")
    if full_log and not (path or settings):
        _end(WRONG, "backup: --full-log is of a stopped replica, given by --config")
    backup_directory = BackupDirectory(directory)
    try:
        if path or settings:
            running = _of_stopped(backup_directory, _raft_config(path, settings), full_log)
        else:
            bytes_per_s = RATE.parse(rate, f"--bytes-per-s={rate}")
            running = _of_running(
                backup_directory,
                parse_address_list(addresses or ""),
                parse_address_list(name_servers or ""),
                broker_name or "",
                bytes_per_s,
                credentials_of_environment(os.environ),
                confirm=not unconfirmed,
            )
    except (ConfigError, ValueError) as error:
        _end(WRONG, f"backup: {error}")
    started_ms = time.time_ns() // 1_000_000
    try:
        taken = asyncio.run(running)
    except StoreInUse as error:
        _end(os.EX_TEMPFAIL, f"backup: {error}")
    except FAILURES as error:
        _end(FAILED, f"backup: {error}")
    taken_ms = taken.manifest.taken_ms
    if not started_ms - APART_MS <= taken_ms <= time.time_ns() // 1_000_000 + APART_MS:
        _say(
            f"{taken.manifest.node} says that it is {taken.manifest.taken}, here it was"
            f" {iso(started_ms)}: one of the two clocks is wrong"
        )
    if as_json:
        figures = {"copiedBytes": taken.copied_bytes, "keptBytes": taken.kept_bytes}
        _print_json(_facts(taken.manifest) | figures)
    else:
        _print(taken.manifest)
        click.echo(f"copied      {taken.copied_bytes} bytes; {taken.kept_bytes} were there already")


async def _of_running(
    backup_directory: BackupDirectory,
    replicas: list[str],
    name_servers: list[str],
    broker_name: str,
    bytes_per_s: int,
    credentials: Credentials | None,
    *,
    confirm: bool,
) -> Taken:
    client = RemotingClient(
        tls=await asyncio.to_thread(tls_of, os.environ),
        credentials=credentials,
    )
    try:
        if name_servers:
            replicas = await replicas_of(client, name_servers, broker_name)
        address = await choose(client, replicas)
        _say(f"reads from {address}")
        source = RemoteSource(client, address, bytes_per_s=bytes_per_s, confirm=confirm)
        return await take(source, backup_directory, say=_say)
    finally:
        await client.close()


async def _of_stopped(
    backup_directory: BackupDirectory, config: BrokerConfig, full_log: bool
) -> Taken:
    return await take(
        StoppedSource(config, full_log=full_log, say=_say), backup_directory, say=_say
    )


def verify(directory: str, as_json: bool) -> None:
    """Verify a backup, with the options of `mqbroker verify`."""
    backup_directory = BackupDirectory(directory)
    manifest = _manifest(backup_directory)
    try:
        damaged = list(complaints(backup_directory, manifest))
    except OSError as error:
        _end(FAILED, f"verify: {error}")
    if as_json:
        _print_json(_facts(manifest) | {"damaged": damaged})
    else:
        _print(manifest)
        for complaint in damaged:
            click.echo(f"damaged     {complaint}")
        click.echo(f"verdict     {'damaged' if damaged else 'whole'}")
    sys.exit(FAILED if damaged else 0)


def restore(
    directory: str,
    stores: tuple[str, ...],
    peers: str | None,
    path: str | None,
    settings: tuple[str, ...],
    to_index: int | None,
    to_time: str | None,
    incarnation: str | None,
) -> None:
    """Restore a backup, with the options of `mqbroker restore`."""
    config: StoreConfig | None = None
    if bool(path or settings) == bool(stores or peers) or bool(stores) != bool(peers):
        _end(WRONG, "restore: give either --into and --peers, or --config")
    if to_index is not None and to_time is not None:
        _end(WRONG, "restore: give either --to-index or --to-time")
    try:
        if peers is not None:
            members = parse_founders(peers)
        else:
            broker_config = _raft_config(path, settings)
            members, stores = broker_config.peers, (broker_config.store_path_root_dir,)
            config = store_config(broker_config)
        to_time_ms = None if to_time is None else _time_ms(to_time)
        named = _incarnation(incarnation)
    except (ConfigError, ValueError) as error:
        _end(WRONG, f"restore: {error}")
    if not members:
        _end(WRONG, "restore: the new group has no members")
    if incarnation is None and len(stores) < len(members):
        _end(
            WRONG,
            f"restore: this makes {len(stores)} of the group's {len(members)} stores: give"
            " --incarnation new here, and what that prints where the others are made",
        )
    backup_directory = BackupDirectory(directory)
    manifest = _manifest(backup_directory)
    try:
        for store in stores:
            check_empty(store)
        point = point_of(backup_directory, manifest, to_index=to_index, to_time_ms=to_time_ms)
    except BackupError as error:
        _end(FAILED if error.damaged else WRONG, f"restore: {error}")
    addresses = [(p.node_id, format_address(p.host, p.port)) for p in members]
    try:
        set_level("raftmq.broker.installation", "ERROR")  # it logs snapshot installs
        made = restore_stores(
            backup_directory, manifest, point, stores, addresses, named, config=config, say=_say
        )
    except StoreInUse as error:
        _end(os.EX_TEMPFAIL, f"restore: {error}")
    except FAILURES as error:
        _end(FAILED, f"restore: {error}")
    finally:
        set_level("raftmq.broker.installation", "")
    _print_restored(manifest, point, made, addresses)
    if len(stores) < len(members):
        click.echo(f"incarnation {named}: the other stores need --incarnation {named}")


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "group": manifest.group,
        "broker": manifest.broker,
        "node": manifest.node,
        "role": manifest.role,
        "taken": manifest.taken,
        "confirmed": manifest.confirmed,
        "commitIndex": manifest.commit_index,
        "term": manifest.term,
        "firstIndex": manifest.first_index,
        "start": manifest.start,
        "end": manifest.end,
        "messages": manifest.messages,
        "segments": len(manifest.segments),
        "states": [state.index for state in manifest.states],
    }


def _print(manifest: Manifest) -> None:
    confirmed = "" if manifest.confirmed else ", which no leader confirmed"
    click.echo(f"group       {manifest.group}, broker {manifest.broker}")
    click.echo(f"taken       {manifest.taken} from {manifest.node} ({manifest.role})")
    click.echo(
        f"frames      {manifest.first_index} to {manifest.commit_index}"
        f" (term {manifest.term}){confirmed}"
    )
    click.echo(
        f"log         bytes {manifest.start} to {manifest.end}, {manifest.messages} messages"
    )
    states = ", ".join(str(state.index) for state in manifest.states)
    click.echo(f"tables      of frame {states}")


def _print_restored(
    manifest: Manifest, point: Point, made: Restored, addresses: list[tuple[str, str]]
) -> None:
    peers = ";".join(f"{node}-{address}" for node, address in addresses)
    click.echo(
        f"frames      {manifest.first_index} to {made.index}, the last of {iso(made.time_ms)}"
    )
    left_out = manifest.commit_index - made.index
    if left_out:
        next_one = "" if point.next_ms is None else f", the first of {iso(point.next_ms)}"
        click.echo(f"left out    {left_out} frames{next_one}")
    click.echo(f"members     {peers}: frame {made.configuration_index}, term {made.term}")
    click.echo(f"group id    {made.group_id.hex()}: a new one")
    click.echo(f"log         ends at byte {made.end}, in every store alike")
    for key, value in notable(manifest.settings).items():
        click.echo(f"brokers     need {key}={value}")
    click.echo(
        f"            and a dLegerGroup other than {manifest.group}, if a replica of the old group"
        " may ever come back"
    )


def _print_json(value: dict[str, Any]) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _manifest(backup_directory: BackupDirectory) -> Manifest:
    try:
        return backup_directory.required()
    except BackupError as error:
        _end(FAILED if error.damaged else WRONG, str(error))
    except OSError as error:
        _end(WRONG, str(error))


def _raft_config(path: str | None, settings: tuple[str, ...]) -> BrokerConfig:
    """Load the configuration of a Raft replica. Raises ConfigError."""
    config = load(path, settings, os.environ).config
    if config.is_classic:
        raise ConfigError("enableDLegerCommitLog is not set: backups are of Raft groups")
    return config


def _incarnation(given: str | None) -> uuid.UUID:
    """Return the name of this restoration. Raises ValueError."""
    if given is None or given == "new":
        return uuid.uuid4()
    try:
        return uuid.UUID(given)
    except ValueError as error:
        raise ValueError(
            f"--incarnation {given}: give 'new' where the first store is made, and what that"
            " prints where the others are"
        ) from error


def _time_ms(text: str) -> int:
    """Parse a time into ms since 1970. Raises ValueError."""
    if text.isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _end(status: int, text: str) -> NoReturn:
    click.echo(f"mqbroker: {text}", err=True)
    sys.exit(status)
