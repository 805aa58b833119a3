import errno

import pytest

from raftmq.store.errors import SyncFailed
from raftmq.store.transient_errors import passes


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "no room"), True),
        (OSError(errno.EDQUOT, "no room for this user"), True),
        (OSError(errno.EMFILE, "no descriptor"), True),
        (OSError(errno.ENFILE, "none in the machine"), True),
        (OSError(errno.ENOMEM, "no memory"), True),
        (OSError(errno.EIO, "the disk"), False),
        (OSError(errno.EROFS, "read-only"), False),
        (SyncFailed("whatever it was"), False),
        (None, False),
    ],
)
def test_transient_disk_errors(error: BaseException | None, expected: bool) -> None:
    assert passes(error) is expected
