"""Two of three stores are set back together, and go on: the group has two histories. A rescue
chooses one, and keeps the other."""

import asyncio
import shutil
from contextlib import ExitStack

import orjson
import pytest
from click.testing import CliRunner

from raftmq.broker.cli import main
from raftmq.broker.rescue.history import read
from raftmq.dledger.node.rollback_detection import NOTES_FILE
from raftmq.store.disk import OsDisk
from raftmq.store.store_lock import lock_store
from tests.broker.backup.test_backup import SMALL, create_topic, fill, stored
from tests.broker.cluster import Group
from tests.waiting import until


def rescue(*arguments, status=0):
    result = CliRunner().invoke(main, ["rescue", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def log_of(store):
    return {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """Stores of which n1 and n2 were set back to before the second half, and went on without n0;
    what the three acknowledged, and what the two did then."""
    root = tmp_path_factory.mktemp("forked")
    return root / "group", *asyncio.run(forking(root))


async def forking(root):
    async with Group(root / "group", 3, **SMALL) as group:
        await create_topic(group)
        await until(lambda: all(b.engine.identity.group_id for b in group.brokers.values()))
        sent = await fill(group, 8)
        back = group.names[1:]
        for name in back:
            await group.stop(name)
            await asyncio.to_thread(shutil.copytree, group.root / name, root / name)
            await group.start(name)
        sent |= await fill(group, 8)
        for name in group.names:
            await group.stop(name)
        for name in back:
            shutil.rmtree(group.root / name)
            (root / name).rename(group.root / name)
            (group.root / name / "raft" / NOTES_FILE).unlink(missing_ok=True)
        for name in back:
            await group.start(name)
        theirs = await fill(group, 4)
        for name in back:
            await group.stop(name)
    return sent, theirs


async def test_group_continues_with_the_kept_store_after_a_rescue(tmp_path, forked):
    """n2's machine is rescued later: until then its history, which is of a later term, stays
    out."""
    root, sent, _ = forked
    shutil.copytree(root, tmp_path / "group")
    group = Group(tmp_path / "group", 3, **SMALL)
    complete, *back = stores = [group.root / name for name in group.names]
    before = {store: log_of(store) for store in stores}
    shown = rescue(*stores)
    assert "fork        n0 and n1: alike up to frame" in shown
    assert "compare     n1 and n2: alike up to frame" in shown
    assert "keep n0: lacks frames" in shown and "keep n1: lacks frames" in shown
    with lock_held(complete):
        rescue(*stores, "--keep", complete, "--execute", status=75)
    rescue(*stores, "--keep", complete)  # shows only
    refused = rescue(*stores, "--keep", complete, "--keep", back[0], "--execute", status=2)
    assert "cannot both be kept" in refused
    missing = rescue(*stores, tmp_path / "away", "--keep", complete, "--execute", status=2)
    assert "nothing is done while a store cannot be read" in missing
    assert {store: log_of(store) for store in stores} == before
    # The store of another machine is compared by its history.
    behind, left = back
    (tmp_path / "n2.json").write_text(rescue(left, "--json"))
    done = rescue(complete, behind, tmp_path / "n2.json", "--keep", complete, "--execute")
    assert "fork        n0 and n2" in done
    group_id = done.split("group id    ")[-1].strip()
    async with group:
        brokers = group.brokers
        await until(lambda: brokers["n2"].engine.identity.foreign(0))
        await asyncio.sleep(1.5)  # twice the longest election time-out
        assert not any(broker.engine.core.leader_ready for broker in brokers.values())
        await group.stop("n2")
        rescue(left, "--join", group_id, "--execute")
        await group.start("n2")
        assert (await stored(group)).items() >= sent.items()
        more = await fill(group, 4)
        await until(lambda: all(b.state.group.value.hex() == group_id for b in brokers.values()))
        assert (await stored(group)).items() >= (sent | more).items()
    for store, data in before.items():
        if store is complete:
            assert log_of(store)[min(data)][:100_000] == data[min(data)][:100_000]
        else:
            (aside,) = store.glob("aside-*")
            assert log_of(aside) == data
            with ExitStack() as held:
                assert read(str(aside), held).node == store.name


async def test_group_continues_with_two_equal_stores_without_the_third(tmp_path, forked):
    root, _, theirs = forked
    shutil.copytree(root, tmp_path / "group")
    group = Group(tmp_path / "group", 3, **SMALL)
    complete, *back = stores = [group.root / name for name in group.names]
    before = log_of(complete), log_of(back[0])
    rescue(*stores, *(word for store in back for word in ("--keep", store)), "--execute")
    (aside,) = complete.glob("aside-*")
    assert (log_of(aside), log_of(back[0])) == before
    async with group:
        assert (await stored(group)).items() >= theirs.items()
        await until(lambda: group.brokers["n0"].engine.core.recovered)


@pytest.mark.parametrize("operations", range(0, 12, 3))
def test_interrupted_rescue_is_completed(tmp_path, operations, monkeypatch):
    from raftmq.broker.rescue import keep

    store = tmp_path / "n1"
    (store / "commitlog").mkdir(parents=True)
    for name in ("commitlog/0", "a", "b", "identity", "raft.old"):
        (store / name).write_text(name)
    left = [operations]

    class Dies(OsDisk):
        def rename(self, source, target):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(5, "dies")
            super().rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(keep, "OsDisk", Dies)
        try:
            keep.carry_out([], [str(store)], b"g" * 16, "1")
        except OSError:
            assert (store / "restoring").read_text() == "aside-1"
    keep.carry_out([], [str(store)], b"g" * 16, "2")
    assert not (store / "restoring").exists()
    result = {
        str(path.relative_to(aside)): path.read_text()
        for aside in store.glob("aside-*")
        for path in aside.rglob("*")
        if path.is_file() and path.name != "group"
    }
    assert result == {name: name for name in ("commitlog/0", "a", "b", "identity", "raft.old")}
    assert orjson.dumps(sorted(path.name for path in store.iterdir() if path.is_file())) == b"[]"


def lock_held(store):
    held = ExitStack()
    held.callback(lock_store(str(store), "mqbroker n0 of group-a").release)
    return held
