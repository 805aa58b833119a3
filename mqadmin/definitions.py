"""definitions and copyDefinitions, which compare the definitions of broker groups and copy them
(docs/scaling.md, docs/moving.md).

A definition is a topic's or a consumer group's configuration, Apache's JSON object. Retry topics,
dead letters and brokers' own topics and groups are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raftmq.client.admin import Admin, ClusterInfo
from raftmq.client.errors import BrokerRefused
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, is_brokers_own
from raftmq.remoting.topic_attributes import ATTRIBUTES, MESSAGE_TYPE, NORMAL, is_ordered_topic

from .command import Arguments, CommandError, Section, Table
from .targets import cluster_groups, no_leader

READ = 4
PERMS = (2, READ, 6)
PERM_TEXT = {0: "-", 2: "W", 4: "R", 6: "RW"}
COUNTS = READ_COUNT, WRITE_COUNT = ("readQueueNums", "writeQueueNums")
# A topic that differs in these fields is not copied.
TOPIC_FIELDS = (*COUNTS, "order", "topicSysFlag")
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


async def copy_definitions(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    """Copy the topics and consumer groups of a broker group."""
    old, new = arguments.text("from"), arguments.text("to")
    perm = arguments.integer("perm")
    info = await admin.cluster.info()
    leaders = info.leaders
    for name in (old, new):
        if name not in leaders:
            known = ", ".join(sorted(leaders)) or "none"
            raise CommandError(f"there is no broker group {name!r} with a leader; known: {known}")
    if old == new:
        raise CommandError("from and to are the same broker group", usage=True)
    if perm not in (None, *PERMS):
        raise CommandError(f"--perm {perm}: expected 2, 4 or 6", usage=True)
    topics, groups = await _read(admin, info, (old, new))
    steps = [
        copied_topic(name, bean, new, has[new], READ if perm is None else perm)
        for name, has in topics.items()
        if (bean := has[old]) is not None
    ]
    steps += [aligned_group(name, has, old) for name, has in groups.items() if has[old]]
    if not arguments.on("dryRun"):
        await _carry_out(admin, leaders, steps)
    rows = [
        {"kind": step.kind, "name": step.name, "outcome": step.outcome, "why": step.why}
        for step in steps
    ]
    return [Table(rows, columns=("kind", "name", "outcome", "why"))]


async def definitions(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    """Compare the definitions of a cluster's broker groups, and align them."""
    info = await admin.cluster.info()
    leaders, without = await cluster_groups(admin, info, arguments.text("cluster"))
    like, aligning = arguments.text("like"), arguments.on("align")
    if without and aligning:
        raise CommandError(no_leader(without))
    if like and like not in leaders:
        raise CommandError(f"there is no broker group {like!r}; known: {', '.join(leaders)}")
    topics, groups = await _read(admin, info, tuple(leaders))
    ordered = arguments.on("withOrdered")
    steps = [aligned_topic(name, has, ordered) for name, has in topics.items()]
    steps += [aligned_group(name, has, like) for name, has in groups.items()]
    steps = [step for step in steps if step.outcome != THERE]
    if aligning and not arguments.on("dryRun"):
        await _carry_out(admin, leaders, steps)
        for step in steps:
            if step.kind == "topic" and step.puts:
                await put_order(admin, step.name, {**topics[step.name], **step.puts})
    rows: list[dict[str, Any]] = []
    for step in steps:
        has = topics[step.name] if step.kind == "topic" else groups[step.name]
        row = {"kind": step.kind, "name": step.name, "has": shown(step.kind, has)}
        rows.append(row | {"outcome": step.outcome, "why": step.why})
    rows += [
        {"kind": "broker group", "name": name, "has": {}, "outcome": "", "why": no_leader([name])}
        for name in without
    ]
    complete = not without and not any(step.outcome == REFUSED for step in steps)
    columns = ("kind", "name", "has", "outcome", "why")
    return [Table(rows, columns=columns, complete=complete)]


async def put_order(admin: Admin, topic: str, has: Has) -> None:
    """Store the queues of an order topic in the name servers."""
    if any(bean.get("order") for bean in _present(has)):
        counts = {broker: int(bean[WRITE_COUNT]) for broker, bean in has.items() if bean}
        await admin.name_server.put_order(topic, counts)


# ---- the rules


def is_own(topic: str, own: Collection[str], *, derived: bool = True) -> bool:
    """Return whether brokers create the topic themselves. `own` has the names of brokers and
    clusters; `derived` includes retry topics and dead letters."""
    if not derived and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return False
    return topic in own or is_brokers_own(topic)


def copied_topic(name: str, bean: Bean, new: str, result: Bean | None, perm: int) -> Step:
    """Return the step that copies a topic to the broker group `new`, which has `result`. An
    existing topic is left."""
    if why := _unsupported([bean]):
        return Step("topic", name, REFUSED, why)
    if result is None:
        return Step("topic", name, MADE, puts={new: {**bean, "perm": perm}})
    why = "; ".join(_differences(bean, result))
    return Step("topic", name, DIFFERS if why else THERE, why)


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
    if why := types_of(has) or (_unsupported(_present(has)) if puts else ""):
        return Step("topic", name, REFUSED, why)
    if puts and is_ordered(has) and not with_ordered:
        return Step("topic", name, DIFFERS, ORDERED)
    reasons = ["/".join(map(str, counts.values())) + f" in {', '.join(puts)}"] if puts else []
    fields = ("perm", "order", "topicSysFlag")
    left = [k for k in fields if len({int(bean.get(k) or 0) for bean in _present(has)}) > 1]
    reasons += [f"left: {', '.join(left)}"] if left else []
    made = any(has[broker] is None for broker in puts)
    outcome = MADE if made else CHANGED if puts else DIFFERS if left else THERE
    return Step("topic", name, outcome, "; ".join(reasons), puts)


def aligned_group(name: str, has: Has, like: str) -> Step:
    """Return the step that gives each broker group the consumer group, with the settings of `like`.
    Consumers may have created it with a broker's defaults. Without these settings a consumer group
    that differs is left."""
    model, present = has.get(like), _present(has)
    differing = _differing(present)
    if model is None and differing:
        return Step("group", name, DIFFERS, f"{', '.join(differing)}: --like BROKER")
    model = model or present[0]
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
    beans = _present(has)
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
        is_ordered_topic(bool(bean.get("order")), message_type(bean)) for bean in _present(has)
    )


def message_type(bean: Bean) -> str:
    return _attributes(bean).get(MESSAGE_TYPE, NORMAL)


def strange_attributes(bean: Bean) -> list[str]:
    """Return the topic's attributes that our brokers ignore."""
    return sorted(
        key
        for key, value in _attributes(bean).items()
        if key not in ATTRIBUTES or value not in ATTRIBUTES[key].values
    )


def topic_header(name: str, bean: Bean) -> TopicHeader:
    """Return the request that gives a broker this topic."""
    attributes = ",".join(f"+{key}={value}" for key, value in sorted(_attributes(bean).items()))
    header = TopicHeader.of_bean(name, bean, int(bean["perm"]))
    return header._replace(attributes=attributes)


def shown(kind: str, has: Has) -> dict[str, str]:
    """Return a line of text for each broker group's definition."""
    differing = _differing(_present(has))

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


def _unsupported(beans: Sequence[Bean]) -> str:
    strange = sorted({key for bean in beans for key in strange_attributes(bean)})
    return f"brokers here do not act by {', '.join(strange)}" if strange else ""


def _differences(old: Bean, new: Bean) -> Iterator[str]:
    """Yield the differences of a topic of the new group, except its permission."""
    for key in TOPIC_FIELDS:
        if (old.get(key) or 0) != (new.get(key) or 0):
            yield f"{key} is {new.get(key)}, was {old.get(key)}"
    if message_type(old) != message_type(new):
        yield f"{MESSAGE_TYPE} is {message_type(new)}, was {message_type(old)}"


def _differing(beans: Sequence[Bean]) -> list[str]:
    """Return the common fields with several values."""
    common = set[str]().union(*beans).intersection(*beans)
    return sorted(key for key in common if any(bean[key] != beans[0][key] for bean in beans))


def _present(has: Has) -> list[Bean]:
    return [bean for bean in has.values() if bean is not None]


def _attributes(bean: Bean) -> dict[str, str]:
    return {str(key): str(value) for key, value in (bean.get("attributes") or {}).items()}


# ---- requests


async def _read(
    admin: Admin, info: ClusterInfo, brokers: Sequence[str]
) -> tuple[dict[str, Has], dict[str, Has]]:
    """Return the definitions of topics and consumer groups by name, None where one is missing."""
    own = {*info.brokers, *info.clusters}
    topics = {name: await admin.topic.configs(info.leaders[name]) for name in brokers}
    groups = {name: await admin.group.configs(info.leaders[name]) for name in brokers}
    return (
        {name: has for name, has in _by_name(topics).items() if not is_own(name, own)},
        {name: has for name, has in _by_name(groups).items() if not is_brokers_own(name)},
    )


def _by_name(tables: Mapping[str, Mapping[str, Bean]]) -> dict[str, Has]:
    names = sorted(set[str]().union(*tables.values()))
    return {name: {broker: t.get(name) for broker, t in tables.items()} for name in names}


async def _carry_out(admin: Admin, leaders: Mapping[str, str], steps: Sequence[Step]) -> None:
    """Carry out the steps. Raises CommandError with the failed step."""
    for done, step in enumerate(steps):
        for broker, bean in step.puts.items():
            try:
                if step.kind == "topic":
                    await admin.topic.put(leaders[broker], topic_header(step.name, bean))
                else:
                    await admin.group.put(leaders[broker], bean)
            except BrokerRefused as error:
                text = f"{step.kind} {step.name}: {error}; {done} of {len(steps)} were looked after"
                raise CommandError(text) from error
