"""Consumer offset commits, batched into command frames.

Commits are gathered into a command frame; the last commit of a (topic, group, queue) wins. A commit
with a response waits until its frame is applied; a one-way commit (15, as from Java clients) does
not. A query (14) proposes a pending commit of its queue immediately and waits for it, so that a new
owner of the queue sees it. Only a ready leader accepts commits. When its leadership ends,
unproposed commits are dropped, and consumers commit again within 5 s.

A commit logged after the deletion of its topic or group would outlive it. So the deletion is
proposed after all gathered commits, and commits are rejected until it is applied (`withheld`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from raftmq.dledger.node.proposals import COMMAND_SIZE_BYTES_MAX

from ..component import Service
from ..errors import Refused, busy, not_leader
from ..scheduler import IDLE_MS, Chore
from ..tables.offsets import Commit, HasRoom
from ..tables.state import commit_offsets

log = logging.getLogger("raftmq.broker.commits")

INTERVAL_MS = 150  # between two proposals
OFFSETS_MAX = 4_000_000  # offsets in the table
PENDING_COMMITS_MAX = 100_000  # distinct (topic, group, queue) per frame interval
FRAME_BYTES_MAX = 1 << 20  # of JSON, far below the limit of a command
ENVELOPE_BYTES = 64  # of JSON around the commits
COMMIT_BYTES = 60  # of a commit's JSON besides its names, which are ASCII


class CommitService:
    def __init__(
        self,
        propose: Callable[[bytes], asyncio.Future[int]],
        leading: Callable[[], bool],
        count_max: int = PENDING_COMMITS_MAX,
        has_room: HasRoom = lambda topic, group, queues: True,
        command_bytes_max: int = COMMAND_SIZE_BYTES_MAX,
    ) -> None:
        """`propose(payload)` raises, or its future fails, like RaftMember.propose_command.
        `command_bytes_max` is the limit of the log (dledger.node.proposals)."""
        self.has_room = has_room
        self.frame_bytes_max = min(FRAME_BYTES_MAX, command_bytes_max - ENVELOPE_BYTES)
        self._propose = propose
        self._leading = leading
        self._count_max = count_max
        self._gathered: dict[tuple[str, str, int], int] = {}  # ordered by first commit
        # By queue, the future of the last frame with a commit of that queue.
        self._under_way: dict[tuple[str, str, int], asyncio.Future[int]] = {}
        self._waiters: dict[tuple[str, str, int], list[asyncio.Future[None]]] = {}
        self._withheld: set[tuple[str, str]] = set()  # (topic, "") or ("", group) being deleted

    def service(self) -> Service:
        return Service(
            chores=[
                Chore(
                    "offset_commits",
                    INTERVAL_MS,
                    self.flush,
                    lambda: 0 if self._gathered else IDLE_MS,
                )
            ],
            role_changed=lambda change: self.leadership_lost() if change.ended else None,
        )

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Accept a one-way commit. Returns False if it is rejected."""
        if not self._leading() or offset < 0 or self.is_withheld(topic, group):
            return False
        if not self.has_room(topic, group, (queue_id,)):
            return False
        taken = self._gather(topic, group, queue_id, offset)
        if not taken:
            log.warning("offset_commit_dropped group=%s topic=%s reason=full", group, topic)
        return taken

    def _gather(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Add a pending commit. Returns False at the limit."""
        key = (topic, group, queue_id)
        if key not in self._gathered and len(self._gathered) >= self._count_max:
            return False
        self._gathered[key] = offset
        return True

    async def commit_and_wait(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Return once the commit is applied. Raises Refused, OutcomeUnknown, RaftError."""
        self.check(topic, group, (queue_id,))
        if not self._gather(topic, group, queue_id, offset):
            raise busy("too many offset commits wait")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault((topic, group, queue_id), []).append(waiter)
        await waiter

    def check(self, topic: str, group: str, queue_ids: Collection[int]) -> None:
        """Raise Refused if offsets of these queues cannot be set now."""
        self.check_withheld(topic, group)
        if not self.has_room(topic, group, queue_ids):
            raise offsets_full()

    def check_withheld(self, topic: str, group: str) -> None:
        """Raise Refused if the topic or the group is being deleted."""
        if not self.is_withheld(topic, group):
            return
        of_topic = (topic, "") in self._withheld
        what = f"topic [{topic}]" if of_topic else f"group [{group}]"
        raise busy(f"{what} is being deleted")

    def is_withheld(self, topic: str, group: str) -> bool:
        return not self._withheld.isdisjoint(((topic, ""), ("", group)))

    @contextmanager
    def withheld(self, *, topic: str = "", group: str = "") -> Iterator[None]:
        """Propose the gathered commits, and reject commits of the topic or group within the block
        that deletes it. Not for two concurrent deletions of the same name."""
        self.flush()
        self._withheld.add((topic, group))
        try:
            yield
        finally:
            self._withheld.discard((topic, group))

    async def settle(self, topic: str, group: str, queue_id: int) -> None:
        """Wait until no commit of this queue is in flight, whatever its outcome."""
        if (topic, group, queue_id) in self._gathered:
            self.flush()
        future = self._under_way.get((topic, group, queue_id))
        if future is not None:
            await asyncio.wait([future])

    def flush(self) -> None:
        gathered, self._gathered = self._gathered, {}
        waiting, self._waiters = self._waiters, {}
        gathered_commits = ((*key, offset) for key, offset in gathered.items())
        for commits in in_frames(gathered_commits, self.frame_bytes_max):
            keys = [commit[:3] for commit in commits]
            waiters = [waiter for key in keys for waiter in waiting.get(key, ())]
            try:
                future = self._propose(commit_offsets(commits))
            except Exception as error:  # any error of the member is passed to the waiters
                log.info("offset_commits_refused count=%d: %s", len(commits), error)
                _settle(waiters, error)
                continue
            for key in keys:
                self._under_way[key] = future
            future.add_done_callback(partial(self._done, keys, waiters))

    def leadership_lost(self) -> None:
        """Drop unproposed commits and fail their waiters."""
        self._gathered.clear()
        waiting, self._waiters = self._waiters, {}
        _settle([waiter for waiters in waiting.values() for waiter in waiters], not_leader())

    def _done(
        self,
        keys: list[tuple[str, str, int]],
        waiters: list[asyncio.Future[None]],
        future: asyncio.Future[int],
    ) -> None:
        for key in keys:
            if self._under_way.get(key) is future:
                del self._under_way[key]
        error = None if future.cancelled() else future.exception()
        if error is not None:
            log.info("offset_commits_failed count=%d: %s", len(keys), error)
        _settle(waiters, error)


def in_frames(commits: Iterable[Commit], bytes_max: int) -> Iterator[list[Commit]]:
    """Yield the commits in chunks of at most `bytes_max` of JSON."""
    chunk: list[Commit] = []
    size = 0
    for commit in commits:
        more = len(commit[0]) + len(commit[1]) + COMMIT_BYTES
        if chunk and size + more > bytes_max:
            yield chunk
            chunk, size = [], 0
        chunk.append(commit)
        size += more
    if chunk:
        yield chunk


def offsets_full() -> Refused:
    return busy(f"there are {OFFSETS_MAX} offsets already; none is new")


def _settle(waiters: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue  # its connection closed
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
