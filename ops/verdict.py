"""How the `health` commands of all programs end. Shell; imports little, as they run often."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NoReturn

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
