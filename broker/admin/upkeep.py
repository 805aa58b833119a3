"""Upkeep of a replica on request, by live configuration (25), expired queues (306), queues of
deleted topics (316), expired log (329). Each replica acts for itself, without the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from raftmq.ops.logs import set_level
from raftmq.ops.options import ConfigError
from raftmq.ops.settings import parse_properties
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection

from ..checkpointer import Keeper
from ..component import Service
from ..config import BrokerConfig, change_live, parse_live
from ..context import Context
from ..errors import Refused
from ..registration import Registrar
from ..retention import Retention

log = logging.getLogger("raftmq.broker.config")


def change(config: BrokerConfig, live: Mapping[str, object], registrar: Registrar) -> None:
    """Change live keys, and inform the parts that cache them. Raises ConfigError, unchanged."""
    change_live(config, live)
    if "namesrvAddr" in live:
        registrar.use(config.name_servers)
    if "logLevel" in live:
        set_level("root", str(live["logLevel"]))
    log.info("config_changed keys=%s", ",".join(live))


class Upkeep:
    def __init__(
        self, context: Context, keeper: Keeper, retention: Retention, registrar: Registrar
    ) -> None:
        self._config = context.config
        self._registrar = registrar
        self._store = context.store
        self._keeper = keeper
        self._retention = retention

    def service(self) -> Service:
        code = RequestCode
        return Service(
            handlers={
                int(code.UPDATE_BROKER_CONFIG): self.update_config,
                int(code.CLEAN_EXPIRED_CONSUMEQUEUE): self.clean_queues,
                int(code.CLEAN_UNUSED_TOPIC): self.clean_queues,
                int(code.DELETE_EXPIRED_COMMITLOG): self.delete_log,
            }
        )

    def update_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Change live keys (25) by a properties text, all or none. The change lasts until the
        process ends, because broker.conf is the operator's."""
        try:
            settings = parse_properties(request.body.decode(), "the request")
            changes = parse_live({setting.key: setting.value for setting in settings})
            if changes.fixed:
                keys = ", ".join(sorted(changes.fixed))
                raise ConfigError(f"{keys}: not while the broker runs; set it in broker.conf")
            change(self._config, changes.live, self._registrar)
        except (ConfigError, UnicodeDecodeError) as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return RemotingCommand.response_to(request)

    def clean_queues(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete the part of queues below the log (306). For deleted topics (316) the effect is the
        same. The last file of each queue stays, because a recreated topic continues its offsets.
        Raises Refused."""
        try:
            self._store.derived.correct_min_offset()
        except OSError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"queues not cleaned: {error}") from error
        return RemotingCommand.response_to(request)

    async def delete_log(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete expired log now instead of at `deleteWhen` (329), and answer its size. The ext
        field trustClock=true accepts the wall clock. Apache's tool sends no field, and reads only
        the code. Raises Refused."""
        if (request.ext or {}).get("trustClock") == "true":
            self._retention.trust_clock()
        try:
            retained = await self._keeper.retain(at_once=True)
        except OSError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"log not deleted: {error}") from error
        ext = {"deletedBytes": str(retained.deleted), "keptBytes": str(retained.kept)}
        if retained.kept:
            ext["keptFor"] = retained.kept_for
        return RemotingCommand.response_to(request, ext=ext)
