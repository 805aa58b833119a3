"""The errors of the operating system that pass by themselves: it lacks room, descriptors or memory.

What fails with one of them has not harmed what was written before, so the same call may be made
again. Whoever writes keeps what it has and tries again later; nothing of it counts as written
meanwhile. The exception is the fdatasync of data that is not written anew: it is final whatever the
error, because the kernel may have dropped the pages.
"""

from __future__ import annotations

from errno import EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC

NO_DESCRIPTOR = frozenset({EMFILE, ENFILE})  # of this process, of the machine
NO_RESOURCE = NO_DESCRIPTOR | {ENOMEM}  # these say nothing about the disk
SHORTAGES = NO_RESOURCE | {ENOSPC, EDQUOT}

RETRY_S = 0.5  # between two attempts: soon for an operator, and seldom enough to cost nothing


def passes(error: BaseException | None) -> bool:
    """Return whether `error` is a shortage, after which the same call may be made again."""
    return isinstance(error, OSError) and error.errno in SHORTAGES
