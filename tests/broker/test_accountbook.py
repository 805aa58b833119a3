"""A classic broker's accounts: one change of the file at a time."""

import asyncio
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.broker.accountbook import AccountBook
from raftmq.remoting.acl import account_from_config
from raftmq.remoting.acl.account_file import AccountFile, parse_accounts
from tests.present import present
from tests.waiting import until

PLAIN_ACL = """
accounts:
  - {accessKey: administrator, secretKey: sesame-open-1, admin: true}
"""


async def test_cancelled_account_change_ends_before_the_next_starts(tmp_path, monkeypatch):
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    file = AccountFile(str(path))
    file.read()
    config = SimpleNamespace(is_classic=True, acl_file_wins=False)
    context: Any = SimpleNamespace(config=config, state=SimpleNamespace(acl=None))
    book = AccountBook(context, file)
    account = account_from_config({"accessKey": "new-account", "secretKey": "sesame-open-2"})
    syncs, go_on = [], threading.Event()
    sync = os.fsync

    def slow_sync(number):
        sync(number)
        syncs.append(number)
        if len(syncs) == 2:  # the file is in its place, and not yet in force
            assert go_on.wait(60)

    monkeypatch.setattr(os, "fsync", slow_sync)
    put = asyncio.ensure_future(book.change(lambda found: found.with_account(account, 1)))
    await until(lambda: len(syncs) == 2)
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    (chore,) = book.chores()
    delete = asyncio.ensure_future(book.change(lambda found: found.without("new-account", 2)))
    look = asyncio.ensure_future(present(chore.run()))
    done, _ = await asyncio.wait({delete, look}, timeout=0.2)
    go_on.set()
    assert not done
    await delete
    await look
    assert set(book.current().by_key) == {"administrator"}
    assert parse_accounts(path.read_text()) == book.current()
