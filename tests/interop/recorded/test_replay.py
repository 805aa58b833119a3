"""A broker answers recorded sessions of foreign clients byte for byte as it did."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.interop.recorded.replay import first_difference
from tests.interop.recorded.session import CLIENTS, Session, path_of


@pytest.mark.parametrize("client", CLIENTS)
def test_every_answer_is_the_recorded_one(client: str, tmp_path: Path) -> None:
    check(client, tmp_path, uvloop.new_event_loop)


def test_another_loop_changes_no_answer(tmp_path: Path) -> None:
    check("node", tmp_path, asyncio.new_event_loop)


def check(client: str, root: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    session = Session.load(path_of(client))
    with asyncio.Runner(loop_factory=loop) as runner:
        difference = runner.run(first_difference(session, root))
    if difference:
        pytest.fail(difference, pytrace=False)
