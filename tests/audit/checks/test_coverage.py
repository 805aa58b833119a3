"""All that the product can write into a store is judged by a check, or listed as not judged."""

from raftmq.audit.checks import coverage
from raftmq.broker.history import ring
from raftmq.broker.tables import snapshot, snapshot_install, state
from raftmq.dledger.repair import repairer
from raftmq.dledger.snapshot import marker
from raftmq.dledger.storage import two_slot_file
from raftmq.store import config, identity, store_lock
from raftmq.store.frame import FrameKind
from raftmq.store.properties import ADDED_PROPERTIES

OF_APACHE = {"dledger-*"}


def test_every_kind_of_store_file_is_judged_or_listed() -> None:
    raft = (*two_slot_file.FILES, marker.MARKER, f"{repairer.ASIDE_PREFIX}*")
    tables = [f"{snapshot.DIRECTORY}/{name}" for name in snapshot.FILES]
    kinds = {
        *config.FILES,
        *(snapshot.DIRECTORY, snapshot_install.RAFT_DIRECTORY, ring.DIRECTORY),
        *(identity.IDENTITY_FILE, store_lock.LOCK_FILE, snapshot_install.RESTORING),
        *(f"{snapshot_install.RAFT_DIRECTORY}/{name}" for name in raft),
        *(f"{name}{end}" for name in tables for end in ("", snapshot.COPY)),
    }
    assert kinds == {*coverage.STORE_FILES} - OF_APACHE


def test_every_kind_of_frame_is_judged() -> None:
    assert {*FrameKind} == {*coverage.FRAMES} and all(coverage.FRAMES.values())


def test_every_command_is_judged_or_listed() -> None:
    assert {*coverage.COMMANDS} == state.COMMANDS


def test_every_added_property_is_judged_or_listed() -> None:
    assert {*coverage.PROPERTIES} == ADDED_PROPERTIES


def test_what_no_check_judges_is_in_the_verdict() -> None:
    assert [*coverage.unjudged(raft=True, sends=True)] == [
        "commands: announce, whose content is in no file",
        "properties that clients and brokers add, except UNIQ_KEY",
    ]
    assert [*coverage.unjudged(raft=False, sends=False)] == []
