"""Operations that show and change a process's log levels until it ends."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from raftmq.ops import logs

from .operation import Call, Operation, Role
from .problem import not_found
from .schema import Input, View

PATH = "/api/v1/log-levels"


class LevelsView(View, frozen=True, kw_only=True):
    levels: dict[str, str]


class LoggerPath(Input, frozen=True, kw_only=True):
    logger: Annotated[str, Meta(pattern="^[A-Za-z0-9_.]+$", max_length=128)]


class LevelBody(Input, frozen=True, kw_only=True):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class LevelView(View, frozen=True, kw_only=True):
    logger: str
    level: str


def operations() -> list[Operation]:
    return [
        Operation("GET", PATH, "getLogLevels", "Of every logger there is.", levels,
                  answer=LevelsView),
        Operation("PUT", f"{PATH}/{{logger}}", "setLogLevel", "\"root\": of all others.",
                  set_level, role=Role.ADMIN, parameters=LoggerPath, body=LevelBody,
                  answer=LevelView, problems=(404,)),
    ]  # fmt: skip


async def levels(_: Call) -> LevelsView:
    return LevelsView(levels=logs.levels())


async def set_level(call: Call) -> LevelView:
    name, level = call.parameters.logger, call.body.level
    try:
        logs.set_level(name, level)
    except KeyError as error:
        raise not_found(f"there is no logger {name}") from error
    return LevelView(logger=name, level=level)
