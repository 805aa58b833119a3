"""Checks which requests are signed with the cluster's key: the name server's side of signed
registrations.

Each connection has one challenge, which goes with it. Without keys no challenge is given and
signatures count for nothing. With keys, a wrong signature refuses the request instead of letting it
count as unsigned: its sender should learn that its key differs.
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
    """The challenges and keys of one name server."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = tuple(keys)
        self._challenges: dict[Connection, RegistrationChallenge] = {}
        self.wrong_count = 0

    def nonce(self, connection: Connection) -> str:
        """Return a new nonce for this connection, replacing an earlier one; "" without keys."""
        if not self._keys:
            return ""
        challenge = RegistrationChallenge(secrets.token_bytes(NONCE_BYTES))
        self._challenges[connection] = challenge
        return challenge.nonce.hex()

    def is_proven(self, connection: Connection, request: RemotingCommand) -> bool:
        """Return whether it is signed. Raises RegistrationRefused if it is signed wrong."""
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
