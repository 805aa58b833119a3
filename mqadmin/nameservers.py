"""Name servers: getNamesrvConfig, updateNamesrvConfig, updateKvConfig, deleteKvConfig,
wipeWritePerm, addWritePerm. Every name server is asked, because they do not talk to each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from raftmq.client.admin import Admin
from raftmq.mqadmin.command import Arguments, Command, Done, Fields, Flag, Part, Table


async def get_config(admin: Admin, _: Arguments) -> Sequence[Part]:
    configs = await admin.name_server.configs()
    return [Fields(dict(sorted(c.items())), address) for address, c in configs.items()]


async def update_config(admin: Admin, arguments: Arguments) -> Sequence[Part]:
    key, value = arguments.text("key"), arguments.text("value")
    await admin.name_server.update_configs(key, value)
    return [Done(f"{key}={value} at {', '.join(admin.name_servers)}", {"key": key})]


async def put_kv(admin: Admin, arguments: Arguments) -> Sequence[Part]:
    namespace, key = arguments.text("namespace"), arguments.text("key")
    await admin.name_server.put_kv(namespace, key, arguments.text("value"))
    return [Done(f"{namespace} {key} is set at {', '.join(admin.name_servers)}", {"key": key})]


async def delete_kv(admin: Admin, arguments: Arguments) -> Sequence[Part]:
    namespace, key = arguments.text("namespace"), arguments.text("key")
    await admin.name_server.delete_kv(namespace, key)
    return [Done(f"{namespace} {key} is gone at {', '.join(admin.name_servers)}", {"key": key})]


async def set_writable(admin: Admin, arguments: Arguments, *, writable: bool) -> Sequence[Part]:
    counts = await admin.name_server.set_write_perm(arguments.text("brokerName"), writable)
    return [Table([{"nameServer": a, "topicsChanged": count} for a, count in counts.items()])]


NAMESPACE = Flag("s", "namespace", "The namespace.", required=True)
KEY = Flag("k", "key", "The key.", required=True)
VALUE = Flag("v", "value", "Its value.", required=True)
NAME = Flag("b", "brokerName", "The broker group's name.", required=True)

COMMANDS = (
    Command("getNamesrvConfig", "Show the configuration of name servers.", (), get_config),
    Command("updateNamesrvConfig", "Change a configuration key of name servers.", (KEY, VALUE),
        update_config),
    Command("updateKvConfig", "Set a key of the name servers' key-value store.",
        (NAMESPACE, KEY, VALUE), put_kv),
    Command("deleteKvConfig", "Delete a key of it.", (NAMESPACE, KEY), delete_kv),
    Command("wipeWritePerm", "Have routes offer a broker group's queues for reading only.",
        (NAME,), partial(set_writable, writable=False)),
    Command("addWritePerm", "Have routes offer them for writing again.", (NAME,),
        partial(set_writable, writable=True)),
)  # fmt: skip
