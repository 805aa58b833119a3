"""`mqproxy health`, with exit status 0 for a healthy proxy.

The command requests the readiness of the HTTP API, which needs no token and starts after the gRPC
port. Warnings are printed and do not change the exit status. Containers run `python -m
raftmq.proxy.health` every few seconds, so it imports little.
"""

from __future__ import annotations

import contextlib
import os

import click

from raftmq.ops import health_exit as verdict

PORT = 8081  # grpcServerPort's default
PORT_VARIABLE, HTTP_VARIABLE = "RAFTMQ_GRPC_SERVER_PORT", "RAFTMQ_HTTP_PORT"
HTTP_ABOVE = 4
ANSWER_BYTES_MAX = 64 * 1024
REASON_BYTES_MAX = 1_000


@click.command("health")
@click.option("--address", metavar="HOST:PORT", help="Its HTTP API. [this machine's httpPort]")
@click.option("--timeout", "timeout_s", default=3.0, show_default=True, help="Seconds.")
def health(address: str | None, timeout_s: float) -> None:
    """Check whether a proxy can serve; exit status 1 if it cannot.

    For a proxy whose HTTP API takes TLS only, the variable RAFTMQ_TLS_CONFIG_FILE names the
    client's TLS configuration file.
    """
    import http.client

    from raftmq.remoting.errors import RemotingError
    from raftmq.remoting.fast_json import loads_object
    from raftmq.remoting.tls_file import context_of

    warnings: list[str] = []
    config = None if address else verdict.configured("raftmq.proxy.config")
    if config is not None:
        from raftmq.ops.ports import http_port as of_options

        http_port = str(of_options(config.http_port, config.port))
    else:
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
            body, reason = answer.read(ANSWER_BYTES_MAX), ""
            if answer.status == http.HTTPStatus.OK:
                warnings = loads_object(body).get("warnings", [])
            else:
                reason = body[:REASON_BYTES_MAX].decode()
    except (OSError, ValueError, http.client.HTTPException, RemotingError) as error:
        reason = str(error) or type(error).__name__
    verdict.end(address, reason, warnings)


if __name__ == "__main__":
    health()
