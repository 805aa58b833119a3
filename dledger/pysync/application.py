"""What this engine asks of the replicated state besides dledger's `Application`: to take back."""

from __future__ import annotations

from typing import Protocol

from raftmq.dledger.applier import Application


class RevocableApplication(Application, Protocol):
    """An application whose engine may lose frames that were committed and applied."""

    def roll_back(self, position: int) -> bool:
        """The log ends at `position` now, below frames that were applied: forget their messages.
        They, or others, will be applied anew. False: not possible now, ask again."""
        ...
