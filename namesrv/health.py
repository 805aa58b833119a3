"""`mqnamesrv health`, with exit status 0 for a name server that answers.

Warnings are printed and do not change the exit status. Containers run `python -m
raftmq.namesrv.health` every few seconds, so it imports little.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from raftmq.ops import health_exit as verdict

if TYPE_CHECKING:
    from raftmq.remoting.command import RemotingCommand

PORT = "9876"  # listenPort's default
PORT_VARIABLE = "RAFTMQ_LISTEN_PORT"


@click.command("health")
@click.option("--address", metavar="HOST:PORT", help="The name server. [this machine's listenPort]")
@click.option("--timeout", "timeout_s", default=3.0, show_default=True, help="Seconds.")
def health(address: str | None, timeout_s: float) -> None:
    """Check whether a name server answers; exit status 1 if it does not.

    For a name server that takes TLS only, the variable RAFTMQ_TLS_CONFIG_FILE names the client's
    TLS configuration file.
    """
    from raftmq.remoting.acl.signature import credentials_of_environment
    from raftmq.remoting.blocking_request import WARNINGS, complaint
    from raftmq.remoting.codes import RequestCode
    from raftmq.remoting.tls_file import context_of

    try:
        credentials = credentials_of_environment(os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    config = None if address else verdict.configured("raftmq.namesrv.config")
    port = config.port if config else os.environ.get(PORT_VARIABLE, PORT)
    address = address or f"127.0.0.1:{port}"
    warnings: list[str] = []

    def judge(answer: RemotingCommand) -> str:
        warnings.extend((answer.ext or {}).get(WARNINGS, "").splitlines())
        return ""

    reason = complaint(
        address,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        timeout_s,
        judge,
        context=lambda: context_of(os.environ),
        credentials=credentials,
    )
    verdict.end(address, reason, warnings)


if __name__ == "__main__":
    health()
