"""The contents of a store, each with the check that judges it.

A test compares this with the lists of the product (files, frames, commands, properties), so that a
new kind is either judged or listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch

from raftmq.broker.tables.snapshot import COPY, DIRECTORY, FILES
from raftmq.store.frame import FrameKind

from ..read.store_files import Store
from .raft_files import CONFIGURATION, GROUP, HARD_STATE

TABLES = tuple(f"{DIRECTORY}/{name}{end}" for name in FILES for end in ("", COPY))
# Each kind of file in a store, with a check that judges it; "" if none does.
STORE_FILES = {
    "abort": "raft_files",
    "checkpoint": "commit",
    "commitlog": "damage",
    "consumequeue": "queue_index",
    "dledger-*": "damage",  # of Apache's brokers
    "identity": "absent_stores",
    "index": "index",
    DIRECTORY: "tables",
    **dict.fromkeys(TABLES, "tables"),
    "raft": "raft_files",
    **{f"raft/{name}": "raft_files" for name in (HARD_STATE, CONFIGURATION, GROUP)},
    # The following have nothing of messages; the broker makes them again, or only people use them.
    "consumequeue.manifest": "",
    "history": "",
    "lock": "",
    "restoring": "",
    **{
        f"raft/{name}": ""
        for name in ("boot", "damaged-*", "installation", "installed", "notes", "trim")
    },
}
FRAMES = {
    FrameKind.MESSAGES: "frame_records",
    FrameKind.COMMAND: "tables",
    FrameKind.NOOP: "frame_sequence",
    FrameKind.CONFIGURATION: "raft_files",
}
COMMANDS = {
    **dict.fromkeys(
        "acl_delete acl_put acl_seed acl_white adopt commit_offsets delay_progress delete_group "
        "delete_topic delete_writer drain forget_group forget_offsets group_id lock_queues move "
        "moved open_writer pop put_group put_topic remove_group reset_offsets reset_taken "
        "sent_once several timer_progress wrote".split(),
        "tables",
    ),
    "announce": "",
}
# Properties that clients and brokers add. The others are the application's ("altered").
PROPERTIES = {
    "UNIQ_KEY": "missing",
    **dict.fromkeys(
        "1ST_POP_TIME CLUSTER CONSUME_START_TIME CORRELATION_ID DELAY DLQ_ORIGIN_MESSAGE_ID "
        "DLQ_ORIGIN_TOPIC EXTEND_UNIQ_INFO IDEMPOTENT INSTANCE_ID MAX_OFFSET MAX_RECONSUME_TIMES "
        "MIN_OFFSET MSG_REGION ORIGIN_GROUP ORIGIN_MESSAGE_ID PGROUP POP_CK REAL_QID REAL_TOPIC "
        "RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TIMER_DELAY_MS TIMER_DELAY_SEC "
        "TIMER_DELIVER_MS TIMER_OUT_MS TIMER_ROLL_LABEL TIMER_ROLL_TIMES TRACE_ON "
        "TRANSACTION_CHECK_TIMES TRAN_FIRST_STORED_MS TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET TTL "
        "WAIT __transactionId__".split(),
        "",
    ),
}


def unjudged(raft: bool, sends: bool) -> Iterator[str]:
    """Yield the kinds that no check judges, of a log with commands and of messages with known
    `sends`."""
    if raft:
        names = (name for name, check in COMMANDS.items() if not check)
        yield f"commands: {', '.join(names)}, whose content is in no file"
    if sends:
        names = (name for name, check in PROPERTIES.items() if check)
        yield f"properties that clients and brokers add, except {', '.join(names)}"


def unread_files(stores: Mapping[str, Store]) -> list[str]:
    """Return the kinds of files in the stores that no check reads, sorted. Raises OSError."""
    read = [name for name, check in STORE_FILES.items() if check]
    unread: set[str] = set()
    for store in stores.values():
        directories = store.listing.directories
        for name in (*store.listing.files, *directories):
            directory, slash, _ = name.rpartition("/")
            if slash and directory not in (DIRECTORY, "raft"):
                continue
            if not any(fnmatch(name, known) for known in read):
                unread.add(f"{name}/" if name in directories else name)
    return sorted(unread)
