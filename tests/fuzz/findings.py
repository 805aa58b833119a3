"""Earlier findings, kept byte for byte: `findings.jsonl`, replayed by test_fuzz.py.

A seed's bytes change with the generator, so a finding is not kept as a seed. `python -m tests.fuzz
… --bisect --keep WORDS` adds a line.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.plan import Step

KEPT = Path(__file__).with_name("findings.jsonl")


def load() -> dict[str, list[Step]]:
    """All kept steps by port."""
    result: dict[str, list[Step]] = {}
    for line in KEPT.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        frames = tuple(base64.b64decode(frame) for frame in fields["frames"])
        result.setdefault(fields["port"], []).append(Step(fields["what"], frames, fields["seed"]))
    return result


def keep(port: str, steps: Sequence[Step], why: str) -> None:
    """Add the steps, with what was wrong."""
    with KEPT.open("a", encoding="utf-8") as file:
        for step in steps:
            frames = [base64.b64encode(frame).decode("ascii") for frame in step.frames]
            fields = {"port": port, "why": why, "what": step.what, "seed": step.seed,
                      "frames": frames}  # fmt: skip
            file.write(json.dumps(fields) + "\n")
