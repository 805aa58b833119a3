"""Keeps what a process writes from others on its machine, and says which secrets they can read."""

from __future__ import annotations

import logging
import os
import stat

log = logging.getLogger("raftmq.ops.permissions")

NOT_FOR_OTHERS = 0o027  # what is written here may be read by the group, and by nobody else


def keep_from_others() -> None:
    """From now on whatever this process creates, others can neither read nor write."""
    os.umask(os.umask(0o077) | NOT_FOR_OTHERS)


def warn_if_others_read(path: str, what: str) -> bool:
    """Log that a file with secrets, or a directory with messages, is open to everybody on this
    machine; whether it is. One that is not there is not."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False  # whoever needs it says what is wrong with it
    needed = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH | stat.S_IWOTH
    if not mode & needed:
        return False
    log.warning("open_to_others path=%s mode=%04o: %s; chmod o-rwx it", path, mode & 0o7777, what)
    return True
