"""Verifies the signatures of registrations.

Each connection has a challenge of its own. Without keys there are no challenges, and signatures are
ignored. With keys, a wrong signature is rejected rather than treated as missing, so that the sender
notices a different key.
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
    def __init__(self, keys: Sequence[bytes] = (), *, signed_only: bool = False) -> None:
        """`signed_only` rejects registrations without a signature."""
        self._keys = tuple(keys)
        self._signed_only = signed_only
        self._challenges: dict[Connection, RegistrationChallenge] = {}
        self.wrong_count = 0

    def nonce(self, connection: Connection) -> str:
        """Return a new nonce for this connection, or "" without keys."""
        if not self._keys:
            return ""
        challenge = RegistrationChallenge(secrets.token_bytes(NONCE_BYTES))
        self._challenges[connection] = challenge
        return challenge.nonce.hex()

    def check_header(self, connection: Connection, request: RemotingCommand) -> None:
        """Check a registration's header before its body. Raises RegistrationRefused for a missing
        but required signature, and for a signature that cannot be valid on this connection."""
        if self._signed_only and not is_signed(request):
            raise RegistrationRefused(
                "[SIGNED] only signed registrations are taken (registrationsMustBeSigned)",
                ResponseCode.NO_PERMISSION,
            )
        if self._keys and is_signed(request):
            challenge = self._challenges.get(connection)
            if challenge is None or not challenge.is_plausible(request):
                raise self._wrong()

    def may_be_signed(self, request: RemotingCommand) -> bool:
        """Return whether there are keys and a signature, valid or not."""
        return bool(self._keys) and is_signed(request)

    def is_proven(
        self, connection: Connection, request: RemotingCommand, digest: bytes = b""
    ) -> bool:
        """Return whether the signature is valid. `digest` is the body's SHA-256 if known. Raises
        RegistrationRefused for a wrong signature."""
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
