"""Transient errors of the operating system, no disk space, descriptors or memory.

Such a failure has not harmed earlier data, so the call may be repeated. Callers keep the data and
retry; it does not count as written until then. The exception is fdatasync of data that is not
rewritten; its failure is final, because the kernel may have dropped the pages.
"""

from __future__ import annotations

from errno import EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC

NO_DESCRIPTOR = frozenset({EMFILE, ENFILE})  # of this process, of the machine
NO_RESOURCE = NO_DESCRIPTOR | {ENOMEM}  # these are unrelated to the disk
SHORTAGES = NO_RESOURCE | {ENOSPC, EDQUOT}

RETRY_S = 0.5  # between two attempts; soon for an operator, and rare enough to cost nothing


def passes(error: BaseException | None) -> bool:
    """Return whether `error` is a shortage, after which the call may be repeated."""
    return isinstance(error, OSError) and error.errno in SHORTAGES
