"""Parts of the command line that mqaudit's commands share: the connection to running brokers, from
options and environment, and the end without a result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from raftmq.spark.options import Connection

EXIT_UNUSABLE = 2  # nothing could be judged
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

    addresses = environment.get("RAFTMQ_BROKER_ADDRESS_MAP", "")
    return replace(
        connection_of({"namesrv": namesrv, "brokerAddressMap": addresses}),
        credentials=credentials_of_environment(environment),
        tls=client_tls_of(environment),
    )


def not_installed(missing: ImportError) -> NoReturn:
    give_up(f"{missing.name} is not installed: pip install 'raftmq[audit]'")


def give_up(reason: str) -> NoReturn:
    print_error(reason)
    sys.exit(EXIT_UNUSABLE)


def print_error(message: str) -> None:
    from raftmq.ops.console import complain

    complain(f"mqaudit: {message}")
