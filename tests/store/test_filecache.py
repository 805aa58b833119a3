from pathlib import Path

from raftmq.store.disk import OsDisk
from raftmq.store.filecache import FileCache


def test_file_cache_keeps_the_latest_used(tmp_path: Path) -> None:
    cache = FileCache(OsDisk(str(tmp_path)), 2)
    first = cache.get("a")
    cache.get("b")
    assert cache.get("a") is first
    cache.get("c")  # b goes
    assert cache.get("a") is first
    cache.forget("a")
    cache.forget("nothing")
    assert len(cache) == 1
    cache.close()
    assert len(cache) == 0
