"""`python -m tests.interop.figures`: the foreign clients' scenarios, and what they cost, as JSON.

Each wave has one kill -9 of the leader of a three-broker group. `--apache` runs the same against an
unharmed Apache broker instead: what passes there must pass here.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.apache import ApacheBroker
from tests.interop.matrix import drivers, pairs, wave
from tests.interop.runs import PACE_S, Outcome
from tests.interop.scenarios import TABLE
from tests.interop.targets import UP_S, ApacheTarget, RaftGroup, Target, ask, name_server
from tests.interop.toolchain import CLIENTS

APACHE = {
    "transactionCheckInterval": "2000",
    "transactionTimeOut": "2000",
    "enablePropertyFilter": "true",
    "waitTimeMillsInSendQueue": "10000",  # not 200: on a busy machine sends wait that long
    "timerWheelEnable": "true",  # its reset of offsets asks for it
}
OURS = {
    # A killed leader is missed when its connections close. Silence counts late: on a busy machine a
    # leader that is alive would be deposed, and a figure would not be one of the kill alone.
    "electionTimeoutMinMs": "3000",
    "electionTimeoutMaxMs": "5000",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "2000",
    "transactionTimeOut": "2000",
}
NAMES = [row.name for row in TABLE]
COUNTS = ("acknowledged", "unknown", "lost", "redelivered", "stored_twice", "offsets_lost")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", nargs="*", default=list(CLIENTS), choices=list(CLIENTS))
    parser.add_argument("--scenarios", nargs="*", default=[], choices=NAMES)
    parser.add_argument("--wave", type=int, default=0, help="so many with one kill (0: a row)")
    parser.add_argument("--apache", action="store_true", help="against an Apache broker, unharmed")
    return parser.parse_args()


@contextmanager
def raft_group(directory: Path) -> Iterator[Target]:
    group = RaftGroup(directory / "group", **OURS)
    try:
        yield group
    finally:
        group.down()


@contextmanager
def apache(directory: Path) -> Iterator[Target]:
    with name_server() as namesrv:
        broker = ApacheBroker(directory / "apache", namesrv, brokerName="apache-a", **APACHE)
        broker.start()
        try:
            wait_template(namesrv)
            yield ApacheTarget(broker, namesrv)
        finally:
            broker.kill()


def wait_template(namesrv: str) -> None:
    """Until topics may be made by sending: after one that the broker registers."""
    deadline = time.monotonic() + UP_S
    while "TBW102" not in ask(namesrv, lambda admin: admin.topics()):
        assert time.monotonic() < deadline, "the broker does not register"
        time.sleep(PACE_S)


def summary(outcomes: list[Outcome], kills: int) -> dict[str, object]:
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


def main() -> int:
    options = arguments()
    which = pairs(options.clients, options.scenarios)
    if options.wave:
        size = options.wave
        waves = [which[first : first + size] for first in range(0, len(which), size)]
    else:
        rows = [[pair for pair in which if pair[0] is row] for row in TABLE]
        waves = [row for row in rows if row]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        with drivers(options.clients, directory) as started:
            with (apache if options.apache else raft_group)(directory) as target:
                for number, pairs_of in enumerate(waves):
                    began = time.monotonic()
                    outcomes += wave(target, started, pairs_of, str(number), told)
                    spent = time.monotonic() - began
                    print(f"wave {number}: {spent:.1f} s", file=sys.stderr, flush=True)
    figures = summary(outcomes, 0 if options.apache else len(waves))
    print(json.dumps({**figures, "outcomes": [o.as_dict() for o in outcomes]}, indent=1))
    return 0 if all(outcome.after for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
