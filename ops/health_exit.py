"""Output and exit status of the `health` commands, with few imports."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import click


def end(address: str, reason: str, warnings: Iterable[str]) -> NoReturn:
    """Print the state of the server at `address`, and exit with status 1 if there is a `reason`,
    else with 0. A healthy server's warnings are printed as well."""
    click.echo(f"{address}: {reason or 'healthy'}")
    if reason:
        sys.exit(1)
    for warning in warnings:
        click.echo(f"{address}: warning: {warning}")
    sys.exit(0)


def configured(options: str) -> Any:
    """Return the configuration by the program's own options, such as `-c FILE` before `health`;
    None without them. `options` is the name of the module with `load`."""
    given = click.get_current_context().find_root().params
    path, settings = given.get("path"), given.get("settings") or ()
    if path is None and not settings:
        return None
    from .options import ConfigError

    try:
        return importlib.import_module(options).load(path, settings, os.environ).config
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
