"""Brokers of the route table, including brokers that left recently.

A broker's route ends with its connection, for example when it is killed, but operators still want
to see it. So its last entry is kept for FORGET_MS or until `forget`, except if its group was
removed from the cluster. Callers pass the time (`now_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from ..routes import LEADER_ID, RouteTable
from .reach import Contact, Reach

FORGET_MS = 30 * 60_000  # an operator on call responds within that time
GONE_MAX = 256  # addresses that left; the oldest are dropped first
LIVE_MAX = 2_000  # brokers shown, signed registrations first, to limit the cost of a page
NOT_REGISTERED = Contact(refused="no broker has registered it")


@dataclass(frozen=True, slots=True)
class Known:
    """A broker's last route entry. `broker_id` is None for a registered but unlisted broker (a
    former leader before its next registration)."""

    group: str
    cluster: str
    address: str
    broker_id: int | None
    http_address: str
    peer: str = ""  # the host that it registered from
    signed: bool = False
    gone_since_ms: int | None = None  # None while it is registered

    @property
    def key(self) -> tuple[str, str]:
        return (self.group, self.address)


class Directory:
    """Remembers the table's brokers. `poll` reads the table without changing it."""

    def __init__(
        self, table: RouteTable, reach: Reach | None = None, gone_max: int = GONE_MAX
    ) -> None:
        self._table = table
        self._reach = reach or Reach()
        self._gone_max = gone_max
        self._seen: dict[tuple[str, str], Known] = {}
        # Of a version of the table, because each request of a page polls
        self._version = -1
        self._ends_ms = 0  # when the first broker that left is forgotten
        self._sorted: Sequence[Known] = ()
        self._by_group: dict[str, list[Known]] = {}
        self._by_http: dict[str, list[Known]] = {}

    def poll(self, now_ms: int) -> Sequence[Known]:
        """Return all brokers by group and address; a broker that left keeps its last entry."""
        if self._version != self._table.groups_version or now_ms > self._ends_ms:
            self._version = self._table.groups_version
            self._read(now_ms)
        return self._sorted

    def groups(self, now_ms: int) -> Mapping[str, Sequence[Known]]:
        """Return `poll` by group."""
        self.poll(now_ms)
        return self._by_group

    def _read(self, now_ms: int) -> None:
        live = self._live()
        for key, known in list(self._seen.items()):
            if key in live:
                continue
            if self._table.was_removed(known.group):
                del self._seen[key]
            elif known.gone_since_ms is None:
                self._seen[key] = replace(known, gone_since_ms=now_ms)
            elif now_ms - known.gone_since_ms > FORGET_MS:
                del self._seen[key]
        self._seen |= live
        self._forget_oldest()
        self._sorted = tuple(sorted(self._seen.values(), key=lambda known: known.key))
        self._by_group = by_group(self._sorted)
        self._by_http = {}
        for known in self._sorted:
            self._by_http.setdefault(known.http_address, []).append(known)
        gone = (known.gone_since_ms for known in self._sorted if known.gone_since_ms is not None)
        self._ends_ms = min(gone, default=now_ms) + FORGET_MS

    def contact(self, http_address: str) -> Contact:
        """Return the target of requests to an address, as its registered brokers permit."""
        contact = NOT_REGISTERED
        for known in self.at(http_address):
            contact = self._reach.contact(http_address, known.peer, signed=known.signed)
            if not contact.refused:
                break
        return contact

    def at(self, http_address: str) -> Sequence[Known]:
        """Return the brokers of the last poll that registered this address."""
        return self._by_http.get(http_address, ())

    def forget(self, group: str, address: str) -> bool:
        """Drop a broker that left. Return False if there is none."""
        known = self._seen.get((group, address))
        if known is None or known.gone_since_ms is None:
            return False
        del self._seen[known.key]
        self._version = -1
        return True

    def _live(self) -> dict[tuple[str, str], Known]:
        groups = list(self._table.groups())
        signed = ((group, b) for group in groups if group.signed for b in group.live.values())
        rest = ((group, b) for group in groups if not group.signed for b in group.live.values())
        result: dict[tuple[str, str], Known] = {}
        for group, broker in islice(chain(signed, rest), LIVE_MAX):
            listed = group.addresses.get(broker.broker_id) == broker.address
            known = Known(
                group.name, group.cluster, broker.address, broker.broker_id if listed else None,
                broker.http_address, broker.peer, broker.signed,
            )  # fmt: skip
            result[known.key] = known
        return result

    def _forget_oldest(self) -> None:
        removed = [known for known in self._seen.values() if known.gone_since_ms is not None]
        removed.sort(key=lambda known: known.gone_since_ms or 0)
        for known in removed[: max(0, len(removed) - self._gone_max)]:
            del self._seen[known.key]


def by_group(known: Iterable[Known]) -> dict[str, list[Known]]:
    result: dict[str, list[Known]] = {}
    for item in known:
        result.setdefault(item.group, []).append(item)
    return result


def leader_of(known: Sequence[Known], group: str) -> Known | None:
    """Return the leader in clients' routes, or None."""
    for item in known:
        if item.group == group and item.broker_id == LEADER_ID and item.gone_since_ms is None:
            return item
    return None


def find(known: Sequence[Known], group: str, reference: str) -> Known | None:
    """Return `group`'s broker by id or address. A registered one wins over one that left."""
    mine = [item for item in known if item.group == group]
    mine.sort(key=lambda item: item.gone_since_ms is not None)
    for item in mine:
        if reference == item.address or (
            item.broker_id is not None and reference == str(item.broker_id)
        ):
            return item
    return None
