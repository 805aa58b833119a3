"""Planted breaks that several broker groups show: what they share, and how they join and leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from raftmq.broker.admin.drain import Drain
from raftmq.broker.cluster import sharing
from raftmq.broker.cluster.definitions import Adoption, Merged
from raftmq.broker.cluster.sharing import DefinitionSharing
from raftmq.broker.component import RoleChange
from raftmq.broker.tables.broker_group import drain
from raftmq.broker.tables.topics import topic_from_json
from raftmq.broker.tables.versioned import VersionedTable
from raftmq.broker.tables.writers import WriterTable
from tests.simulator.cluster.planting import instead, replaced

Planted = AbstractContextManager[Any]


def deletions_are_not_recorded() -> Planted:
    """A topic that is deleted in a group comes back from one where that is not done yet."""
    return instead(VersionedTable, "record_deletion", lambda self, name, at_ms: None)


def new_leaders_drain_no_more() -> Planted:
    """A failover cancels a drain."""

    def broken(role_changed: Any) -> Any:
        def changed(self: Drain, change: RoleChange) -> None:
            role_changed(self, change)
            if change.began and self._draining:
                self._context.log.propose_then(drain(on=False), lambda error: None)

        return changed

    return replaced(Drain, "_role_changed", broken)


def removed_with_a_message_left() -> Planted:
    """One message is counted as none."""
    return _empty_with(lambda left: left["remaining"] == 1)


def removed_with_transactions_open() -> Planted:
    """Half messages are not counted."""
    return _empty_with(lambda left: left["remaining"] == left["transactions"])


def removed_with_popped_messages_left() -> Planted:
    """Popped messages are counted as acknowledged, neither as unconsumed nor by themselves."""
    return _empty_with(lambda left: left["remaining"] == 2 * left["popped"])


def _empty_with(is_enough: Callable[[dict[str, Any]], bool]) -> Planted:
    def broken(status: Any) -> Any:
        async def counts(self: Drain) -> dict[str, Any]:
            value: dict[str, Any] = await status(self)
            if self._draining and not value["takesSends"] and is_enough(value):
                value |= {"isEmpty": True, "remainder": ""}
            return value

        return counts

    return replaced(Drain, "status", broken)


def timers_are_moved_twice() -> Planted:
    """A group does not record which windows of another group it has stored; after a lost answer a
    window is stored again."""

    def broken(apply: Any) -> Any:
        def applies(self: WriterTable, command: Mapping[str, Any], stamp_ms: int) -> None:
            if command["op"] != "wrote":
                apply(self, command, stamp_ms)

        return applies

    return replaced(WriterTable, "apply", broken)


def ordered_topics_are_adopted() -> Planted:
    """A topic whose keys have their queues is made in new groups, too."""

    def broken(adoption: Any) -> Any:
        def adopts(read: Merged, *more: Any) -> Adoption:
            result: Adoption = adoption(read, *more)
            for name in result.refused.keys() & read.topics.keys():
                for _, bean, created_ms in read.topics[name]:
                    result.topics.append((topic_from_json(bean), created_ms))
            return result

        return adopts

    return replaced(sharing, "adoption", broken)


def groups_register_before_they_have_joined() -> Planted:
    """A group is in the routes before it has what the others have."""

    def broken(role_changed: Any) -> Any:
        def changed(self: DefinitionSharing, change: RoleChange) -> None:
            role_changed(self, change)
            self._context.roles.joining = False

        return changed

    return replaced(DefinitionSharing, "_role_changed", broken)
