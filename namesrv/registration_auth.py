"""Checks which requests are signed with the cluster's key: the name server's side of signed
registrations.

Each connection has one challenge, which goes with it. Without keys no challenge is given and
signatures count for nothing. With keys, a wrong signature refuses the request instead of letting it
count as unsigned: its sender should learn that its key differs.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.registration_proof import (
    NONCE_BYTES,
    WRONG_SIGNATURE,
    RegistrationChallenge,
    is_signed,
)

from .routes import RegistrationRefused


class Proofs:
    """The challenges and keys of one name server."""

    def __init__(self, keys: Sequence[bytes] = (), *, signed_only: bool = False) -> None:
        """`signed_only`: registrations without a signature are refused."""
        self._keys = tuple(keys)
        self._signed_only = signed_only
        self._challenges: dict[Connection, RegistrationChallenge] = {}
        self.wrong_count = 0

    def nonce(self, connection: Connection) -> str:
        """Return a new nonce for this connection, replacing an earlier one; "" without keys."""
        if not self._keys:
            return ""
        challenge = RegistrationChallenge(secrets.token_bytes(NONCE_BYTES))
        self._challenges[connection] = challenge
        return challenge.nonce.hex()

    def check_header(self, connection: Connection, request: RemotingCommand) -> None:
        """Refuse a registration from its header, before anything is done with its body. Raises
        RegistrationRefused if it is not signed and has to be, or if its signature cannot be right
        on this connection."""
        if self._signed_only and not is_signed(request):
            raise RegistrationRefused(
                "[SIGNED] only signed registrations are taken (registrationsMustBeSigned)",
                ResponseCode.NO_PERMISSION,
            )
        if self._keys and is_signed(request):
            challenge = self._challenges.get(connection)
            if challenge is None or not challenge.may_prove(request):
                raise self._wrong()

    def may_be_signed(self, request: RemotingCommand) -> bool:
        """Return whether there are keys and it has a signature, right or wrong."""
        return bool(self._keys) and is_signed(request)

    def is_proven(
        self, connection: Connection, request: RemotingCommand, digest: bytes = b""
    ) -> bool:
        """Return whether it is signed. `digest`: SHA-256 of the body, if it is known. Raises
        RegistrationRefused if it is signed wrong."""
        if not self._keys or not is_signed(request):
            return False
        challenge = self._challenges.get(connection)
        if challenge is not None and challenge.proves(self._keys, request, digest):
            return True
        raise self._wrong()

    def _wrong(self) -> RegistrationRefused:
        self.wrong_count += 1
        return RegistrationRefused(
            f"{WRONG_SIGNATURE} not signed with a key of this name server for this connection",
            ResponseCode.NO_PERMISSION,
        )

    def closed(self, connection: Connection) -> None:
        self._challenges.pop(connection, None)
