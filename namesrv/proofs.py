"""Which requests were signed with the cluster's key: a name server's side of signed registrations.

One challenge a connection, gone with it. Without keys nobody is given one, and a signature says
nothing; with keys, a signature that is not right refuses the request, rather than let it count as
an unsigned one: its sender should hear that his key is another.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from raftmq.namesrv.routes import RegistrationRefused
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.registrationproof import (
    NONCE_BYTES,
    WRONG_SIGNATURE,
    RegistrationChallenge,
    is_signed,
)


class Proofs:
    """One per name server."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = tuple(keys)
        self._challenges: dict[Connection, RegistrationChallenge] = {}
        self.wrong_count = 0

    def nonce(self, connection: Connection) -> str:
        """A new one for this connection, which takes the place of one that it had; "" without
        keys."""
        if not self._keys:
            return ""
        challenge = RegistrationChallenge(secrets.token_bytes(NONCE_BYTES))
        self._challenges[connection] = challenge
        return challenge.nonce.hex()

    def is_proven(self, connection: Connection, request: RemotingCommand) -> bool:
        """Whether it is signed. Raises RegistrationRefused if it says so and is not."""
        if not self._keys or not is_signed(request):
            return False
        challenge = self._challenges.get(connection)
        if challenge is not None and challenge.proves(self._keys, request):
            return True
        self.wrong_count += 1
        raise RegistrationRefused(
            f"{WRONG_SIGNATURE} not signed with a key of this name server for this connection",
            ResponseCode.NO_PERMISSION,
        )

    def closed(self, connection: Connection) -> None:
        self._challenges.pop(connection, None)
