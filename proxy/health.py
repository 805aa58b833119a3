"""`mqproxy health`: exit status 0 if a proxy can serve, or 1 with the reason.

It asks the HTTP API, which needs no token for that and starts once gRPC's port is open. Containers
run it every few seconds as `python -m raftmq.proxy.health`, so it imports little.
"""

from __future__ import annotations

import contextlib
import os
import sys

import click

PORT = 8081  # grpcServerPort's default
PORT_VARIABLE, HTTP_VARIABLE = "RAFTMQ_GRPC_SERVER_PORT", "RAFTMQ_HTTP_PORT"
HTTP_ABOVE = 4


@click.command("health")
@click.option("--address", metavar="HOST:PORT", help="Its HTTP API. [this machine's httpPort]")
@click.option("--timeout", "timeout_s", default=3.0, show_default=True, help="Seconds.")
def health(address: str | None, timeout_s: float) -> None:
    """Say whether a proxy can serve; exit status 1 if not.

    Where its HTTP API takes TLS only, the variable RAFTMQ_TLS_CONFIG_FILE names the file that says
    how.
    """
    import http.client

    from raftmq.remoting.tlsfile import context_of

    http_port = os.environ.get(HTTP_VARIABLE) or str(
        int(os.environ.get(PORT_VARIABLE, PORT)) + HTTP_ABOVE
    )
    address = address or f"127.0.0.1:{http_port}"
    try:
        context = context_of(os.environ)
        connection = (
            http.client.HTTPConnection(address, timeout=timeout_s)
            if context is None
            else http.client.HTTPSConnection(address, timeout=timeout_s, context=context)
        )
        with contextlib.closing(connection):
            connection.request("GET", "/health/ready")
            answer = connection.getresponse()
            reason = "" if answer.status == http.HTTPStatus.OK else answer.read(1_000).decode()
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
    click.echo(f"{address}: {reason or 'healthy'}")
    sys.exit(1 if reason else 0)


if __name__ == "__main__":
    health()
