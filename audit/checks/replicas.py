"""Compares the replicas' logs block by block.

Every store is compared up to its limit (audit.read.committed_range), without the garbage behind
blank records. A block differs if its bytes are not equal in all stores that have it. The majority's
bytes count as right, and the first differing position of a deviating store is reported. But a store
that holds an acknowledged message that the majority lost counts as right from there on
(audit.checks.last_copies), because the message can only be recovered from it.
"""

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from ..engine.frames import mapped
from ..read.blocks import Block, Counted, DifferentBlocks
from ..read.committed_range import Limits
from ..read.incremental import Ended, tail_of
from ..read.store_files import Store, first_difference
from ..read.tables import Tables, reader_of
from ..report.report import OFFENDERS_MAX, CheckResult, Offender, Verdict
from .last_copies import LastCopies


def replica_check(tables: Tables, copies: LastCopies) -> CheckResult:
    """Compare the blocks that differed when they were decoded, below the stores' limits."""
    offenders: list[Offender] = []
    count, blocks = _different_blocks(tables)
    for start, contents in blocks[:OFFENDERS_MAX]:
        offenders += _deviations(start, contents, tables.stores, copies.first)
    return CheckResult(
        "replicas",
        "blocks in which replicas differ below their limits",
        True,
        count,
        tuple(offenders[:OFFENDERS_MAX]),
    )


def absent_check(limits: Limits, *, running: bool) -> CheckResult:
    """Check that every voter's store was given, or that its broker answered if `running`."""
    offenders: tuple[Offender, ...] = tuple(
        {"store": name, "voter_by": limits.members.source} for name in limits.absent
    )
    name, what = "absent_stores", "store is not there"
    if running:
        name, what = "brokers_down", "broker did not answer"
    title = f"voters whose {what}: they count as holding nothing"
    return CheckResult(name, title, True, len(offenders), offenders)


def earlier_check(tables: Tables, since: Ended) -> CheckResult:
    """Check that the last bytes before the start of an incremental audit are unchanged. A store may
    miss some of them if enough other stores have them."""
    limits = tables.limits
    offenders: list[Offender] = []
    short = []
    for name, store in tables.stores.items():
        tail = tail_of(store, since.position)
        if tail is not None and tail != since.tail:
            what = "other bytes than there were"
            offenders.append({"store": name, "position": since.position, "what": what})
        elif tail is None:
            short.append(name)
    if len(set(limits.voting).difference(short)) < limits.needed:
        what = "ends before what was agreed there"
        offenders += [{"store": name, "position": since.position, "what": what} for name in short]
    title = "stores that are not as before where the audit before ended"
    return CheckResult.of_faults("earlier", title, offenders)


def commit_check(limits: Limits) -> CheckResult:
    """Check that a majority and the store itself hold every commit position."""
    offenders: list[Offender] = []
    for store in limits.stores:
        if store.commit > limits.agreed_end:
            what = "knows more to be committed than enough stores hold: others lost it"
        elif store.commit > store.data_end:
            what = "commit is beyond the store's own data"
        else:
            continue
        offenders.append(
            {
                "store": store.store,
                "what": what,
                "commit": store.commit,
                "data_end": store.data_end,
                "agreed_end": limits.agreed_end,
            }
        )
    title = "stores whose commit position is not held"
    return CheckResult("commit", title, True, len(offenders), tuple(offenders))


def segment_check(stores: Mapping[str, Store], limits: Limits) -> CheckResult:
    """Check for gaps between segments, below the store's limit, in the range that was read."""
    offenders: list[Offender] = []
    for store in limits.stores:
        files = stores[store.store].segments
        for before, after in itertools.pairwise(files):
            if before.end < after.base and store.start < after.base and before.end < store.limit:
                gap: Offender = {"store": store.store, "from": before.end, "to": after.base}
                offenders.append(gap)
    title = "log positions no segment file holds"
    return CheckResult.of_faults("segments", title, offenders)


def retention_check(tables: Tables) -> tuple[CheckResult, list[str]]:
    """Check that each store begins with a message that retention may have reached. Also return the
    gaps."""
    retention, offenders, gaps = tables.retention, [], []
    for store in tables.limits.stores if tables.since is None else ():
        first_ms = retention.first_ms.get(store.store)
        if first_ms is None and store.start:
            gap = "no message of it has a store time"
            gaps.append(f"whether retention removed the start of {store.store}'s log: {gap}")
        elif first_ms is not None and first_ms > retention.kept_from_ms:
            age = f"{retention.age_s(first_ms) / 3600:.1f}"
            offender: Offender = {"store": store.store, "position": store.start, "age_hours": age}
            offenders.append(offender)
    title = "stores whose log begins with a message that is too young for retention"
    check = CheckResult.of_faults("removed_early", title, offenders)
    verdict = Verdict.LOST if retention.too_early else Verdict.DAMAGED
    return replace(check, verdict=verdict), gaps


def behind_check(limits: Limits) -> CheckResult:
    """Count the stores that end before the group's log, which is no fault."""
    offenders: list[Offender] = [
        {"store": store.store, "agreed": store.agreed, "bytes": limits.agreed_end - store.agreed}
        for store in limits.stores
        if store.agreed < limits.agreed_end
    ]
    title = "stores that end before the group's log"
    return replace(CheckResult.of_faults("behind", title, offenders), fault=False)


def _different_blocks(tables: Tables) -> tuple[int, list[Block]]:
    """Return the number of different blocks, and the first of them."""
    facts = tables.staged_log.facts
    reach = {store.store: store.limit for store in tables.limits.stores}
    held = facts.held.items()
    different = [each for (_, alike), intervals in held if not alike for each in intervals]
    ended = facts.ended.items()
    different += [(at, reach[name]) for name, at in ended if at < reach[name]]
    if not different:
        return 0, []
    reader, engine = reader_of(tables.stores, tables.since), tables.engine
    compared = DifferentBlocks(reader, reach, sorted(set(reach.values())))
    windows = reader.partitions()
    parts = [
        (number, windows[number])
        for number, window in enumerate(tables.staged_log.windows)
        if any(window.start < end and start < window.end for start, end in different)
    ]
    counted = engine.map_reduce(compared.counted, parts, Counted.merge, Counted())
    blocks = mapped(engine, compared.blocks, [windows[n] for n in counted.first])
    return counted.count, [*chain.from_iterable(blocks)]


@dataclass(frozen=True, slots=True)
class _Reference:
    """The store with the right block, its (end, digest), and the reason."""

    store: str
    content: tuple[int, bytes]
    why: str


def _reference(contents: Mapping[str, tuple[int, bytes]], kept: Mapping[str, int]) -> _Reference:
    """Choose among the blocks of several stores. `kept` has the first position of each store that
    holds an acknowledged message which a majority lost."""
    end = max(block_end for block_end, _ in contents.values())
    keeping = [(at, name) for name, at in kept.items() if name in contents and at < end]
    if keeping:
        name = min(keeping)[1]
        return _Reference(name, contents[name], "it has an acknowledged message that others lost")
    content, count = Counter(contents.values()).most_common(1)[0]
    by_majority = count * 2 > len(contents)
    why = "a majority has these bytes" if by_majority else "there is no majority: the first one"
    name = min(name for name in contents if contents[name] == content)
    return _Reference(name, content, why)


def _deviations(
    start: int,
    contents: Mapping[str, tuple[int, bytes]],
    stores: Mapping[str, Store],
    kept: Mapping[str, int],
) -> list[Offender]:
    """List stores with a block unlike the right block, except those in `kept`."""
    right = _reference(contents, kept)
    offenders: list[Offender] = []
    for store, content in sorted(contents.items()):
        if content == right.content or store in kept:
            continue
        end = max(content[0], right.content[0])
        at = first_difference(stores[store], stores[right.store], start, end)
        offenders.append(
            {
                "store": store,
                "unlike": right.store,
                "because": right.why,
                "block_start": start,
                "first_difference": at,
                "location": stores[store].file_at(start if at is None else at),
            }
        )
    return offenders
