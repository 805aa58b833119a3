"""Protects a process's files from other users, and warns of readable secrets."""

from __future__ import annotations

import logging
import os
import stat

log = logging.getLogger("raftmq.ops.permissions")

NOT_FOR_OTHERS = 0o027  # umask; the group may read, others may not


def keep_from_others() -> None:
    """Set the umask so that others can neither read nor write new files."""
    os.umask(os.umask(0o077) | NOT_FOR_OTHERS)


def warn_if_others_read(path: str, what: str) -> bool:
    """Log a warning if a file with secrets, or a directory with messages, is open to all users of
    this machine; return whether it is. A missing file is not."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False  # the code that needs it reports the problem
    needed = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH | stat.S_IWOTH
    if not mode & needed:
        return False
    log.warning("open_to_others path=%s mode=%04o: %s; chmod o-rwx it", path, mode & 0o7777, what)
    return True
