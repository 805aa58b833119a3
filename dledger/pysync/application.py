"""The application interface of this engine: dledger's `Application`, and a way to roll back."""

from __future__ import annotations

from typing import Protocol

from raftmq.dledger.applier import Application


class RevocableApplication(Application, Protocol):
    """An application whose engine may lose frames that were committed and applied."""

    def roll_back(self, position: int) -> bool:
        """Forget the messages of applied frames above `position`, where the log ends now. They, or
        others, will be applied anew. Return False if that is not possible now; ask again."""
        ...
