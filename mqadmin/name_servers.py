"""Commands for name servers.

getNamesrvConfig, updateNamesrvConfig, updateKvConfig, deleteKvConfig, wipeWritePerm, addWritePerm.
Each command asks every name server, because they do not communicate.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.client.admin import Admin

from .command import Arguments, Done, Fields, Section, Table


async def get_config(admin: Admin, _: Arguments) -> Sequence[Section]:
    configs = await admin.name_server.configs()
    return [Fields(dict(sorted(c.items())), address) for address, c in configs.items()]


async def update_config(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    key, value = arguments.text("key"), arguments.text("value")
    await admin.name_server.update_configs(key, value)
    return [Done(f"{key}={value} at {', '.join(admin.name_servers)}", {"key": key})]


async def put_kv(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    namespace, key = arguments.text("namespace"), arguments.text("key")
    await admin.name_server.put_kv(namespace, key, arguments.text("value"))
    return [Done(f"{namespace} {key} is set at {', '.join(admin.name_servers)}", {"key": key})]


async def delete_kv(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    namespace, key = arguments.text("namespace"), arguments.text("key")
    await admin.name_server.delete_kv(namespace, key)
    return [Done(f"{namespace} {key} is gone at {', '.join(admin.name_servers)}", {"key": key})]


async def wipe_write_perm(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    return await _set_writable(admin, arguments, writable=False)


async def add_write_perm(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    return await _set_writable(admin, arguments, writable=True)


async def _set_writable(admin: Admin, arguments: Arguments, *, writable: bool) -> Sequence[Section]:
    counts = await admin.name_server.set_write_perm(arguments.text("brokerName"), writable)
    return [Table([{"nameServer": a, "topicsChanged": count} for a, count in counts.items()])]
