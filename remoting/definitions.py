"""The rules for definitions of topics and consumer groups that differ between broker groups
(docs/scaling.md). Pure.

A definition is a topic's or a consumer group's configuration, Apache's JSON object. Retry topics,
dead letters and brokers' own topics and groups are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .names import DLQ_PREFIX, RETRY_PREFIX, is_brokers_own
from .topic_attributes import ATTRIBUTES, MESSAGE_TYPE, NORMAL, is_ordered_topic

PERM_TEXT = {0: "-", 2: "W", 4: "R", 6: "RW"}
COUNTS = READ_COUNT, WRITE_COUNT = ("readQueueNums", "writeQueueNums")
# The outcomes.
MADE, CHANGED, THERE = "made", "changed", "there already"
DIFFERS, REFUSED = "left: it differs", "refused"
ORDERED = "ordered, and a key's queue would change; --withOrdered"

Bean = Mapping[str, Any]
Has = Mapping[str, Bean | None]  # by broker group


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome for a topic or a consumer group, and its reason if needed. `puts` has the new
    definition by broker group."""

    kind: str
    name: str
    outcome: str
    why: str = ""
    puts: Mapping[str, Bean] = field(default_factory=dict)


def is_own(topic: str, own: Collection[str], *, derived: bool = True) -> bool:
    """Return whether brokers create the topic themselves. `own` has the names of brokers and
    clusters; `derived` includes retry topics and dead letters."""
    if not derived and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return False
    return topic in own or is_brokers_own(topic)


def aligned_topic(name: str, has: Has, with_ordered: bool) -> Step:
    """Return the step that gives each broker group the topic, with the most queues of any. Other
    differences are left."""
    largest = largest_of(has)
    counts = {key: largest[key] for key in COUNTS}
    puts = {
        broker: resized(bean, counts) if bean else largest
        for broker, bean in has.items()
        if bean is None or any(int(bean[key]) != counts[key] for key in COUNTS)
    }
    if why := types_of(has) or (unsupported(present(has)) if puts else ""):
        return Step("topic", name, REFUSED, why)
    if puts and is_ordered(has) and not with_ordered:
        return Step("topic", name, DIFFERS, ORDERED)
    reasons = ["/".join(map(str, counts.values())) + f" in {', '.join(puts)}"] if puts else []
    fields = ("perm", "order", "topicSysFlag")
    left = [k for k in fields if len({int(bean.get(k) or 0) for bean in present(has)}) > 1]
    reasons += [f"left: {', '.join(left)}"] if left else []
    made = any(has[broker] is None for broker in puts)
    outcome = MADE if made else CHANGED if puts else DIFFERS if left else THERE
    return Step("topic", name, outcome, "; ".join(reasons), puts)


def aligned_group(name: str, has: Has, like: str) -> Step:
    """Return the step that gives each broker group the consumer group, with the settings of `like`.
    Consumers may have created it with a broker's defaults. Without these settings a consumer group
    that differs is left."""
    model, beans = has.get(like), present(has)
    differing = _differing(beans)
    if model is None and differing:
        return Step("group", name, DIFFERS, f"{', '.join(differing)}: --like BROKER")
    model = model or beans[0]
    changes = {
        broker: [f"{key} was {bean[key]}" for key in _differing([model, bean])] if bean else []
        for broker, bean in has.items()
    }
    puts = {broker: model for broker, bean in has.items() if bean is None or changes[broker]}
    made = any(has[broker] is None for broker in puts)
    why = "; ".join(text for texts in changes.values() for text in texts)
    return Step("group", name, MADE if made else CHANGED if puts else THERE, why, puts)


def largest_of(has: Has) -> dict[str, Any]:
    """Return the definition of the broker group with the most queues, with the largest counts."""
    beans = present(has)
    counts = {key: max(int(bean[key]) for bean in beans) for key in COUNTS}
    return {**max(beans, key=lambda bean: int(bean[WRITE_COUNT])), **counts}


def resized(bean: Bean, counts: Mapping[str, int]) -> Bean:
    """Return an existing topic with new counts of queues. Brokers keep its attributes."""
    return {**bean, **counts, "attributes": {}}


def types_of(has: Has) -> str:
    """Return the topic's types of messages by broker group if they differ, else ""."""
    types = {broker: message_type(bean) for broker, bean in has.items() if bean}
    by_broker = ", ".join(f"{name} in {broker}" for broker, name in types.items())
    return f"{MESSAGE_TYPE} is {by_broker}" if len(set(types.values())) > 1 else ""


def is_ordered(has: Has) -> bool:
    """Return whether the topic's messages are ordered by key in any broker group."""
    return any(
        is_ordered_topic(bool(bean.get("order")), message_type(bean)) for bean in present(has)
    )


def message_type(bean: Bean) -> str:
    """Return the type of a topic's messages."""
    return attributes_of(bean).get(MESSAGE_TYPE, NORMAL)


def strange_attributes(bean: Bean) -> list[str]:
    """Return the topic's attributes that our brokers ignore."""
    return sorted(
        key
        for key, value in attributes_of(bean).items()
        if key not in ATTRIBUTES or value not in ATTRIBUTES[key].values
    )


def shown(kind: str, has: Has) -> dict[str, str]:
    """Return a line of text for each broker group's definition."""
    differing = _differing(present(has))

    def text(bean: Bean | None) -> str:
        if bean is None:
            return "missing"
        if kind == "group":
            return ", ".join(f"{key} {bean[key]}" for key in differing) or "there"
        perm = int(bean["perm"])
        fields = [f"{bean[READ_COUNT]}/{bean[WRITE_COUNT]}", PERM_TEXT.get(perm & 6, str(perm))]
        fields += ["order"] if bean.get("order") else []
        return " ".join(fields + ([] if message_type(bean) == NORMAL else [message_type(bean)]))

    return {broker: text(bean) for broker, bean in has.items()}


def unsupported(beans: Sequence[Bean]) -> str:
    """Return why topics with attributes that our brokers ignore are refused, or ""."""
    strange = sorted({key for bean in beans for key in strange_attributes(bean)})
    return f"brokers here do not act by {', '.join(strange)}" if strange else ""


def _differing(beans: Sequence[Bean]) -> list[str]:
    """Return the common fields with several values."""
    common = set[str]().union(*beans).intersection(*beans)
    return sorted(key for key in common if any(bean[key] != beans[0][key] for bean in beans))


def present(has: Has) -> list[Bean]:
    """Return the definitions that exist."""
    return [bean for bean in has.values() if bean is not None]


def attributes_of(bean: Bean) -> dict[str, str]:
    """Return a topic's attributes."""
    return {str(key): str(value) for key, value in (bean.get("attributes") or {}).items()}
