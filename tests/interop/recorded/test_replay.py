"""A broker answers recorded sessions of foreign clients byte for byte as it did."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from tests.interop.recorded.replay import first_difference
from tests.interop.recorded.session import CLIENTS, Session, path_of
from tests.steadyloop import SteadyLoop

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.mark.parametrize("client", CLIENTS)
def test_replayed_session_gets_the_recorded_answers(client: str, tmp_path: Path) -> None:
    difference = difference_of(Session.load(path_of(client)), tmp_path, SteadyLoop)
    if difference:
        pytest.fail(difference, pytrace=False)


def test_replay_on_uvloop_gets_the_same_answers(tmp_path: Path) -> None:
    session = Session.load(path_of("node"))
    assert not difference_of(session, tmp_path, uvloop.new_event_loop)


def test_replay_detects_one_changed_byte(tmp_path: Path) -> None:
    session = Session.load(path_of("node"))
    number, step = next((n, step) for n, step in enumerate(session.steps) if step.answers)
    (of, frame), *others = step.answers
    changed = replace(step, answers=((of, frame[:-1] + b"?"), *others))
    short = replace(session, steps=[*session.steps[:number], changed])
    assert difference_of(short, tmp_path, SteadyLoop).startswith(f"step {number},")


def difference_of(session: Session, root: Path, loop: Loop) -> str:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(first_difference(session, root))
