"""The exceptions that the client raises. All of them are `ClientError`s."""

from raftmq.client.errors import *  # noqa: F403
from raftmq.client.errors import __all__ as __all__
