"""The commands `config show` and `config check` of a server process. Shell.

The options are imported when a command runs: `--help` imports little.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from raftmq.ops.options import Loaded

    Load = Callable[[str | None, Sequence[str], Mapping[str, str] | None], Loaded[Any]]

WRONG = 2  # exit status of a wrong configuration


def config_commands(program: str, options: str) -> click.Group:
    """Make the group `config` of `program`, whose own options `path` and `settings` apply, too.
    `options`: the name of the module with `OPTIONS` and `load`."""

    @click.group(help="Look at configurations: what is in effect, and whether a file is right.")
    def config() -> None:
        pass

    def loaded(path: str | None, settings: Sequence[str]) -> Loaded[Any]:
        from raftmq.ops.options import ConfigError

        load: Load = importlib.import_module(options).load
        try:
            return load(path, settings, os.environ)
        except ConfigError as error:
            click.echo(f"{program}: {error}", err=True)
            sys.exit(WRONG)

    @config.command(help="Print the configuration in effect, and where each value comes from.")
    @click.option("-c", "--config", "path", type=click.Path(dir_okay=False), help="The file.")
    @click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key.")
    @click.option("--changed", is_flag=True, help="Only what is not a default.")
    @click.pass_context
    def show(
        context: click.Context, path: str | None, settings: tuple[str, ...], changed: bool
    ) -> None:
        from raftmq.ops.show import effective

        above = context.find_root().params
        path = path or above.get("path")
        known = importlib.import_module(options).OPTIONS
        found = loaded(path, (*above.get("settings", ()), *settings))
        click.echo(effective(known, found.config, found.places, changed=changed), nl=False)

    @config.command(help=f"Check FILE, with the environment over it; exit status {WRONG} if wrong.")
    @click.argument("file", type=click.Path(dir_okay=False))
    def check(file: str) -> None:
        found = loaded(file, ())
        for key, place in found.repeated.items():
            click.echo(f"warning: {place}: {key} stands there twice: the last counts", err=True)
        known = len(importlib.import_module(options).OPTIONS)
        for warning in found.warnings:
            click.echo(f"warning: {warning}", err=True)
        click.echo(f"{file}: right; {len(found.places)} of {known} keys are set")

    return config
