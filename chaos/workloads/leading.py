"""Finds a broker group's leader, for workloads that send single requests."""

from __future__ import annotations

from raftmq.client import Admin, BrokerRefused
from raftmq.remoting.codes import ResponseCode


async def leader_of(admin: Admin, broker: str) -> str:
    """Return the address of the group's brokerId 0. Raises ClientError if there is none."""
    known = (await admin.cluster_info()).brokers.get(broker)
    address = known.addresses.get(0) if known is not None else None
    if address is None:
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        raise BrokerRefused(code, f"nobody leads {broker}", "name server")
    return address
