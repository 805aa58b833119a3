"""The connection to running brokers, from the options and the environment of a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from raftmq.spark.options import Connection

T = TypeVar("T", bound=Callable[..., Any])


def connection_options(command: T) -> T:
    """Give a command --namesrv and --context."""
    for option in (
        click.option(
            "--context",
            metavar="NAME",
            help="Take name servers, account and TLS settings from a saved context (mqadmin "
            "context).",
        ),
        click.option(
            "--namesrv",
            metavar="HOST:PORT",
            help="The name servers. The account is that of RAFTMQ_ACCESS_KEY and "
            "RAFTMQ_SECRET_KEY.",
        ),
    ):
        command = option(command)
    return command


def environment_of(context: str | None) -> Mapping[str, str]:
    """Return the environment with a saved context's variables. Raises UsageError."""
    if context is None:
        return os.environ
    from raftmq.remoting.contexts import ContextError, resolve

    try:
        return resolve(os.environ, context)
    except ContextError as error:
        raise click.UsageError(str(error)) from None


def connected(namesrv: str | None, context: str | None) -> Connection:
    """Return the connection that `connection_options` describe. Raises UsageError, ValueError."""
    environment = environment_of(context)
    servers = namesrv or (environment.get("NAMESRV_ADDR") if context is not None else None)
    if not servers:
        raise click.UsageError("Name running brokers (--namesrv, --context).")
    return connection_to(servers, environment)


def connection_to(namesrv: str, environment: Mapping[str, str]) -> Connection:
    # Imported here, because a usage error needs none of this.
    from raftmq.remoting.acl.signature import credentials_of_environment
    from raftmq.remoting.tls_file import client_tls_of
    from raftmq.spark.options import connection_of

    return replace(
        connection_of({"namesrv": namesrv}),
        credentials=credentials_of_environment(environment),
        tls=client_tls_of(environment),
    )
