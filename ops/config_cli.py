"""The commands `config show` and `config check` of a server process.

Options are imported when a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .options import Loaded

    Load = Callable[[str | None, Sequence[str], Mapping[str, str] | None], Loaded[Any]]

WRONG = 2  # exit status of a wrong configuration


def config_commands(program: str, options: str, start: str) -> click.Group:
    """Make the group `config` of `program`, which also uses the program's options `path` and
    `settings`. `options` is the name of the module with `OPTIONS` and `load`, `start` that of the
    module with `start_reads` and `START_READ_ERRORS`."""

    @click.group(help="Show the configuration in effect; check and convert files.")
    def config() -> None:
        pass

    def loaded(path: str | None, settings: Sequence[str]) -> Loaded[Any]:
        from .options import ConfigError

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
        from .config_dump import effective

        above = context.find_root().params
        path = path or above.get("path")
        known = importlib.import_module(options).OPTIONS
        settings_file = loaded(path, (*above.get("settings", ()), *settings))
        click.echo(
            effective(known, settings_file.config, settings_file.locations, changed=changed),
            nl=False,
        )

    @config.command(
        help=f"""Check FILE, with the environment over it, and the files that it names: secrets,
        accounts, certificates, keys. Exit status {WRONG} if a start would refuse it."""
    )
    @click.argument("file", type=click.Path(dir_okay=False))
    def check(file: str) -> None:
        settings_file = loaded(file, ())
        for key, location in settings_file.repeated.items():
            click.echo(f"warning: {location}: {key} is set twice: the last value counts", err=True)
        for warning in settings_file.warnings:
            click.echo(f"warning: {warning}", err=True)
        refused = _refused(importlib.import_module(start), settings_file.config)
        for reason in refused:
            click.echo(f"{program}: {file}: {reason}", err=True)
        if refused:
            sys.exit(WRONG)
        known = len(importlib.import_module(options).OPTIONS)
        click.echo(f"{file}: right; {len(settings_file.locations)} of {known} keys are set")
        if keys := settings_file.not_needed:
            click.echo(f"not needed, of Apache's keys: {len(keys)} ({', '.join(keys)})")

    @config.command(
        help="""Print FILE, a configuration of Apache's program, as one of this program: keys that
        have no effect here are commented out with the reason, and the decisions that are left
        are listed at the end."""
    )
    @click.argument("file", type=click.Path(dir_okay=False))
    def convert(file: str) -> None:
        from .foreign_keys import converted
        from .options import ConfigError

        try:
            refused = partial(_refused, importlib.import_module(start))
            text = converted(importlib.import_module(options), refused, program, file)
        except ConfigError as error:
            click.echo(f"{program}: {error}", err=True)
            sys.exit(WRONG)
        click.echo(text, nl=False)

    return config


def _refused(start: ModuleType, config: object) -> list[str]:
    """Return the reasons for which a start would fail before it opens its store."""
    import logging

    reasons = []
    logging.disable()
    try:
        for read in start.start_reads(config):
            try:
                read()
            except start.START_READ_ERRORS as error:
                reasons.append(str(error))
    finally:
        logging.disable(logging.NOTSET)
    return reasons
