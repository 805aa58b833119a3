"""`python -m tests.interop.figures`: the foreign clients' scenarios, and what they cost, as JSON.

Each wave has one kill -9 of the leader of a three-broker group; those of allocation have a second
group in another machine room. `--apache` runs the same against unharmed brokers of Apache's, of 5.3
or 4.9, instead: what passes there must pass here. `--table` has the figures as Markdown.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raftmq.client import Admin
from tests.interop.apache import VERSIONS, ApacheBroker
from tests.interop.matrix import Pair, drivers, pairs, wave
from tests.interop.rooms import REPLICAS, rooms
from tests.interop.runs import PACE_S, Outcome
from tests.interop.scenarios import NEEDS_5, TABLE
from tests.interop.targets import UP_S, ApacheTarget, RaftGroup, Target, ask, name_server
from tests.interop.toolchain import CLIENTS
from tests.waiting import wait_until

APACHE = {
    "transactionCheckInterval": "2000",
    "transactionCheckMax": "10000",  # a client that is busy is asked until it answers
    "transactionTimeOut": "2000",
    "enablePropertyFilter": "true",
    "timerWheelEnable": "true",  # its reset of offsets asks for it
}
OURS = {
    # A killed leader is missed when its connections close. Silence counts late: on a busy machine a
    # leader that is alive would be deposed, and a figure would not be one of the kill alone.
    "electionTimeoutMinMs": "3000",
    "electionTimeoutMaxMs": "5000",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "2000",
    "transactionCheckMax": "10000",  # a client that is busy is asked until it answers
    "transactionTimeOut": "2000",
}
NAMES = [row.name for row in TABLE]
COUNTS = ("acknowledged", "unknown", "lost", "redelivered", "stored_twice", "offsets_lost")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", nargs="*", default=list(CLIENTS), choices=list(CLIENTS))
    parser.add_argument("--scenarios", nargs="*", default=[], choices=NAMES)
    parser.add_argument("--wave", type=int, default=0, help="so many with one kill (0: a row)")
    parser.add_argument(
        "--apache", nargs="?", const="5.3", choices=VERSIONS, help="Apache's broker, unharmed"
    )
    parser.add_argument("--table", action="store_true", help="Markdown, not JSON")
    return parser.parse_args()


@contextmanager
def raft_group(directory: Path) -> Iterator[Target]:
    group = RaftGroup(directory / "group", **OURS)
    try:
        yield group
    finally:
        group.down()


@contextmanager
def apache(directory: Path, version: str, *names: str) -> Iterator[Target]:
    """Brokers of these names; the first one is the target's."""
    with name_server() as namesrv, ExitStack() as stack:
        brokers = []
        for name in names:
            broker = ApacheBroker(
                directory / name, namesrv, version=version, brokerName=name, **APACHE
            )
            stack.callback(broker.kill)
            broker.start()
            brokers.append(broker)
        wait_template(namesrv, *names)
        yield ApacheTarget(brokers[0], namesrv)


@contextmanager
def target_of(directory: Path, apaches: str | None, in_rooms: bool) -> Iterator[Target]:
    """Return the target that rows of the table are run against."""
    directory.mkdir()
    if apaches is not None:
        made = apache(directory, apaches, *(REPLICAS if in_rooms else ("apache-a",)))
    else:
        made = rooms(directory / "rooms", **OURS) if in_rooms else raft_group(directory)
    with made as target:
        yield target


def wait_template(namesrv: str, *names: str) -> None:
    """Until topics may be made by sending: after one that each broker registers."""

    def registered() -> dict[str, str]:
        return ask(namesrv, leaders_of_template)

    wait_until(lambda: set(registered()) == set(names), registered, patience_s=UP_S, pause_s=PACE_S)


async def leaders_of_template(admin: Admin) -> dict[str, str]:
    return (
        await admin.cluster.leaders_of("TBW102") if "TBW102" in await admin.cluster.topics() else {}
    )


def summary(outcomes: list[Outcome], kills: int) -> dict[str, Any]:
    """By client: how many scenarios there were, how many were right before the kill, and after."""
    clients = {}
    for client in sorted({outcome.client for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.client == client]
        clients[client] = {
            "scenarios": len(mine),
            "passed_before_kill": sum(outcome.before for outcome in mine),
            "passed_after_kill": sum(outcome.after for outcome in mine),
            **{key: sum(getattr(outcome, key) for outcome in mine) for key in COUNTS},
        }
    twice = sum(outcome.redelivered + outcome.stored_twice for outcome in outcomes)
    return {
        "clients": clients,
        "kills": kills,
        "offsets_lost": sum(outcome.offsets_lost for outcome in outcomes),
        "duplicates_per_kill": round(twice / kills, 1) if kills else 0,
    }


def told(outcome: Outcome) -> None:
    word = "ok" if outcome.after else f"FAILED ({outcome.error})"
    line = f"{outcome.scenario:18}{outcome.client:8}{outcome.seconds:6} s  {word}"
    print(line, file=sys.stderr, flush=True)


def table(outcomes: list[Outcome], kills: int) -> str:
    """The figures as docs/compatibility.md shows them."""
    figures = summary(outcomes, kills)
    heads = ["client", "scenarios", "right before the kill", "right after it", "acknowledged"]
    heads += ["lost", "offsets lost", "given out twice", "stored twice"]
    keys = ["scenarios", "passed_before_kill", "passed_after_kill", "acknowledged"]
    keys += ["lost", "offsets_lost", "redelivered", "stored_twice"]
    lines = [heads, ["---"] * len(heads)]
    clients = figures["clients"]
    assert isinstance(clients, dict)
    lines += [[client, *(str(row[key]) for key in keys)] for client, row in clients.items()]
    end = f"{kills} kills, {figures['duplicates_per_kill']} duplicates per kill"
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", end])


def waves_of(which: list[Pair], size: int) -> list[list[Pair]]:
    """`size` pairs at a time; 0: a row of the table."""
    if size:
        return [which[first : first + size] for first in range(0, len(which), size)]
    rows = [[pair for pair in which if pair[0] is row] for row in TABLE]
    return [row for row in rows if row]


def main() -> int:
    options = arguments()
    which = pairs(options.clients, options.scenarios)
    if options.apache == "4.9":
        which = [(row, client) for row, client in which if (row.name, client) not in NEEDS_5]
    outcomes: list[Outcome] = []
    kills = 0
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        with drivers(options.clients, directory) as started:
            for in_rooms in (False, True):
                waves = waves_of([p for p in which if p[0].rooms == in_rooms], options.wave)
                if not waves:
                    continue
                with target_of(directory / str(in_rooms), options.apache, in_rooms) as target:
                    for pairs_of in waves:
                        began = time.monotonic()
                        outcomes += wave(target, started, pairs_of, str(kills), told)
                        kills += 1
                        spent = time.monotonic() - began
                        print(f"wave {kills}: {spent:.1f} s", file=sys.stderr, flush=True)
    kills = 0 if options.apache else kills
    if options.table:
        print(table(outcomes, kills))
    else:
        figures = summary(outcomes, kills)
        print(json.dumps({**figures, "outcomes": [o.as_dict() for o in outcomes]}, indent=1))
    return 0 if all(outcome.after for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
