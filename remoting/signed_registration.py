"""Asks a name server for the nonce with which a connection's signatures are made. Shell."""

from __future__ import annotations

from .codes import RequestCode
from .command import RemotingCommand
from .connection import Connection
from .registration_proof import RegistrationSigner, nonce_of


async def ask_signer(
    connection: Connection, key: bytes, timeout_ms: float
) -> RegistrationSigner | None:
    """Return the signer for requests of this connection; None if the name server has no key or does
    not support signatures. Raises RemotingError."""
    ask = RemotingCommand.request(RequestCode.REGISTRATION_NONCE)
    nonce = nonce_of(await connection.invoke(ask, timeout_ms))
    return None if nonce is None else RegistrationSigner(key, nonce)
