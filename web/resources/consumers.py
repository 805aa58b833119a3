"""Consumer groups, their offsets and clients."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from ..schema import Count, Input, TimeMs, View
from .basics import Name, QueueId


class SubscriptionDifferenceView(View, frozen=True, kw_only=True):
    """A topic in which a consumer has a different expression than most of its group; null for
    none."""

    topic: str
    expression: str | None
    others: str | None


class ClientView(View, frozen=True, kw_only=True):
    """A connected client. `versionName` is Apache's name of the version, such as "V5_3_3".
    `differs` has the first topics in which its subscriptions differ from its group's."""

    client_id: str
    address: str
    language: str
    version: int
    version_name: str = ""
    differs: list[SubscriptionDifferenceView] = []  # noqa: RUF012 (msgspec copies it)


class ConsumerGroupItem(View, frozen=True, kw_only=True):
    name: str
    client_count: int
    consume_enable: bool
    lag: int
    topics: list[str]


class ConsumerQueueView(View, frozen=True, kw_only=True):
    """`consumerOffset` is null if nothing was committed. `lag` counts messages that are not
    finished (0 in a topic that none of the group's clients subscribe to), of which `inFlight` were
    popped and not acknowledged. `lastTimeMs` is the store time of the last message that the group
    has consumed."""

    topic: str
    queue_id: int
    consumer_offset: int | None
    broker_offset: int
    lag: int
    in_flight: int
    last_time_ms: int | None


class ConsumerGroupView(View, frozen=True, kw_only=True):
    """`subscriptions` maps topic to expression, of the members online; `expressionTypes` maps topic
    to TAG or SQL92."""

    name: str
    consume_enable: bool
    consume_type: str | None
    message_model: str | None
    subscriptions: dict[str, str]
    expression_types: dict[str, str] = {}  # noqa: RUF012 (msgspec copies it)
    clients: list[ClientView]
    queues: list[ConsumerQueueView]
    queues_left_out: int
    lag: int
    in_flight: int


class ResetTo(Input, frozen=True, kw_only=True):
    """Exactly one of the three fields."""

    time_ms: TimeMs | UnsetType = UNSET
    offset: Count | UnsetType = UNSET
    position: Literal["earliest", "latest"] | UnsetType = UNSET


OneOfThree = Annotated[ResetTo, Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})]


class ResetBody(Input, frozen=True, kw_only=True):
    """`force` resets even if consumers are online; they continue from the new offsets. `preview`
    only reports the effect."""

    topic: Name
    to: OneOfThree
    queue_ids: Annotated[list[QueueId], Meta(max_length=1_024)] | None = None
    force: bool = False
    preview: bool = False


class ResetQueueView(View, frozen=True, kw_only=True):
    """A queue's offset `before` (null if nothing was committed) and after the reset. `maxOffset` is
    the next message's offset."""

    queue_id: int
    before: int | None
    offset: int
    min_offset: int = 0
    max_offset: int = 0


class ResetView(View, frozen=True, kw_only=True):
    """`done` is false for a preview. `online` lists consumers that would continue from the new
    offsets."""

    topic: str
    queues: list[ResetQueueView]
    done: bool = True
    online: int = 0


Mode = Literal["PULL", "POP"]


class ModePath(Input, frozen=True, kw_only=True):
    group: Name
    topic: Name


class ModeBody(Input, frozen=True, kw_only=True):
    """`popShareQueueNum` is the number of neighbours with which a popping client shares its queues;
    0 means all."""

    mode: Mode
    pop_share_queue_num: Annotated[int, Meta(ge=-1, le=65_536)] = 0


class ModeView(View, frozen=True, kw_only=True):
    """The mode in which a group's clients of 5.x receive a topic's messages, by default PULL."""

    group: str
    topic: str
    mode: str
    pop_share_queue_num: int


class PausedView(View, frozen=True, kw_only=True):
    name: str
    consume_enable: bool


class ConnectionItem(View, frozen=True, kw_only=True):
    name: str
    clients: list[ClientView]


class ConnectionsView(View, frozen=True, kw_only=True):
    """Groups with their connected clients, by name; `leftOut` counts omitted groups."""

    producers: list[ConnectionItem]
    consumers: list[ConnectionItem]
    left_out: int
