"""GroupFlusher against a log whose fdatasync ends when the test says so."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.commitlog.group_flusher import FlushMode, GroupFlusher
from raftmq.store.disk import OsDisk, OsFile
from raftmq.store.errors import SyncFailed, TooManyWaiting


class GateDisk(OsDisk):
    """Once `closed`, every sync waits for a permit, or fails with `error`."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.closed = False
        self.begun = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.error: OSError | None = None
        self.running = 0

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        file = GateFile(self._path(path), allocate_bytes)
        file.gate = self
        return file


class GateFile(OsFile):
    gate: GateDisk

    def sync(self) -> None:
        gate = self.gate
        if gate.closed:
            gate.running += 1
            assert gate.running == 1, "two fdatasyncs at once"
            gate.begun.release()
            assert gate.permits.acquire(timeout=120)
            gate.running -= 1
            if gate.error is not None:
                raise gate.error
        super().sync()


class Rig:
    def __init__(self, path: Path, mode: FlushMode, waiting_max: int = 100) -> None:
        self.gate = GateDisk(str(path))
        self.log = CommitLog(self.gate, "commitlog", 4096)
        self.log.open()
        self.log.write(0, b"first")
        ticket = self.log.start_sync()
        assert ticket is not None
        ticket.run()
        self.log.finish_sync(ticket)
        self.gate.closed = True
        self.durable: list[int] = []
        self.errors: list[BaseException] = []
        self.pool = ThreadPoolExecutor(1)
        self.flusher = GroupFlusher(
            self.log,
            self.pool,
            mode,
            interval_ms=1,
            on_durable=self.durable.append,
            on_error=self.errors.append,
            waiting_max=waiting_max,
        )

    def put(self, size: int = 10) -> int:
        self.log.write(self.log.allocate(size), bytes(size))
        return self.log.max_offset

    async def begun(self) -> None:
        """Until the pool is inside an fdatasync."""
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, lambda: self.gate.begun.acquire(timeout=120))


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


async def test_group_commit_syncs_all_waiting_writes_at_once(paths: Path) -> None:
    rig = Rig(paths, FlushMode.SYNC)
    rig.flusher.start()
    first = rig.put()
    waiting = [asyncio.create_task(rig.flusher.wait(first))]
    await rig.begun()
    ends = [rig.put() for _ in range(5)]  # all while the first sync runs
    waiting += [asyncio.create_task(rig.flusher.wait(end)) for end in ends]
    await asyncio.sleep(0)
    rig.gate.permits.release()
    await waiting[0]
    assert rig.durable == [first]
    assert not any(task.done() for task in waiting[1:])
    await rig.begun()
    rig.gate.permits.release()
    await asyncio.gather(*waiting)
    assert rig.durable == [first, ends[-1]]
    assert rig.flusher.syncs == 2
    await rig.flusher.wait(ends[-1])  # durable already: no sync
    rig.flusher.request()
    await rig.flusher.stop()
    assert rig.flusher.syncs == 2
    rig.pool.shutdown()


async def test_async_flush_syncs_periodically(paths: Path) -> None:
    rig = Rig(paths, FlushMode.ASYNC)
    rig.gate.permits.release(100)
    rig.flusher.start()
    end = rig.put()
    rig.flusher.request()
    await rig.flusher.wait(end)
    assert rig.durable == [end]
    end = rig.put()
    await rig.flusher.wait(end)
    assert rig.durable[-1] == end
    await rig.flusher.stop()
    rig.put()
    await asyncio.sleep(0.01)
    assert rig.durable[-1] == end  # stopped
    rig.pool.shutdown()


async def test_failed_group_sync_is_reported_once_and_is_final(paths: Path) -> None:
    rig = Rig(paths, FlushMode.SYNC)
    rig.flusher.start()
    waiting = [asyncio.create_task(rig.flusher.wait(rig.put())) for _ in range(3)]
    rig.gate.error = OSError(5, "broken")
    await rig.begun()
    rig.gate.permits.release()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(r) for r in results] == [SyncFailed] * 3
    assert len(rig.errors) == 1
    rig.gate.error = None
    rig.gate.permits.release(10)
    rig.put()
    rig.flusher.request()  # the disk is well again: still no promise
    with pytest.raises(SyncFailed):
        await rig.flusher.wait(rig.log.max_offset)
    await rig.flusher.stop()
    assert rig.durable == []
    assert len(rig.errors) == 1
    rig.pool.shutdown()


async def test_group_commit_waiters_are_limited(paths: Path) -> None:
    rig = Rig(paths, FlushMode.SYNC, waiting_max=2)
    rig.flusher.start()
    waiting = [asyncio.create_task(rig.flusher.wait(rig.put())) for _ in range(2)]
    await rig.begun()
    with pytest.raises(TooManyWaiting) as caught:
        await rig.flusher.wait(rig.put())
    assert caught.value.retriable
    waiting[0].cancel()
    rig.gate.permits.release(2)
    await asyncio.gather(*waiting, return_exceptions=True)
    await rig.flusher.wait(rig.log.max_offset)
    await rig.flusher.stop()
    rig.pool.shutdown()


async def test_flusher_stop_waits_for_the_sync_and_fails_remaining_waiters(paths: Path) -> None:
    rig = Rig(paths, FlushMode.SYNC)
    rig.flusher.start()
    first = asyncio.create_task(rig.flusher.wait(rig.put()))
    await rig.begun()
    second = asyncio.create_task(rig.flusher.wait(rig.put()))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(rig.flusher.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    rig.gate.permits.release()
    await stopping
    await first
    with pytest.raises(SyncFailed, match="stopped"):
        await second
    rig.pool.shutdown()
