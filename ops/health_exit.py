"""How the `health` commands of all programs end. Shell; imports little, as they run often."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import click


def end(address: str, reason: str, warnings: Iterable[str]) -> NoReturn:
    """Print what is wrong with the server at `address`, and exit with status 1; if `reason` is "",
    that it is healthy, what somebody should look at all the same, and exit with 0."""
    click.echo(f"{address}: {reason or 'healthy'}")
    if reason:
        sys.exit(1)
    for warning in warnings:
        click.echo(f"{address}: warning: {warning}")
    sys.exit(0)


def configured(options: str) -> Any:
    """Return the configuration that the program's own options describe, such as `-c FILE` before
    `health`; None if there are none. `options`: the name of the module with `load`."""
    given = click.get_current_context().find_root().params
    path, settings = given.get("path"), given.get("settings") or ()
    if path is None and not settings:
        return None
    from .options import ConfigError

    try:
        return importlib.import_module(options).load(path, settings, os.environ).config
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
