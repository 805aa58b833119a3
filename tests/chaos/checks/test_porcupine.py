"""Our search for an order and porcupine's agree on thousands of random histories."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from raftmq.chaos.checks.linearizability import Operation, linearizable
from raftmq.chaos.checks.verdict import Verdict
from tests.chaos.checks.orders import follow, random_history
from tests.interop.toolchain import TOOLCHAINS, ToolMissing, build_go, made, toolchains

MODULE = Path(__file__).with_name("porcupine")
INPUTS = [MODULE / name for name in ("go.mod", "go.sum", "main.go")]
HISTORIES = 6_000
NEVER = 1_000_000  # later than everything

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def judge() -> Path:
    """Return the command of MODULE."""
    try:
        toolchains()
    except ToolMissing as missing:
        pytest.skip(f"there is no Go to be had: {missing}")
    return made("porcupine", [*INPUTS, TOOLCHAINS], _build) / "judge"


def _build(directory: Path) -> None:
    build_go(directory / "judge", ".", MODULE)


def as_json(history: Sequence[Operation]) -> str:
    reported = []
    for one in history:
        answered = one.returned_ns is not None
        action = [
            (-1 if answered else state) if after is None else after
            for state, after in enumerate(one.action)
        ]
        returned = one.returned_ns if answered else NEVER
        reported.append({"Call": one.called_ns, "Return": returned, "Action": action})
    return json.dumps(reported)


def test_linearizability_agrees_with_porcupine(judge: Path) -> None:
    histories = []
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        histories.append(random_history(rng, rng.randrange(1, 25), rng.randrange(2, 6)))
    lines = "\n".join(map(as_json, histories))
    result = subprocess.run([judge], input=lines, capture_output=True, text=True, check=True)
    theirs = result.stdout.split()
    assert len(theirs) == HISTORIES
    verdicts: Counter[str] = Counter(theirs)
    assert min(verdicts["true"], verdicts["false"]) > HISTORIES / 10, verdicts
    for seed, (history, verdict) in enumerate(zip(histories, theirs, strict=True)):
        ours = linearizable(history, follow, 0)
        assert ours is (Verdict.PASS if verdict == "true" else Verdict.FAIL), (seed, history)
