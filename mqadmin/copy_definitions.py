"""copyDefinitions, which copies definitions between broker groups (docs/moving.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raftmq.client.admin import Admin
from raftmq.client.errors import BrokerRefused
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS
from raftmq.remoting.topic_attributes import MESSAGE_TYPE

from .command import Arguments, CommandError, Section, Table

READ = 4
PERMS = (2, READ, 6)
# Created by brokers themselves.
OWN_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_", "CID_RMQ_SYS_", "CID_ONS")
REPLY_SUFFIX = "_REPLY_TOPIC"
# A topic that differs in these fields is not changed.
TOPIC_FIELDS = ("readQueueNums", "writeQueueNums", "order", "topicSysFlag")
# The actions.
MADE, CHANGED, THERE = "made", "changed", "there already"
DIFFERS, REFUSED = "left: it differs", "not copied"


@dataclass(frozen=True, slots=True)
class Step:
    """A topic or a consumer group of the old broker group. `what` is the action, and `why` its
    reason if needed. `bean` is the definition in Apache's JSON."""

    kind: str
    name: str
    what: str
    why: str
    bean: Mapping[str, Any]


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
    own = {*leaders, *info.clusters}
    target, source = leaders[new], leaders[old]
    steps = [
        *_topics(await admin.topic.configs(source), await admin.topic.configs(target), own),
        *_groups(await admin.group.configs(source), await admin.group.configs(target)),
    ]
    if not arguments.on("dryRun"):
        await _carry_out(admin, target, steps, READ if perm is None else perm)
    rows = [
        {"kind": step.kind, "name": step.name, "outcome": step.what, "why": step.why}
        for step in steps
    ]
    return [Table(rows, columns=("kind", "name", "outcome", "why"))]


def is_own(topic: str, own: Collection[str], *, derived: bool = True) -> bool:
    """Return whether brokers create the topic themselves. `own` has the names of brokers and
    clusters; `derived` includes retry topics and dead letters."""
    if not derived and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return False
    return (
        topic in SYSTEM_TOPICS
        or topic in own
        or topic.endswith(REPLY_SUFFIX)
        or topic.startswith(OWN_PREFIXES)
    )


def _topics(
    old: Mapping[str, Mapping[str, Any]],
    new: Mapping[str, Mapping[str, Any]],
    own: Collection[str],
) -> Iterator[Step]:
    for name, bean in sorted(old.items()):
        if is_own(name, own):
            continue
        strange = strange_attributes(bean)
        result = new.get(name)
        if strange:
            subject, why = REFUSED, f"brokers here do not act by {', '.join(strange)}"
        elif result is None:
            subject, why = MADE, ""
        else:
            why = "; ".join(_differences(bean, result))
            subject = DIFFERS if why else THERE
        yield Step("topic", name, subject, why, bean)


def _groups(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> Iterator[Step]:
    """Yield the steps for groups. An existing group may have a broker's defaults, because its
    consumers created it, so it gets the old group's settings."""
    for name, bean in sorted(old.items()):
        if name.startswith(OWN_PREFIXES):
            continue
        result = new.get(name)
        if result is None:
            yield Step("group", name, MADE, "", bean)
            continue
        both = sorted(bean.keys() & result.keys())
        why = "; ".join(f"{key} was {result[key]}" for key in both if bean[key] != result[key])
        yield Step("group", name, CHANGED if why else THERE, why, bean)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences of a topic of the new group, except its permission."""
    for key in TOPIC_FIELDS:
        if (old.get(key) or 0) != (new.get(key) or 0):
            yield f"{key} is {new.get(key)}, was {old.get(key)}"
    kinds = [_attributes(bean).get(MESSAGE_TYPE, "") for bean in (old, new)]
    if kinds[0] != kinds[1]:
        yield f"{MESSAGE_TYPE} is {kinds[1] or 'none'}, was {kinds[0] or 'none'}"


def strange_attributes(bean: Mapping[str, Any]) -> list[str]:
    """Return the topic's attributes that our brokers ignore."""
    return sorted(_attributes(bean).keys() - {MESSAGE_TYPE})


def _attributes(bean: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in (bean.get("attributes") or {}).items()}


async def _carry_out(admin: Admin, address: str, steps: Sequence[Step], perm: int) -> None:
    """Carry out the steps. Raises CommandError with the failed steps."""
    for done, step in enumerate(steps):
        try:
            if step.kind == "topic" and step.what == MADE:
                await admin.topic.put(address, _header(step, perm))
            elif step.kind == "group" and step.what in (MADE, CHANGED):
                await admin.group.put(address, step.bean)
        except BrokerRefused as error:
            text = f"{step.kind} {step.name}: {error}; {done} of {len(steps)} were looked after"
            raise CommandError(text) from error


def _header(step: Step, perm: int) -> TopicHeader:
    kind = _attributes(step.bean).get(MESSAGE_TYPE, "")
    header = TopicHeader.of_bean(step.name, step.bean, perm)
    return header._replace(attributes=f"+{MESSAGE_TYPE}={kind}") if kind else header
