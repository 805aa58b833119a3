"""`mqadmin checkMove`, which finds obstacles to a move from an old cluster.

The command changes nothing. Each finding lists the ways of moving that it concerns
(docs/moving.md), which are a takeover of the store, a slave, or side by side by traffic. An
unanswered request is also a finding.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raftmq.broker.config import APACHE_KEYS, OPTIONS
from raftmq.client.admin import Admin, headless
from raftmq.client.admin.bodies import TopicOffset
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.instance import successful
from raftmq.client.message import MessageQueue
from raftmq.ops.foreign_keys import REFUSED, separate
from raftmq.ops.options import ConfigError, Setting, find, parse_settings
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.definitions import is_own, strange_attributes
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.names import name_problem, topic_name_problem

from .command import Arguments, CommandError, Section, Table
from .targets import AT_ONCE_MAX, no_leader

OK, CHECK, STOP = "ok", "look", "stop"
STORE, SLAVE, TRAFFIC = "store", "slave", "traffic"
ALL, WITH_STORE, AS_NEW_GROUP = (STORE, SLAVE, TRAFFIC), (STORE, SLAVE), (TRAFFIC,)
TESTED = re.compile(r"V4_9|V5_[0-3]")
# Keys that must keep their values (docs/moving.md); the store shows the remaining sizes.
KEPT = ("brokerName", "mappedFileSizeCommitLog", "maxMessageSize", "messageDelayLevel")
DELAYED = "scheduleMessageOffset_"  # runtime information by level, as next offset and end
TIMER_TOPIC = "rmq_sys_wheel_timer"
TRANSACTIONS = ("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS")
REVIVE_PREFIX, REVIVE_GROUP = "rmq_sys_REVIVE_LOG_", "CID_RMQ_SYS_REVIVE_GROUP"
GET_TIMER_METRICS, AUTH_LIST_USER = 61, 3005  # of Apache's 5.x brokers
KEEP = "keep the old broker running until they are delivered or ended"
NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report. `figure` is a count or a text."""

    state: str
    what: str
    figure: int | str
    says: str = ""
    ways: tuple[str, ...] = ALL


@dataclass(frozen=True, slots=True)
class Old:
    """A broker group of the old cluster, with its leader's answers."""

    name: str
    address: str
    config: Mapping[str, str]  # 26
    runtime: Mapping[str, str]  # 28
    topics: Mapping[str, Mapping[str, Any]]  # 21
    offsets: Mapping[MessageQueue, TopicOffset]  # 202, of all topics
    counts: Mapping[str, int]  # of messages, by topic
    progress: Sequence[Mapping[str, Any]] | None  # of groups (317); None without an answer
    own: frozenset[str]  # names of brokers and clusters


async def check_move(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    info = await admin.cluster.info()
    requested, way = arguments.text("brokerName"), arguments.text("way")
    if requested and requested not in info.brokers:
        known = ", ".join(sorted(info.brokers)) or "none"
        raise CommandError(f"there is no broker group {requested!r}; known: {known}")
    rows: list[dict[str, Any]] = []
    queues: list[dict[str, Any]] = []
    groups: list[Mapping[str, Any]] = []
    own = frozenset((*info.brokers, *info.clusters))

    def add(broker: str, finding: Finding) -> None:
        if not way or way in finding.ways:
            ways = "" if finding.ways == ALL else ", ".join(finding.ways)
            row = {"state": finding.state, "broker": broker, "what": finding.what}
            rows.append(row | {"figure": finding.figure, "for": ways, "says": finding.says})

    for name in headless(info.brokers):
        if requested in ("", name):
            add(name, Finding(STOP, "leader", 0, no_leader([name])))
    for name, address in info.leaders.items():
        if requested not in ("", name):
            continue
        old = await _read_broker(admin, name, address, own)
        for subject, check in CHECKS.items():
            try:
                result = await check(admin, old)
            except ClientError as error:
                result = [
                    Finding(CHECK, subject, "?", f"the broker does not tell: {error.message}")
                ]
            for finding in result:
                add(name, finding)
        queues += _queue_rows(old)
        groups += old.progress or ()
    columns = ("state", "broker", "what", "figure", "for", "says")
    stopped = any(row["state"] == STOP for row in rows)
    return [
        Table(queues, "queues", ("broker", "topic", "queue", "minOffset", "maxOffset")),
        Table(groups, "groups", ("broker", "group", "topic", "committed", "behind")),
        Table(rows, "findings", columns, complete=not stopped),
    ]


async def _read_broker(admin: Admin, name: str, address: str, own: frozenset[str]) -> Old:
    topics = await admin.topic.configs(address)
    turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def offsets(topic: str) -> Mapping[MessageQueue, TopicOffset]:
        async with turn:
            try:
                return await admin.topic.offsets_at(address, topic)
            except BrokerRefused as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:  # deleted in between
                    raise
                return {}

    result: dict[MessageQueue, TopicOffset] = {}
    for offsets_of_topic in await asyncio.gather(*map(offsets, sorted(topics))):
        result |= offsets_of_topic
    counts = Counter[str]()
    for queue, span in result.items():
        counts[queue.topic] += span.max_offset - span.min_offset
    config, runtime = await admin.broker.config(address), await admin.broker.runtime_info(address)
    try:
        progress = await _progress(admin, name, address)
    except ClientError:
        progress = None
    return Old(name, address, config, runtime, topics, result, counts, progress, own)


async def _version(admin: Admin, old: Old) -> list[Finding]:
    version = old.runtime.get("brokerVersionDesc", "")
    if TESTED.match(version):
        return [Finding(OK, "version", version)]
    return [Finding(CHECK, "version", version, "tested are moves from 4.9 and 5.0 to 5.3")]


async def _configuration(admin: Admin, old: Old) -> list[Finding]:
    """Check the keys as `mqbroker config check` does. A move side by side uses a new file."""
    settings = [Setting(key, value, "") for key, value in old.config.items()]
    parted = separate(OPTIONS, settings, APACHE_KEYS)
    wrong = [(setting.key, why) for setting, kind, why in parted.foreign if kind == REFUSED]
    without_effect, differ = len(parted.foreign) - len(wrong), []
    for setting in parted.own:
        declared = find(OPTIONS, setting)
        if declared is None:  # Apache's broker derives some of its keys
            without_effect += 1
            continue
        try:
            values, _ = parse_settings(OPTIONS, [setting])
        except ConfigError as error:
            wrong.append((setting.key, str(error)))
        else:
            if setting.key not in KEPT and values[declared.name] != declared.default:
                differ.append(f"{setting.key}={declared.shown(setting.value)}")
    result = [Finding(STOP, "configuration", key, why, WITH_STORE) for key, why in wrong]
    if old.config.get("enableDLegerCommitLog") == "true":
        text = "its files are DLedger's: move side by side"
        result.append(Finding(STOP, "configuration", "enableDLegerCommitLog", text, WITH_STORE))
    retained = [f"{key}={old.config[key]}" for key in KEPT if key in old.config]
    result.append(Finding(OK, "keys to keep", len(retained), "; ".join(retained), WITH_STORE))
    if differ:
        text = f"are not this program's defaults: {', '.join(sorted(differ))}"
        result.append(Finding(CHECK, "keys that differ", len(differ), text, WITH_STORE))
    text = "`mqbroker config convert broker.conf` names those that the file sets"
    return [*result, Finding(OK, "keys without effect", without_effect, text, WITH_STORE)]


async def _log(admin: Admin, old: Old) -> list[Finding]:
    start, end = (int(old.runtime.get(f"commitLog{m}Offset", -1)) for m in ("Min", "Max"))
    if min(start, end) < 0:
        return [
            Finding(CHECK, "log", "?", "the broker does not tell its begin and end", WITH_STORE)
        ]
    text = f"bytes {start} to {end}; a slave is sent all of them, unless syncFromLastFile=true"
    result = [Finding(OK, "log", end - start, text, WITH_STORE)]
    if behind := int(old.runtime.get("dispatchBehindBytes", 0)):
        result.append(Finding(CHECK, "log", behind, "bytes are not in the queues yet: wait"))
    return result


async def _topics(admin: Admin, old: Old) -> list[Finding]:
    topics = {name: bean for name, bean in old.topics.items() if not is_own(name, old.own)}
    result = [Finding(OK, "topics", len(topics))]
    strange = sorted(name for name, bean in topics.items() if strange_attributes(bean))
    if strange:
        text = f"have attributes that brokers here do not act by: {_named(strange)}"
        result.append(Finding(STOP, "topics", len(strange), text))
    empty = [
        n for n, b in topics.items() if not (b.get("readQueueNums") or b.get("writeQueueNums"))
    ]
    refused = sorted({*empty, *(name for name in topics if topic_name_problem(name))})
    if refused:
        text = f"have no queue, or a name that is refused, and are not copied: {_named(refused)}"
        result.append(Finding(STOP, "topics", len(refused), text, AS_NEW_GROUP))
    if empty:
        text = f"have no queue, and take no message: {_named(empty)}"
        result.append(Finding(CHECK, "topics", len(empty), text, WITH_STORE))
    if retained := sorted(name for name in topics if name_problem("topic name", name)):
        text = f"have names that are not taken: {_named(retained)}"
        result.append(Finding(CHECK, "topics", len(retained), text, WITH_STORE))
    return result


async def _messages(admin: Admin, old: Old) -> list[Finding]:
    count = sum(count for topic, count in old.counts.items() if not is_own(topic, old.own))
    return _left("messages", count, "stay on the old broker, and are consumed from there")


async def _groups(admin: Admin, old: Old) -> list[Finding]:
    groups = await admin.group.configs(old.address)
    result = [Finding(OK, "groups", len(groups))]
    if old.progress is None:
        return [*result, Finding(CHECK, "not consumed yet", "?", "the broker does not tell")]
    behind = sum(row["behind"] for row in old.progress)
    return result + _left("not consumed yet", behind, "deliveries are left to the old broker")


async def _delays(admin: Admin, old: Old) -> list[Finding]:
    levels = [text.split(",") for key, text in old.runtime.items() if key.startswith(DELAYED)]
    waiting = sum(int(end) - int(offset) for offset, end in levels)
    return _left("delayed messages", waiting, KEEP, "messageDelayLevel must stay as it is")


async def _timers(admin: Admin, old: Old) -> list[Finding]:
    text = old.runtime.get("timerWaiting")
    waiting, message = int(text or 0), ""
    if text is None and (waiting := old.counts.get(TIMER_TOPIC, 0)):
        answer = await admin.invoke(old.address, GET_TIMER_METRICS)
        if answer.code == ResponseCode.SUCCESS:
            counts = loads_object(answer.body).get("timingCount") or {}
            waiting = sum(int(metric.get("count", 0)) for metric in counts.values())
        else:
            message = "at most, for the broker tells no figure; "
    return _left("timer messages", waiting, KEEP, f"{message}stop the old broker in order")


async def _transactions(admin: Admin, old: Old) -> list[Finding]:
    open_max = await _unconsumed(admin, old, *TRANSACTIONS)
    text = "at most; the new broker asks their producers, which must be running"
    return _left("open transactions", open_max, KEEP, text)


async def _pops(admin: Admin, old: Old) -> list[Finding]:
    topics = [topic for topic in old.topics if topic.startswith(REVIVE_PREFIX)]
    count = sum([await _unconsumed(admin, old, topic, REVIVE_GROUP) for topic in topics])
    text = "entries, at most: stop pop consumers, and wait for their longest invisible time"
    return [Finding(CHECK if count else OK, "pops", count, text if count else "", WITH_STORE)]


async def _accounts(admin: Admin, old: Old) -> list[Finding]:
    if "true" in (old.config.get(f"{key}Enabled") for key in ("authentication", "authorization")):
        answer = await admin.ask(old.address, AUTH_LIST_USER, {"filter": ""})
        users = len(loads_object(b'{"users":%b}' % (answer.body or b"[]"))["users"])
        text = (
            "users of ACL 2.0 are not taken: write a plain_acl.yml, and set aclEnable and aclFile"
        )
        return [Finding(STOP, "accounts", users, text)]
    if old.config.get("aclEnable") != "true":
        return [Finding(OK, "accounts", 0, "clients need no account: see bindAddress")]
    answer = await admin.ask(old.address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    accounts = loads_object(answer.body).get("plainAccessConfigs") or []
    return [Finding(CHECK, "accounts", len(accounts), "copy plain_acl.yml, and name it: aclFile")]


CHECKS: Mapping[str, Callable[[Admin, Old], Awaitable[list[Finding]]]] = {
    "version": _version,
    "configuration": _configuration,
    "log": _log,
    "topics": _topics,
    "messages": _messages,
    "groups": _groups,
    "delayed messages": _delays,
    "timer messages": _timers,
    "open transactions": _transactions,
    "pops": _pops,
    "accounts": _accounts,
}


def _left(
    subject: str, count: int, text_as_new_group: str, text_with_store: str = ""
) -> list[Finding]:
    """Return the findings about messages that a move by traffic leaves at the old broker."""
    if not count:
        return [Finding(OK, subject, 0)]
    return [
        Finding(OK, subject, count, text_with_store, WITH_STORE),
        Finding(CHECK, subject, count, text_as_new_group, AS_NEW_GROUP),
    ]


async def _unconsumed(admin: Admin, old: Old, topic: str, group: str) -> int:
    """Return the number of unconsumed messages of a system topic."""
    count = 0
    for queue, span in old.offsets.items():
        if queue.topic == topic:
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue.queue_id)}
            code = RequestCode.QUERY_CONSUMER_OFFSET
            answer = await admin.invoke(old.address, code, ext)
            offset = span.min_offset
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                offset = int((successful(answer, old.address).ext or {}).get("offset", offset))
            count += max(0, span.max_offset - max(offset, span.min_offset))
    return count


def _queue_rows(old: Old) -> list[dict[str, Any]]:
    return [
        {"broker": old.name, "topic": queue.topic, "queue": queue.queue_id}
        | {"minOffset": span.min_offset, "maxOffset": span.max_offset}
        for queue, span in sorted(old.offsets.items())
        if not is_own(queue.topic, old.own, derived=False)
    ]


async def _progress(admin: Admin, name: str, address: str) -> list[Mapping[str, Any]]:
    result: dict[tuple[str, str], dict[str, Any]] = {}
    for group, sections in sorted((await admin.broker.consume_stats(address)).items()):
        for queue, progress in (pair for section in sections for pair in section.queues.items()):
            position = {"broker": name, "group": group, "topic": queue.topic}
            row = result.setdefault((group, queue.topic), position | {"committed": 0, "behind": 0})
            row["committed"] += progress.consumer_offset
            row["behind"] += progress.behind
    return list(result.values())


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
