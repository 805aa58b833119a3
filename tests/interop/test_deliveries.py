"""What Java's client is handed by our brokers is what Apache's hands it, property by property.

Apache's part was recorded (`python -m tests.interop.deliveries`); a long test asks it again. What
differs on purpose stands in DIFFERENT, and with its reason in docs/divergence.md.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.broker.cluster import Group
from tests.interop.deliveries import OF_OURS, RECORDED, SETTINGS, Told, apache, java, told
from tests.interop.jvm import Jvm
from tests.interop.ours import classic, raft, running
from tests.interop.targets import name_server

pytestmark = pytest.mark.timeout(600)
# (entry, what of it) → (Apache's, ours); None: not there.
DIFFERENT: dict[tuple[str, str], tuple[Any, Any]] = {
    ("cg-dead: dead", "property DLQ_ORIGIN_MESSAGE_ID"): (None, "PLACE"),
    ("cg-dead: dead", "property DLQ_ORIGIN_TOPIC"): (None, "Deliveries-dead"),
} | {
    (f"cg-deliveries: {kind}", f"property TIMER_{what}QUEUE_MS"): ("TIME", None)
    for kind in ("at", "after-ms", "after-s")
    for what in ("EN", "DE")
}


@pytest.fixture(scope="module")
def machine() -> Iterator[Jvm]:
    jvm = java()
    yield jvm
    jvm.close()


def flat(fields: dict[str, Any]) -> dict[str, Any]:
    properties = fields.get("properties") or {}
    return {name: value for name, value in fields.items() if name != "properties"} | {
        f"property {name}": value for name, value in properties.items()
    }


def differences(theirs: Told, ours: Told) -> dict[tuple[str, str], tuple[Any, Any]]:
    result = {}
    for entry in sorted({*theirs, *ours}):
        left, right = flat(theirs.get(entry, {})), flat(ours.get(entry, {}))
        for name in sorted({*left, *right}):
            if left.get(name) != right.get(name):
                result[entry, name] = left.get(name), right.get(name)
    return result


@pytest.fixture(scope="module")
def stories(machine: Jvm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """Our brokers' stories by mode, told at the same time: most of each is waiting."""

    def tell(mode: Callable[..., Group]) -> Told:
        with name_server() as namesrv:
            settings = SETTINGS | OF_OURS | {"namesrvAddr": namesrv, "brokerIP1": "127.0.0.1"}
            with running(lambda: mode(tmp_path_factory.mktemp(mode.__name__), **settings)):
                return told(machine, namesrv)

    with ThreadPoolExecutor() as pool:
        futures = {mode.__name__: pool.submit(tell, mode) for mode in (raft, classic)}
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("mode", ["raft", "classic"])
def test_java_client_gets_the_same_deliveries_as_from_apaches_broker(
    stories: dict[str, Told], mode: str
) -> None:
    assert differences(json.loads(RECORDED.read_text()), stories[mode]) == DIFFERENT


@pytest.mark.long
def test_apaches_broker_gives_the_recorded_deliveries(machine: Jvm, tmp_path: Path) -> None:
    with apache(tmp_path) as namesrv:
        theirs = told(machine, namesrv)
    assert differences(json.loads(RECORDED.read_text()), theirs) == {}
