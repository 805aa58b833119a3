"""Auto-creation of consumer groups."""

from __future__ import annotations

import logging
from functools import partial

from ..clients import ClientTable
from ..context import Context
from ..errors import Refused, busy
from ..tables.groups import SubscriptionGroup
from ..tables.state import put_group, put_topic
from ..tables.topics import RETRY_PREFIX, retry_topic

log = logging.getLogger("raftmq.broker")

BEING_CREATED_MAX = 10_000


class GroupCreation:
    """Creates missing consumer groups if allowed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._being_created: set[str] = set()

    def is_notified(self, group: str) -> bool:
        """Return True if the group's consumers are notified of joining and leaving members."""
        config = self._context.state.groups.get(group)
        enabled = config is None or config.notify_enable
        return enabled and self._context.config.notify_consumer_ids_changed_enable

    def ensure(self, name: str) -> None:
        """Create a missing group and its retry topic if allowed. Raises Refused at `groupsMax`."""
        self._ensure(name, retry=True)

    def ensure_bare(self, name: str) -> None:
        """Create a missing group without a retry topic."""
        self._ensure(name, retry=False)

    def ensure_all(self, clients: ClientTable) -> None:
        """Create the groups of all connected consumers after an election."""
        for group in list(clients.consumers):
            self._context.contained.run("group_created", partial(self._ensure_again, group))

    def _ensure_again(self, name: str) -> None:
        try:
            self.ensure(name)
        except Refused as refused:  # its next heartbeat gets the same error
            log.info("group_not_created group=%s: %s", name, refused)

    def _is_full(self, groups_max: int) -> bool:
        """Return True if existing groups and groups in creation reach the maximum."""
        known, coming = self._context.state.groups.entries, self._being_created
        if len(known) + len(coming) < groups_max:
            return False
        # A group stays in creation until its proposal or retry topic is done.
        return len(known) + sum(name not in known for name in coming) >= groups_max

    def _ensure(self, name: str, *, retry: bool) -> None:
        state = self._context.state
        if not self._context.roles.leading or name in self._being_created:
            return
        commands: list[bytes] = []
        group = state.groups.get(name)
        may_create = self._context.config.auto_create_subscription_group
        if group is None and may_create and not state.group.draining_ms:
            groups_max = self._context.config.groups_max
            if self._is_full(groups_max):
                raise busy(f"there are {groups_max} consumer groups already; none was created")
            group = SubscriptionGroup(name)
            commands.append(put_group(group, if_absent=True))
        if group is None:
            return
        if retry and state.topics.get(RETRY_PREFIX + name) is None:
            topic = retry_topic(name, max(1, group.retry_queue_count))
            commands.insert(0, put_topic(topic, if_absent=True))  # before its group
        if not commands or len(self._being_created) >= BEING_CREATED_MAX:
            return
        self._being_created.add(name)

        def done(error: Exception | None) -> None:
            self._being_created.discard(name)
            if error is not None:  # the group's next heartbeat or pull retries
                log.info("group_not_created group=%s: %s", name, error)

        for command in commands:
            self._context.log.propose_then(command, done)
