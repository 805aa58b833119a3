"""definitions and copyDefinitions, which compare the definitions of broker groups and copy them
(docs/scaling.md, docs/moving.md).

A definition is a topic's or a consumer group's configuration, Apache's JSON object. Retry topics,
dead letters and brokers' own topics and groups are left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from raftmq.client.admin import Admin, ClusterInfo
from raftmq.client.errors import BrokerRefused
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.definitions import (
    COUNTS,
    DIFFERS,
    MADE,
    REFUSED,
    THERE,
    WRITE_COUNT,
    Bean,
    Has,
    Step,
    aligned_group,
    aligned_topic,
    attributes_of,
    is_own,
    message_type,
    present,
    shown,
    unsupported,
)
from raftmq.remoting.names import is_brokers_own
from raftmq.remoting.topic_attributes import MESSAGE_TYPE

from .command import Arguments, CommandError, Section, Table
from .targets import cluster_groups, no_leader

READ = 4
PERMS = (2, READ, 6)
# A topic that differs in these fields is not copied.
TOPIC_FIELDS = (*COUNTS, "order", "topicSysFlag")


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
    steps = [
        aligned_topic(name, has, ordered) for name, has in topics.items() if not _all_same(has)
    ]
    steps += [aligned_group(name, has, like) for name, has in groups.items() if not _all_same(has)]
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
    if any(bean.get("order") for bean in present(has)):
        counts = {broker: int(bean[WRITE_COUNT]) for broker, bean in has.items() if bean}
        await admin.name_server.put_order(topic, counts)


# ---- the rules of copies


def copied_topic(name: str, bean: Bean, new: str, result: Bean | None, perm: int) -> Step:
    """Return the step that copies a topic to the broker group `new`, which has `result`. An
    existing topic is left."""
    if why := unsupported([bean]):
        return Step("topic", name, REFUSED, why)
    if result is None:
        return Step("topic", name, MADE, puts={new: {**bean, "perm": perm}})
    why = "; ".join(_differences(bean, result))
    return Step("topic", name, DIFFERS if why else THERE, why)


def topic_header(name: str, bean: Bean) -> TopicHeader:
    """Return the request that gives a broker this topic."""
    attributes = ",".join(f"+{key}={value}" for key, value in sorted(attributes_of(bean).items()))
    header = TopicHeader.of_bean(name, bean, int(bean["perm"]))
    return header._replace(attributes=attributes)


def _differences(old: Bean, new: Bean) -> Iterator[str]:
    """Yield the differences of a topic of the new group, except its permission."""
    for key in TOPIC_FIELDS:
        if (old.get(key) or 0) != (new.get(key) or 0):
            yield f"{key} is {new.get(key)}, was {old.get(key)}"
    if message_type(old) != message_type(new):
        yield f"{MESSAGE_TYPE} is {message_type(new)}, was {message_type(old)}"


# ---- requests


async def _read(
    admin: Admin, info: ClusterInfo, brokers: Sequence[str]
) -> tuple[dict[str, Has], dict[str, Has]]:
    """Return the definitions of topics and consumer groups by name, None where one is missing."""
    own = {*info.brokers, *info.clusters}
    leaders = {name: info.leaders[name] for name in brokers}
    topics = await _by_name(admin.topic.configs, leaders)
    groups = await _by_name(admin.group.configs, leaders)
    return (
        {name: has for name, has in topics.items() if not is_own(name, own)},
        {name: has for name, has in groups.items() if not is_brokers_own(name)},
    )


async def _by_name(
    read: Callable[[str], Awaitable[Mapping[str, Bean]]], leaders: Mapping[str, str]
) -> dict[str, Has]:
    """Return the definitions at the leaders by name and broker group. Equal definitions are a
    single object, because a hundred groups have millions of them."""
    result: dict[str, dict[str, Bean | None]] = {}
    first: dict[str, Bean] = {}
    for broker, address in leaders.items():
        for name, bean in (await read(address)).items():
            if name not in first:
                first[name] = bean
                result[name] = dict.fromkeys(leaders)
            result[name][broker] = first[name] if bean == first[name] else bean
    return dict(sorted(result.items()))


def _all_same(has: Has) -> bool:
    """Return whether all broker groups have the same definition."""
    beans = iter(has.values())
    first = next(beans, None)
    return first is not None and all(bean is first for bean in beans)


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
