"""Whose requests the harness's are: RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY, where a cluster has
access control (an admin's: it makes topics, members and transfers). The edge of the process: the
one place here that reads them."""

from __future__ import annotations

import os

from raftmq.client.instance import InstanceConfig
from raftmq.remoting.acl.signature import Credentials, credentials_of_environment


def own_credentials() -> Credentials | None:
    """Raises ValueError for half of them."""
    return credentials_of_environment(os.environ)


def signing() -> InstanceConfig:
    """For every client that the harness makes."""
    return InstanceConfig(credentials=own_credentials())
