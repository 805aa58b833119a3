"""The harness's credentials: RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY, for clusters with access
control (an admin's, because the harness makes topics, members and transfers).

This is the edge of the process: the one place here that reads them.
"""

from __future__ import annotations

import os

from raftmq.client.instance import InstanceConfig
from raftmq.remoting.acl.signature import Credentials, credentials_of_environment


def own_credentials() -> Credentials | None:
    """Return the credentials; None without any. Raises ValueError if only half of them is set."""
    return credentials_of_environment(os.environ)


def signing() -> InstanceConfig:
    """Return the configuration for every client that the harness makes."""
    return InstanceConfig(credentials=own_credentials())
