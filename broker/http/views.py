"""View types of writers, configuration and figures, used by a broker's node API alone.

Pure.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftmq.ops.options import Option
from raftmq.web.resources.basics import Name
from raftmq.web.schema import INTEGER_MAX, Input, View

from ..config import OPTIONS
from ..tables.writers import NAME_LENGTH_MAX


class WriterPath(Input, frozen=True, kw_only=True):
    topic: Name
    writer: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class WatermarkView(View, frozen=True, kw_only=True):
    """The last stored request of a writer in a queue."""

    queue_id: int
    batch: int
    sequence: int


class WriterView(View, frozen=True, kw_only=True):
    """`lastTimeMs` is the time of the last open or write."""

    topic: str
    writer: str
    epoch: int
    last_time_ms: int
    watermarks: list[WatermarkView]


class SettingView(View, frozen=True, kw_only=True):
    """`live` keys can be changed by PATCH while the broker runs."""

    key: str
    section: str
    value: bool | int | str
    default: bool | int | str
    live: bool
    unit: str
    doc: str


def _as_schema(option: Option) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string" if option.kind == "text" else option.kind}
    if option.choices:
        schema["enum"] = list(option.choices)
    for name, bound in (("minimum", option.low), ("maximum", option.high)):
        if bound is not None:
            schema[name] = bound
    if option.kind == "integer" and option.high is None:
        schema["maximum"] = INTEGER_MAX
    return schema


Changes = Annotated[
    dict[str, bool | int | str],
    Meta(
        min_length=1,
        description="key → value, in the key's own unit.",
        extra_json_schema={
            "properties": {key: _as_schema(option) for key, option in OPTIONS.items()},
            "additionalProperties": False,
        },
    ),
]


class ChangedView(View, frozen=True, kw_only=True):
    """`needsRestart` lists valid keys that a running broker cannot change."""

    applied: dict[str, bool | int | str]
    needs_restart: list[str]


class SendResultView(View, frozen=True, kw_only=True):
    code: int
    reason: str
    count: int


class StatisticsView(View, frozen=True, kw_only=True):
    """`runtime` is the table of GET_BROKER_RUNTIME_INFO."""

    runtime: dict[str, str]
    sends: list[SendResultView]
