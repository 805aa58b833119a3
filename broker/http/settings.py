"""HTTP operations on configuration, log levels and statistics of this node.

Live keys are declared in broker.config (`live=True`). A change lasts until the process ends,
because broker.conf is the operator's.
"""

from __future__ import annotations

from raftmq.ops.options import ConfigError
from raftmq.ops.versions import version_of
from raftmq.web import levels
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import invalid
from raftmq.web.schema import INTEGER_MAX, Listing
from raftmq.web.versions import unmet

from ..admin.parts import Parts
from ..admin.runtime_info import runtime_info
from ..admin.upkeep import change
from ..config import OPTIONS, parse_live
from .views import (
    ChangedView,
    Changes,
    SendResultView,
    SettingView,
    StatisticsView,
)


class SettingOperations:
    """The operations on configuration, log levels and statistics."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/api/v1/config", "getConfig", "Every key, in effect and by default.",
                      self.config, answer=Listing[SettingView]),
            Operation("PATCH", "/api/v1/config", "changeConfig",
                      "Change live keys until the broker is started anew; all of them or none.",
                      self.change, role=Role.ADMIN, body=Changes, answer=ChangedView,
                      conditional=True),
            *levels.operations(),
            Operation("GET", "/api/v1/statistics", "getStatistics", "Counters and figures.",
                      self.statistics, answer=StatisticsView),
        ]  # fmt: skip

    async def config(self, _: Call) -> Reply:
        return Reply(self._view(), version=self._version())

    def _view(self) -> Listing[SettingView]:
        config = self._parts.context.config
        return Listing(
            items=[
                SettingView(
                    key=option.key,
                    section=option.section,
                    value=option.shown(getattr(config, option.name)),
                    default=option.default,
                    live=option.live,
                    unit=option.unit,
                    doc=option.doc,
                )
                for option in OPTIONS.values()
            ]
        )

    def _version(self) -> str:
        config = self._parts.context.config
        return version_of({key: getattr(config, o.name) for key, o in OPTIONS.items()})

    async def change(self, call: Call) -> Reply:
        """Change live keys, without an await between the check of the version and the change."""
        version = self._version()
        if not call.condition.met_by(version):
            raise unmet(version)
        wrong = [
            (key, reason) for key, value in call.body.items() if (reason := _not_of(key, value))
        ]
        if wrong:
            raise invalid(wrong)
        try:
            changes = parse_live(call.body)
            change(self._parts.context.config, changes.live, self._parts.registrar)
        except ConfigError as error:
            raise invalid([("", str(error))]) from error
        view = ChangedView(applied=changes.live, needs_restart=sorted(changes.fixed))
        return Reply(view, version=self._version())

    async def statistics(self, _: Call) -> StatisticsView:
        results = sorted(self._parts.sends.results.items())
        return StatisticsView(
            runtime=runtime_info(self._parts),
            sends=[
                SendResultView(code=code, reason=reason, count=count)
                for (code, reason), count in results
            ],
        )


def _not_of(key: str, value: bool | int | str) -> str:
    """Return why the value does not have the key's JSON type, or ""."""
    option = OPTIONS.get(key)
    if option is None:
        return "there is no such key"
    if type(value) is not type(option.default):
        return f"expected {option.kind}"
    return "is too large" if isinstance(value, int) and value > INTEGER_MAX else ""
