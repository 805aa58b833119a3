"""The rules of the house that a machine can hold: import direction, purity of the core, and what is
inside a room: no circles of files, objects that have parts.

Files and functions have no limit of length: `make report` prints the longest, for a person to read.
"""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy import known
from tests.tidy.mentions import missing
from tests.tidy.parts import inheritors, late_attributes, planted, stubs
from tests.tidy.privates import reached
from tests.tidy.pure import PURE_MODULES
from tests.tidy.sources import (
    FRONT_DOOR,
    ROOMS,
    ROOT,
    circles,
    graph,
    imported,
    parsed,
    product,
    sources,
)

# Imports point down only: a room may import itself and what stands here.
MAY_IMPORT = {
    "ops": set(),
    "remoting": set(),
    "store": set(),
    "web": {"ops"},
    "dledger": {"store"},
    "namesrv": {"ops", "remoting", "web"},
    "broker": {"ops", "remoting", "store", "dledger", "web"},
    "client": {"remoting", "store"},
    "spark": {"client", "remoting", "store"},
    "audit": {"broker", "chaos", "client", "ops", "remoting", "spark", "store"},
    "chaos": {"client", "ops", "remoting", "store", "web"},
    "mqadmin": {"client", "ops", "remoting"},
    "proxy": {"client", "ops", "remoting", "store", "web"},
}

# What modules that call themselves pure may nevertheless import: names of types, and clocks that a
# caller may replace.
PURE_BUT_FOR = {
    "client/producer/pending_send.py": {"asyncio"},
}
PURE_MIN = 180  # how many there are; fewer: they are not found any more
OTHERS = ("tests", "bench", "demo", "docs", "tools")  # have code, and are no part of the product
IMPURE = {"asyncio", "logging", "os", "random", "socket", "subprocess", "threading", "time"}

# The one seam of the layout of a store that client and chaos share with the audit.
STORE_LAYOUT = {"store.record", "store.properties", "store.frame", "store.identity"}

# The audit makes tables under config/ again by the broker's own commands, and copies running
# replicas as a backup does: all that it has of the broker.
AUDITED_TABLES = {
    "broker.backup.manifest",
    "broker.backup.protocol",
    "broker.backup.online_source",
    "broker.errors",
    "broker.tables.snapshot",
    "broker.tables.state",
}

# The fault layer is the store's disk made to fail, and runs a whole broker over it (another
# process than the harness): these files, by name, and nothing else of those rooms.
FAULT_LAYER = {
    "chaos/faults/fault_disk.py": {"store.disk"},
    "chaos/faults/faulty_broker.py": {"broker.cli", "broker.process"},
}

# The negative control puts pysyncobj in the place of Raft, within a broker of ours.
NEGATIVE_CONTROL = {
    "chaos/pysyncobj/__main__.py": {
        "broker.cli",
        "broker.process",
    },
    "chaos/pysyncobj/journal.py": {
        "dledger.storage.log_storage",
        "store.frame",
    },
    "chaos/pysyncobj/member.py": {
        "broker.replication.engine",
        "broker.tables.state",
        "dledger.node.applier",
        "dledger.node.node",
        "dledger.node.proposals",
        "dledger.node.reads",
        "dledger.raft.config",
        "dledger.raft.configuration",
        "dledger.raft.errors",
        "dledger.raft.log_index",
        "dledger.raft.messages",
        "dledger.settings",
        "dledger.storage.log_reads",
        "dledger.storage.log_storage",
        "dledger.transport.transport",
        "store.commitlog.commitlog",
        "store.disk",
        "store.errors",
        "store.frame",
        "store.message_store",
    },
    "chaos/pysyncobj/meta.py": {
        "store.disk",
    },
    "chaos/pysyncobj/replica.py": {
        "dledger.raft.messages",
        "dledger.settings",
    },
    "chaos/pysyncobj/transport.py": {
        "dledger.raft.config",
        "dledger.raft.messages",
        "dledger.settings",
        "dledger.transport.transport",
        "dledger.transport.wire",
    },
}

# These respect a store's lock: who changes a dead node's files, and who reads a store as a whole.
OF_THE_LOCK = {
    "audit/read/store_files.py": {"store.store_lock"},
    "chaos/faults/disk.py": {"store.store_lock"},
    "chaos/faults/power.py": {"store.store_lock"},
}

# A check before a move is that of `mqbroker config check`.
OF_BROKER_KEYS = {"mqadmin/check_move.py": {"broker.config"}}

# What clients need of remoting stands on its own, and so does Raft, but for dialling, TCP's options
# and strict JSON. These files of servers listen, share what is limited, say what they read of a
# configuration, and what they add to its metrics.
OF_SERVERS = {
    "dledger/transport/outbound.py": {"ops.connect"},
    "dledger/transport/peer_auth.py": {"ops.listening"},
    "dledger/transport/inbound.py": {"ops.fairness"},
    "dledger/transport/network.py": {"ops.connect", "ops.keepalive", "ops.listening"},
    "dledger/transport/transport.py": {"ops.listening"},
    "remoting/acl/signature.py": {"ops.strict_json"},
    "remoting/metrics.py": {"ops.metrics"},
    "remoting/client.py": {"ops.connect"},
    "remoting/connection.py": {"ops.keepalive"},
    "remoting/contexts.py": {"ops.strict_json"},
    "remoting/fast_json.py": {"ops.strict_json"},
    "remoting/process_tls.py": {"ops.server_options"},
    "remoting/server.py": {"ops.fairness", "ops.listening"},
    "remoting/tls_links.py": {"ops.connect"},
    "remoting/tls_listener.py": {"ops.keepalive"},
}


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    exceptions = FAULT_LAYER | NEGATIVE_CONTROL | OF_THE_LOCK | OF_BROKER_KEYS | OF_SERVERS
    excepted = exceptions.get(str(path.relative_to(ROOT)), set())
    for name in imported(path):
        top = name.split(".")[0]
        if top in ROOMS and top != room and name not in excepted:
            assert top in MAY_IMPORT[room], f"{room} must not import {name}"
            if top == "store" and room in ("audit", "client", "chaos", "proxy"):
                assert name in STORE_LAYOUT, f"{room} may know the layout only, not {name}"
            if top == "chaos" and room == "audit":
                checks = ("chaos.checks", "chaos.history")
                assert name.startswith(checks), f"the audit shares mqchaos' checks, not {name}"
            if top == "broker" and room == "audit":
                assert name in AUDITED_TABLES, f"the audit may know tables and backups, not {name}"
        assert top != "tests", f"{name}: the product does not import its tests"
        assert top != "pickle", "nothing is pickled"


def test_package_is_imported_by_one_name_only() -> None:
    """Rooms stand at the top level of the repository, and are parts of `raftmq`: by both names a
    module would be there twice."""
    bare = re.compile(rf"^\s*(?:from|import) ({'|'.join(ROOMS)})\b", re.M)
    paths = [p for room in (*ROOMS, "raftmq", *OTHERS) for p in (ROOT / room).rglob("*.py")]
    matches = {str(path): bare.findall(path.read_text()) for path in paths}
    assert not {path: rooms for path, rooms in matches.items() if rooms}


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_inside_a_package_are_relative(path: Path) -> None:
    """So those who draw a room from its files see its arrows: raftmq/ has only links to rooms."""
    room = path.relative_to(ROOT).parts[0]
    absolute = re.compile(rf"^\s*(?:from|import) raftmq\.{room}\b.*", re.M)
    assert not absolute.findall(path.read_text())


def test_every_package_goes_into_container_images() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert let_in >= {*ROOMS, *FRONT_DOOR}


def test_every_package_is_part_of_raftmq() -> None:
    links = {
        path.name: path.readlink() for path in (ROOT / "raftmq").iterdir() if path.is_symlink()
    }
    assert links == {room: Path("..") / room for room in ROOMS}


def says_pure(path: Path) -> bool:
    folder = str(path.parent.relative_to(ROOT))
    if path.stem in PURE_MODULES.get(folder, "").split():
        return True
    return re.search(r"\bPure\b", ast.get_docstring(parsed(path)) or "") is not None


def test_modules_described_as_pure_import_nothing_impure() -> None:
    """Bytes, messages and ticks in, what to do out: such a module does nothing by itself."""
    pure = [path for path in product() if says_pure(path)]
    assert len(pure) >= PURE_MIN
    wrong = {}
    for path in pure:
        name = str(path.relative_to(ROOT))
        result = IMPURE & {n.split(".")[0] for n in imported(path)}
        if result != PURE_BUT_FOR.get(name, set()):
            wrong[name] = result
    assert not wrong


@pytest.mark.parametrize("path", product(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(parsed(path))


def test_files_named_in_comments_exist() -> None:
    others = [path for room in OTHERS for path in (ROOT / room).rglob("*.py")]
    result = {str(path.relative_to(ROOT)): missing(path) for path in (*product(), *others)}
    assert not {path: names for path, names in result.items() if names}


def test_uses_of_private_members_in_tests_only_decrease() -> None:
    uses = [use for use in reached() if not use.startswith(known.PLANTERS)]
    assert len(uses) <= known.PRIVATE_USES_MAX, "\n".join(uses)


def in_circles() -> list[str]:
    return [file for circle in circles(graph()) for file in circle]


def folder_circles() -> list[str]:
    """The folders of a room that import each other; a room's own files may import any of them."""
    edges: dict[str, set[str]] = {}
    for file, result in graph().items():
        folder = str(Path(file).parent)
        for other in {str(Path(each).parent) for each in result} - {folder}:
            inner = all(len(Path(each).parts) > 1 for each in (folder, other))
            if inner and Path(folder).parts[0] == Path(other).parts[0]:
                edges.setdefault(folder, set()).add(other)
                edges.setdefault(other, set())
    return [" ".join(circle) for circle in circles(edges)]


def inheritors_of_others() -> list[str]:
    allowed = tuple(f"({base})" for base in known.ALLOWED_BASES)
    return [each for each in inheritors() if not each.endswith(allowed)]


def own_late_attributes() -> list[str]:
    return [each for each in late_attributes() if each not in known.ALLOWED_ATTRIBUTES]


@pytest.mark.parametrize(
    "found, known_ones, rule",
    [
        (in_circles, known.IN_CIRCLES, "files import each other in no circle"),
        (folder_circles, set(), "folders of a room import each other in no circle"),
        (inheritors_of_others, known.INHERITORS, "a class has parts, and no base"),
        (stubs, known.STUBS, "no method is a stub to be written elsewhere"),
        (own_late_attributes, known.LATE_ATTRIBUTES, "every attribute is set by __init__"),
        (planted, known.PLANTED, "what an object calls is given to its __init__"),
    ],
    ids=["circles", "folders", "bases", "stubs", "attributes", "callbacks"],
)
def test_classes_are_limited_in_size(
    found: Callable[[], list[str]], known_ones: set[str], rule: str
) -> None:
    """Take an offender that is mended off the list in tests/tidy/known.py, which only shrinks."""
    now = set(found())
    assert not now - known_ones, f"{rule}: {', '.join(sorted(now - known_ones))}"
    assert not known_ones - now, f"mended, so off known.py: {', '.join(sorted(known_ones - now))}"
