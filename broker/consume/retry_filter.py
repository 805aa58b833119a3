"""The retries of one group, among others' in a topic of the same name. Pure.

A pop retry topic is `%RETRY%group_topic`, as in Apache's brokers. So group `a` with topic `b_c` has
the same one as group `a_b` with topic `c`, and group `a_b_c` has it for its ordinary retries. Each
retry of a pop says in ORIGIN_GROUP which group it is for; a group passes over those of the others.
Its progress is its own, so it hides nothing from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftmq.remoting.names import RETRY_PREFIX
from raftmq.remoting.pop_headers import FIRST_POP_TIME, ORIGIN_GROUP
from raftmq.store.properties import PROPERTIES_SIZE_BYTES_MAX, TAGS, joined, tags_code

from .filters import RETRY_TOPIC, Filter

NOTED_BYTES_MAX = 600  # what a pop's retry gets in addition: group, topic and a time


def own_retries(wanted: Filter, topic: str, group: str) -> Filter:
    """Return the filter of a read of `topic` by `group`, which leaves out other groups' retries."""
    name = topic.removeprefix(RETRY_PREFIX)
    if name == topic or "_" not in name:
        return wanted
    if name == group or name.startswith(f"{group}_"):
        return Filter(wanted.codes, OwnRetries(group, name == group, wanted))
    return wanted


@dataclass(frozen=True, slots=True)
class OwnRetries:
    """Matches the group's own retries that `wanted` takes, too. `ordinary`: the topic is the
    group's own, not one of its pop retry topics."""

    group: str
    ordinary: bool
    wanted: Filter

    @property
    def evaluates(self) -> bool:
        return self.wanted.evaluates

    def matches(self, properties: Mapping[str, str]) -> bool:
        if not self._is_own(properties):
            return False
        codes, matcher = self.wanted.codes, self.wanted.matcher
        if codes is not None and tags_code(properties.get(TAGS)) not in codes:
            return False
        return matcher is None or matcher.matches(properties)

    def work(self, properties: Mapping[str, str]) -> int:
        return 0 if self.wanted.matcher is None else self.wanted.matcher.work(properties)

    def _is_own(self, properties: Mapping[str, str]) -> bool:
        origin = properties.get(ORIGIN_GROUP)
        if self.ordinary:  # another group's dead letter, given back, is no retry of a pop
            return origin is None or self.group != f"{origin}_{properties.get(RETRY_TOPIC)}"
        if origin is None:  # Apache's first brokers did not note it; or there was no room
            full = PROPERTIES_SIZE_BYTES_MAX - NOTED_BYTES_MAX
            return FIRST_POP_TIME in properties or len(joined(properties)) > full
        return origin == self.group
