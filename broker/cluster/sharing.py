"""Adoption of definitions from the other broker groups of the cluster (joinCluster).

A new group joins before its leader registers: it adopts the topics, consumer groups, modes and
accounts of the groups that the name servers list, as commands of its own log. Consumer groups that
have read an adopted topic elsewhere get offset 0 in its queues here. Afterwards each leader asks
GROUPS_PER_ROUND other leaders in turn for changes every PERIOD_S. So a topic or consumer group that
is created in one group soon exists in all, also if a group was down then. In a cluster of more
groups it is passed on by the groups that have adopted it. Only creations spread.
Changed settings and deletions do not, since a deletion would hide messages that an operator of this
group may want; `mqadmin definitions` shows such differences.

The group's table records which versions are adopted (broker.tables.broker_group), so that a new
leader asks for later changes only.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from raftmq.dledger.raft.errors import RaftError
from raftmq.remoting.acl import AclError, accounts_from_config
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import BodyError, RemotingError
from raftmq.remoting.fast_json import loads_request

from ..component import RoleChange, Service
from ..consume.offset_commits import OFFSETS_MAX
from ..context import Context
from ..errors import Refused, busy
from ..tables.acl import seed
from ..tables.broker_group import Versions, forget_group
from ..tables.groups import GroupTable
from ..tables.snapshot import twin_of
from ..tables.state import delete_group, delete_topic
from ..tables.topics import TopicTable
from .definitions import Adoption, Definitions, Merged, Version, adoption, joined, page_of
from .other_groups import LEADER_ID, OtherGroups, leaders_of

PERIOD_S = 5.0
APACHES_ROUNDS = 12  # a minute
GROUPS_PER_ROUND = 16  # groups in a round, so that the requests of a cluster grow linearly with it
READS_AT_ONCE = 4  # groups whose definitions are in memory
RETRY_S = 0.5  # while a new group joins
PREFER_S, PREFER_POLL_S = 3.0, 0.1
JOIN_S = 10.0  # after which a new group registers without the groups that do not answer
NAMES_LOGGED_MAX = 20
log = logging.getLogger("raftmq.broker.cluster")


class DefinitionSharing:
    """Adopts definitions while this replica leads, and serves GET_DEFINITIONS (30009)."""

    def __init__(
        self,
        context: Context,
        others: OtherGroups,
        change_mode: Callable[[str, str, str, int], Awaitable[None]],
        on_changed: Callable[[], None],
    ) -> None:
        """`change_mode(topic, group, mode, share)` is as in broker.pop.assignment. `on_changed()`
        registers this broker again."""
        self._context = context
        self._config = context.config
        self._state = context.state
        self._others = others
        self._change_mode = change_mode
        self._on_changed = on_changed
        self._task: asyncio.Task[None] | None = None
        self._one_search = asyncio.Lock()
        self._round = 0
        self._apaches: dict[str, int] = {}  # groups of Apache's brokers, with the last round
        self._last_read = self._config.broker_name  # the last group of the round
        self._seen: dict[str, Versions] = {}  # by group, also without anything to adopt

    def service(self) -> Service:
        return Service(
            handlers={int(RequestCode.GET_DEFINITIONS): self.answer},
            role_changed=self._role_changed,
            stop=self._stop,
        )

    def _role_changed(self, change: RoleChange) -> None:
        if change.goes_on:
            return
        if self._task is not None:
            self._task.cancel()
            self._task = None
        roles = self._context.roles
        roles.joining = False
        if change.leading and self._config.join_cluster and not self._config.is_classic:
            table = self._state
            is_new = not table.topics.entries and not table.groups.entries
            roles.joining = table.group.joining or is_new
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._others.close()

    async def _run(self) -> None:
        self._seen = dict(self._state.group.versions)
        if self._context.roles.joining:
            await self._join()
        while True:
            await asyncio.sleep(PERIOD_S)
            await self._done(self._follow())

    async def _done(self, work: Awaitable[None]) -> bool:
        """Await `work`; return False after an error, since it is repeated."""
        try:
            await work
        except (RemotingError, RaftError) as error:
            log.info("definitions_not_adopted: %s", error)
            return False
        except Exception as error:  # log and tables are intact
            self._context.contained.failed("definitions", error)
            return False
        return True

    # ---- a new group ------------------------------------------------------------------------

    async def _join(self) -> None:
        """Adopt everything, then register. A leader that loses its leadership meanwhile leaves the
        rest to its successor."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + JOIN_S
        read = Merged()
        missing: Sequence[str] = ()
        while True:
            listed = await self._others.listed()
            if listed is not None:
                with_accounts = self._config.acl_enable and not self._config.acl_file_wins
                left = {name: where for name, where in listed.items() if name not in read.versions}
                await self._read(leaders_of(left), {}, read.add, accounts=with_accounts)
                for name in sorted(listed.keys() - read.versions.keys()):
                    if LEADER_ID not in listed[name] and await self._is_new(name, listed[name]):
                        read.add(Definitions(name))
                missing = sorted(listed.keys() - read.versions.keys())
                if not missing or loop.time() > end_s:
                    break
            await asyncio.sleep(RETRY_S)
        for name in missing:
            log.warning("joined_without group=%s: it does not answer", name)
        while not await self._done(self._adopt_all(read)):  # noqa: ASYNC110 - an attempt each
            await asyncio.sleep(RETRY_S)
        self._context.roles.joining = False
        self._on_changed()
        if read.versions:
            detail = {
                "from": sorted(read.versions),
                "topics": len(self._state.topics.entries),
                "groups": len(self._state.groups.entries),
            }
            log.info("joined_cluster from=%s topics=%d groups=%d", *detail.values())
            self._context.events.publish("joinedCluster", detail)

    async def _read(
        self,
        leaders: Mapping[str, str],
        since: Mapping[str, Versions],
        take: Callable[[Definitions], Awaitable[None] | None],
        *,
        accounts: bool = False,
    ) -> None:
        """Pass the definitions of the groups that answer, or their later changes, to `take`, one
        group after another. Raises its errors when all groups are read."""
        slots, turn = asyncio.Semaphore(READS_AT_ONCE), asyncio.Lock()

        async def read(name: str, address: str) -> None:
            async with slots:
                try:
                    one = await self._others.definitions(
                        name, address, since.get(name), accounts=accounts
                    )
                except RemotingError as error:
                    log.info("definitions_not_read group=%s address=%s: %s", name, address, error)
                    return
                async with turn:
                    taking = take(one)
                    if taking is not None:
                        await taking

        reads = (read(*leader) for leader in leaders.items())
        for error in await asyncio.gather(*reads, return_exceptions=True):
            if error is not None:
                raise error

    async def _is_new(self, name: str, replicas: Mapping[str, str]) -> bool:
        """Return whether a group without a leader has no definitions yet, as far as its replicas
        answer: it joins at the same time."""
        answers = []
        for address in replicas.values():
            try:
                answers.append(
                    await self._others.definitions(name, address, None, by_follower=True)
                )
            except RemotingError as error:
                log.info("definitions_not_read group=%s address=%s: %s", name, address, error)
        return bool(answers) and not any(one.topics.beans or one.groups.beans for one in answers)

    async def _adopt_all(self, read: Merged) -> None:
        await self._adopt(read, joins=True)
        for names, mode in read.modes.items():
            if names not in self._state.pops.modes:
                await self._change_mode(*mode)
        await self._adopt_accounts(read.accounts)
        if read.versions:
            await self._delete_deleted(read)
            await self._prefer_leader()
            await self._context.log.propose(joined(read.versions))

    async def _delete_deleted(self, read: Merged) -> None:
        """Delete the definitions that other groups deleted during their adoption. They have no
        messages yet, because clients do not use this group."""
        later, state = Merged(), self._state
        await self._read(await self._others.leaders() or {}, read.versions, later.add)
        for table, deleted, command in (
            (state.topics, read.deleted_topics | later.deleted_topics, delete_topic),
            (
                state.groups,
                read.deleted_groups | later.deleted_groups,
                partial(delete_group, offsets=True),
            ),
        ):
            for name, at_ms in deleted.items():
                if name in table.entries and table.created.get(name, 0) <= at_ms:
                    await self._context.log.propose(command(name))

    async def _prefer_leader(self) -> None:
        """Transfer leadership to the preferred leader before clients know this leader, since those
        that ask for routes every 30 s would send to it meanwhile. Success cancels this task, and
        the successor continues. If the preferred leader is not able in time, the group registers
        with this leader, and broker.replication.preferred transfers leadership later."""
        target = self._config.preferred_leader_id
        loop = asyncio.get_running_loop()
        end_s = loop.time() + PREFER_S
        while target not in ("", self._config.dleger_self_id) and loop.time() < end_s:
            try:
                self._context.log.hand_over(target)
            except (Refused, RaftError) as error:
                log.info("preferred_leader_waits name=%s: %s", target, error)
            await asyncio.sleep(PREFER_POLL_S)

    async def _adopt_accounts(self, configs: Mapping[str, Mapping[str, Any]]) -> None:
        for source, config in sorted(configs.items()):
            if self._state.acl.accounts is not None:
                return
            try:
                accounts = accounts_from_config(config)
            except AclError as error:
                log.warning("accounts_not_adopted group=%s: %s", source, error)
                continue
            await self._context.log.propose(seed(accounts))

    # ---- changes ----------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Ask some of the other leaders for their changes, and adopt them, unless this group is
        draining."""
        if self._state.group.draining_ms:
            return
        self._round += 1
        leaders = await self._others.leaders() or {}
        due = self._round - APACHES_ROUNDS  # Apache's brokers return whole tables
        names = next_groups(
            (n for n in leaders if self._apaches.get(n, due) <= due), self._last_read
        )
        if names:
            self._last_read = names[-1]
        await self._read({name: leaders[name] for name in names}, self._seen, self._take)

    async def _take(self, read: Definitions) -> None:
        if read.is_apaches:
            self._apaches[read.source] = self._round
        await self._record_removed(read)
        if read.versions != self._seen.get(read.source):
            await self._adopt(Merged(read))
            self._seen[read.source] = read.versions

    async def take_over(self, name: str) -> None:
        """Adopt what was created in the group `name`, which leaves the cluster. Raises
        RemotingError, RaftError."""
        address = (await self._others.leaders() or {}).get(name)
        if address is None:
            raise RemotingError(f"no name server lists a leader of {name}")
        read = await self._others.definitions(name, address, self._seen.get(name))
        await self._adopt(Merged(read))

    async def _record_removed(self, read: Definitions) -> None:
        """Record the removed groups that another group knows, except this group."""
        group = self._state.group
        for group_id, name in read.removed.items():
            if group_id not in group.removed_groups and group_id != group.value.hex():
                await self._context.log.propose(forget_group(group_id, name))
                self._on_changed()

    async def _adopt(self, read: Merged, *, joins: bool = False) -> None:
        own_names = frozenset({self._config.broker_name, self._config.broker_cluster_name})
        state = self._state
        chosen = adoption(read, state.topics, state.groups, own_names)
        self._limit(chosen)
        _report(chosen)
        for command in chosen.commands(read.versions, joins=joins):
            await self._context.log.propose(command)

    def _limit(self, chosen: Adoption) -> None:
        """Refuse definitions above `topicsMax` and `groupsMax`."""
        config, state = self._config, self._state
        topics_room = config.topics_max - len(state.topics.entries) + len(state.groups.entries)
        groups_room = config.groups_max - len(state.groups.entries)
        for entries, room in ((chosen.topics, topics_room), (chosen.groups, groups_room)):
            for entry, _ in entries[max(0, room) :]:
                chosen.refused[entry.name] = "topicsMax or groupsMax is reached"
            del entries[max(0, room) :]
        offsets_room = OFFSETS_MAX - state.offsets.count
        for topic, _ in chosen.topics:
            offsets_room -= topic.read_queue_count * len(chosen.readers.get(topic.name, ()))
            if offsets_room < 0:
                chosen.readers.pop(topic.name, None)

    # ---- requests ---------------------------------------------------------------------------

    async def answer(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer a page of the definitions (30009). Raises Refused, RaftError, BodyError."""
        body = loads_request(request.body)
        if not body.get("byFollower"):
            await self._context.log.barrier()
        elif not self._state.group.value:
            raise busy("the log of this replica is not applied yet", retriable=True)
        state = self._state
        tables: dict[str, TopicTable | GroupTable] = {
            "topics": state.topics,
            "groups": state.groups,
        }
        questions = {kind: _position(body[kind]) for kind in tables if kind in body}
        if not questions:
            raise BodyError("no question for definitions")
        pages = {kind: await self._page(tables[kind], *at) for kind, at in questions.items()}
        modes = sorted(state.pops.modes.items()) if questions.get("topics") == (None, "") else ()
        accounts = state.acl.accounts if body.get("accounts") else None
        value = {
            "broker": self._config.broker_name,
            **pages,
            "readers": self._readers(pages["topics"]["entries"]) if "topics" in pages else {},
            "modes": [(*names, *mode) for names, mode in modes],
            "accounts": None if accounts is None else accounts.to_config(),
            "removed": state.group.removed_groups,
        }
        return RemotingCommand.response_to(request, body=orjson.dumps(value))

    def _readers(self, entries: Sequence[Any]) -> dict[str, list[str]]:
        """Return the consumer groups that have read the topics of a page, by topic."""
        offsets, pops = self._state.offsets, self._state.pops.queues
        readers = {bean["topicName"]: set[str]() for bean, _ in entries}
        for topic, group in pops if readers else ():
            if topic in readers:
                readers[topic].add(group)
        every = {topic: sorted(of.union(offsets.groups_of(topic))) for topic, of in readers.items()}
        return {topic: groups for topic, groups in every.items() if groups}

    async def _page(
        self, table: TopicTable | GroupTable, since: Version | None, after: str
    ) -> dict[str, Any]:
        """Return a page. A thread searches a full table, because 100,000 names need 20 ms."""
        changed = None if since is None else table.changed_since(*since)
        if changed is not None:
            return page_of(table, changed, after)
        async with self._one_search:
            return await asyncio.to_thread(page_of, twin_of(table), None, after)


def next_groups(names: Iterable[str], after: str) -> list[str]:
    """Return the groups of a round, at most GROUPS_PER_ROUND: the groups after `after` by name,
    then the first groups."""
    ordered = sorted(names)
    at = bisect_right(ordered, after)
    return [*ordered[at:], *ordered[:at]][:GROUPS_PER_ROUND]


def _position(question: object) -> tuple[Version | None, str]:
    """Return `since` and `after` of a kind's question. Raises BodyError."""
    try:
        after = question["after"] or ""  # type: ignore[index]
        since = question["since"]  # type: ignore[index]
        if since is None:
            return None, str(after)
        counter, at_ms = map(int, since)
        return (counter, at_ms), str(after)
    except (KeyError, TypeError, ValueError) as error:
        raise BodyError(f"no question for definitions: {error!r}") from error


def _report(chosen: Adoption) -> None:
    for name, reason in list(chosen.refused.items())[:NAMES_LOGGED_MAX]:
        log.warning("definition_refused name=%s: %s", name, reason)
    for difference in chosen.differences[:NAMES_LOGGED_MAX]:
        log.warning("definitions_differ: %s", difference)
    if chosen.topics or chosen.groups:
        log.info("definitions_adopted topics=%d groups=%d", len(chosen.topics), len(chosen.groups))
