"""The harness's credentials (RAFTMQ_ACCESS_KEY, RAFTMQ_SECRET_KEY) in access-controlled clusters.
They must be an admin's, because the harness creates topics, members and transfers. No other module
of the harness reads these variables."""

from __future__ import annotations

import os

from raftmq.client.instance import InstanceConfig
from raftmq.remoting.acl.signature import Credentials, credentials_of_environment

from .clusterfile import SettingsError


def who_refuses(name: str, refusal: str) -> str:
    """Return the error message about a broker that rejects status requests."""
    account = "the account is an admin's, from RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY"
    return f"{name} does not tell: {refusal} ({account})"


def own_credentials() -> Credentials | None:
    """Return the credentials, or None. Raises SettingsError if only half is set."""
    try:
        return credentials_of_environment(os.environ)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def signing() -> InstanceConfig:
    """Return the configuration for every client that the harness makes."""
    return InstanceConfig(credentials=own_credentials())
