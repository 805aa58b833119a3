"""Ask a name server for the nonce that a connection's signatures are made with. Shell."""

from __future__ import annotations

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import ClientConnection
from raftmq.remoting.registrationproof import RegistrationSigner, nonce_of


async def ask_signer(
    connection: ClientConnection, key: bytes, timeout_ms: float
) -> RegistrationSigner | None:
    """What signs requests of this connection; None: the name server has no key, or does not know
    of such. Raises RemotingError."""
    ask = RemotingCommand.request(RequestCode.REGISTRATION_NONCE)
    nonce = nonce_of(await connection.invoke(ask, timeout_ms))
    return None if nonce is None else RegistrationSigner(key, nonce)
