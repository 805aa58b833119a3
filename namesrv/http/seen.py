"""Types of the fields that a name server reads in brokers' answers.

Wrong types make a wrong answer (`broker_http.WrongAnswer`). All further fields pass unchanged.
Fields with a default may be missing.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from raftmq.web.schema import View

Object = dict[str, Any]
_Position = int | Annotated[str, Meta(pattern="^[0-9]{1,20}$")] | None


class Items(View, frozen=True):
    items: list[Object]
    next: str | None = None


class MemberSeen(View, frozen=True):
    id: str
    address: str
    role: str | None = None


class PeerSeen(View, frozen=True):
    id: str
    lag_frames: int | None = None


class NodeSeen(View, frozen=True):
    name: str | None = None
    address: str | None = None
    role: str | None = None
    mode: str | None = None
    term: int | None = None
    leader: str | None = None
    preferred_leader: str | None = None
    draining_ms: int | None = None
    zone: str | None = None
    members: list[MemberSeen] | None = None
    peers: list[PeerSeen] | None = None
    disk: Object | None = None
    commit_log: Object | None = None


class TopicSeen(View, frozen=True):
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: dict[str, str] = {}  # noqa: RUF012 (msgspec copies it)


class MessageSeen(View, frozen=True):
    commit_log_offset: int = 0
    store_timestamp: int | None = None


class Messages(View, frozen=True):
    items: list[MessageSeen]
    next: _Position = None
    scanned: int | None = None


class ConsumerSeen(View, frozen=True):
    clients: list[Object] | None = None
    queues: list[Object] | None = None
    subscriptions: Object | None = None
    expression_types: Object | None = None


class AccountSeen(View, frozen=True):
    access_key: str


class Accounts(View, frozen=True):
    items: list[AccountSeen]
    white_addresses: list[str] | None = None


class Connections(View, frozen=True):
    producers: list[Object] | None = None
    consumers: list[Object] | None = None


class SeriesSeen(View, frozen=True):
    name: str
    topic: str | None
    values: list[float | None]


class History(View, frozen=True):
    times: list[int]
    leading: list[bool | None]
    series: list[SeriesSeen]

    def __post_init__(self) -> None:
        lengths = {len(self.leading), *(len(item.values) for item in self.series)}
        if lengths - {len(self.times)}:
            raise ValueError("a series has another length than the times")
