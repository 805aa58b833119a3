"""A node is a script that starts processes, which are counted and killed together."""

from pathlib import Path

from bench.peers.rabbitmq import _kill, _process, members
from tests.waiting import until


async def alive(session: int, count: int) -> None:
    await until(lambda: len(members([session])) == count)


async def test_rabbitmq_node_is_a_session(tmp_path: Path) -> None:
    script = ["/bin/sh", "-c", "touch left; sleep 1000 & sleep 1000"]
    async with _process(script, {"PATH": "/usr/bin:/bin"}, tmp_path) as first:
        async with _process(script, {"PATH": "/usr/bin:/bin"}, tmp_path) as second:
            await alive(first.pid, 3)
            await alive(second.pid, 3)
            assert len(members([first.pid, second.pid])) == 6
            _kill([first.pid])
            await first.wait()
            await alive(first.pid, 0)
            await alive(second.pid, 3)
        await alive(second.pid, 0)
    assert (tmp_path / "left").exists()
