"""`mqadmin context`, which manages saved contexts.

remoting.contexts stores them; it is imported when a sub-command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from raftmq.remoting.contexts import Contexts

USAGE = 2
HIDDEN = "(hidden)"
ASK = "-"  # reads a secret from standard input or a prompt


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts with this prefix; none if they cannot be read."""
    from raftmq.remoting.contexts import ContextError, path_of, read

    try:
        names = read(path_of(os.environ)).by_name
    except ContextError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


NAME = click.argument("name", metavar="NAME", shell_complete=complete_context)
OUTPUT = click.option(
    "-o", "--output", type=click.Choice(("table", "json", "yaml")), default="table",
    help="How to print the answer.",
)  # fmt: skip


@click.group("context")
def context_group() -> None:
    """Save and select contexts, which are named clusters with their accounts.

    \b
      mqadmin context add prod -n '10.0.0.1:9876;10.0.0.2:9876' --accessKey ops --secretKey -
      mqadmin context use prod
      mqadmin topicList                    (of prod)
      mqadmin topicList --context test

    --context wins over environment variables. RAFTMQ_CONTEXT and the default context apply only if
    neither flags nor environment variables name the name servers. Contexts are stored in
    ~/.config/raftmq/contexts.json, which only you may read.
    """


@context_group.command("add")
@click.argument("name", metavar="NAME")
@click.option(
    "-n", "--namesrvAddr", "namesrv", required=True, metavar="HOST:PORT[;…]", help="Name servers."
)
@click.option("--accessKey", "access_key", default="", help="The account.")
@click.option(
    "--secretKey",
    "secret_key",
    default="",
    help="Its secret; -: ask for it, or read it from stdin.",
)
@click.option("--securityToken", "security_token", default="", help="The token, if there is one.")
@click.option(
    "--tlsConfigFile", "tls_file", default="", metavar="FILE",
    type=click.Path(dir_okay=False), help="TLS settings, as Apache's tls.config.file.",
)  # fmt: skip
@click.option(
    "--registrationKeyFile", "registration_file", default="", metavar="FILE",
    type=click.Path(dir_okay=False), help="The key with which brokers sign registrations.",
)  # fmt: skip
@click.option("--use", is_flag=True, help="Use it from now on.")
@click.option("--replace", is_flag=True, help="Replace one of that name.")
def add(
    name: str,
    namesrv: str,
    access_key: str,
    secret_key: str,
    security_token: str,
    tls_file: str,
    registration_file: str,
    use: bool,
    replace: bool,
) -> None:
    """Save a cluster's name servers, and the account to sign with, as NAME."""
    from raftmq.remoting.address import parse_address, parse_address_list
    from raftmq.remoting.contexts import ContextError, check_name
    from raftmq.remoting.errors import ConnectError

    with _context_errors():
        check_name(name)
        try:
            for address in (addresses := parse_address_list(namesrv)):
                parse_address(address)
        except ConnectError as error:
            raise ContextError(f"-n: {error}") from None
        if not addresses:
            raise ContextError("-n: no name server is named")
        if secret_key == ASK:
            secret_key = _ask_secret()
        if bool(access_key) != bool(secret_key):
            raise ContextError("an account needs --accessKey and --secretKey")
        fields = {
            "namesrv": ";".join(addresses),
            "accessKey": access_key,
            "secretKey": secret_key,
            "securityToken": security_token,
            "tlsConfigFile": tls_file and os.path.abspath(tls_file),
            "registrationKeyFile": registration_file and os.path.abspath(registration_file),
        }
        with _changing() as contexts:
            if name in contexts.by_name and not replace:
                raise ContextError(f"there is a context {name!r} already; --replace replaces it")
            contexts.by_name[name] = {key: value for key, value in fields.items() if value}
            if use:
                contexts.current = name
            used = contexts.current == name
    click.echo(
        f"saved context {name}" + ("" if used else f"; use it by: mqadmin context use {name}")
    )


@context_group.command("list")
@OUTPUT
@click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
def list_contexts(output: str, as_json: bool) -> None:
    """List the contexts and mark the default context."""
    from .command import Table
    from .output import write

    contexts = _read()
    chosen = _chosen(contexts)
    rows = [
        {
            "name": name,
            "inUse": name == chosen,
            "namesrv": fields.get("namesrv", ""),
            "accessKey": fields.get("accessKey", ""),
            "tls": "tlsConfigFile" in fields,
        }
        for name, fields in sorted(contexts.by_name.items())
    ]
    write([Table(rows, columns=("name", "inUse", "namesrv"))], "json" if as_json else output)


@context_group.command("use")
@NAME
def use_context(name: str) -> None:
    """Make NAME the default context."""
    with _context_errors(), _changing() as contexts:
        contexts.get(name)
        contexts.current = name
    click.echo(f"using context {name}")


@context_group.command("show")
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_context)
@OUTPUT
@click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
@click.option("--secrets", is_flag=True, help="Show secrets, too.")
def show(name: str | None, output: str, as_json: bool, secrets: bool) -> None:
    """Show the context NAME, or the default context."""
    from raftmq.remoting.contexts import SECRETS, ContextError

    from .command import Fields
    from .output import write

    with _context_errors():
        contexts = _read()
        requested = name or _chosen(contexts)
        if not requested:
            raise ContextError("no context is in use")
        fields = contexts.get(requested)
    shown = {k: HIDDEN if k in SECRETS and not secrets else v for k, v in fields.items()}
    write([Fields({"name": requested, **shown})], "json" if as_json else output)


@context_group.command("remove")
@NAME
def remove(name: str) -> None:
    """Delete the context NAME."""
    with _context_errors(), _changing() as contexts:
        contexts.get(name)
        del contexts.by_name[name]
        if contexts.current == name:
            contexts.current = ""
    click.echo(f"removed context {name}")


def _read() -> Contexts:
    from raftmq.remoting.contexts import path_of, read

    with _context_errors():
        return read(path_of(os.environ))


def _changing() -> Any:
    from raftmq.remoting.contexts import changing, path_of

    return changing(path_of(os.environ))


def _chosen(contexts: Contexts) -> str:
    """Return the default context, from the variable or the saved choice."""
    from raftmq.remoting.contexts import VARIABLE

    return os.environ.get(VARIABLE, "") or contexts.current


def _ask_secret() -> str:
    """Return a typed secret, or the first line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt("secret key", hide_input=True, err=True))
    return sys.stdin.readline().strip()


@contextmanager
def _context_errors() -> Iterator[None]:
    """Print a ContextError as a line, with exit status 2."""
    from raftmq.remoting.contexts import ContextError

    try:
        yield
    except ContextError as error:
        click.echo(f"mqadmin: {error}", err=True)
        sys.exit(USAGE)
