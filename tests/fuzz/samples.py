"""Recorded traffic: what our clients, tools and brokers said to each other, one sample a line.

`recorded.jsonl` is made by `python -m tests.fuzz.record`: a small cluster runs behind taps, clients
do what clients do, and of each kind of message some are kept. It is a file, not made at each
run, so that a seed says for good what is sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.jsonl")
SAMPLE_BYTES_MAX = 16_384
PER_KIND = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """`port`: where it was said, of PORTS; `kind`: messages of one kind are alike."""

    port: str
    kind: str
    data: bytes


@cache
def load() -> dict[str, list[Sample]]:
    """All samples by port."""
    result: dict[str, list[Sample]] = {}
    for line in RECORDED.read_text(encoding="ascii").splitlines():
        fields = json.loads(line)
        sample = Sample(fields["port"], fields["kind"], base64.b64decode(fields["data"]))
        result.setdefault(sample.port, []).append(sample)
    return result


def save(samples: Iterable[Sample]) -> int:
    """Keep some of each kind; returns how many."""
    kept: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        of_kind = kept.setdefault((sample.port, sample.kind), [])
        known = {len(one.data) for one in of_kind}
        fits = len(sample.data) <= SAMPLE_BYTES_MAX and len(sample.data) not in known
        if fits and len(of_kind) < PER_KIND:
            of_kind.append(sample)
    lines = [
        json.dumps(
            {"port": s.port, "kind": s.kind, "data": base64.b64encode(s.data).decode("ascii")}
        )
        for key in sorted(kept)
        for s in kept[key]
    ]
    RECORDED.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    return len(lines)
