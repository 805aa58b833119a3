"""The Python interpreter's compilation options, which decide the speed of every program here.

A build without profile-guided optimisation, the default of version managers, needs about a quarter
more CPU time per message (docs/performance.md). tools/find-python.sh runs this file with each
interpreter that it finds, so the module imports only the standard library.
"""

from __future__ import annotations

import gc
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def is_optimised() -> bool:
    """Return True if this interpreter was compiled with profile-guided optimisation. Builds name
    the option of `configure`; Debian's and Ubuntu's name none, and leave the flags of the second
    compilation empty. CPython's Makefile has those flags in every other build."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "--enable-optimizations" in arguments or not sysconfig.get_config_var(
        "PGO_PROF_USE_FLAG"
    )


def description() -> str:
    """Return the interpreter's version and build in a line."""
    build = (
        "profile-guided optimisation"
        if is_optimised()
        else "no profile-guided optimisation: messages cost about a quarter more CPU time"
    )
    return f"{platform.python_implementation()} {platform.python_version()} ({build})"


@contextmanager
def without_gc() -> Iterator[None]:
    """Keep the garbage collector off during imports, which create much and release little (0.6 MB
    of a broker's 30), and from all of it afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def version_option(program: str, version: str) -> Callable[[Any], Any]:
    """Return click's decorator for `--version`, with program and interpreter."""
    import click

    def show(context: click.Context, _: click.Parameter, requested: bool) -> None:
        if requested and not context.resilient_parsing:
            click.echo(f"{program}, version {version}\n{description()}")
            context.exit()

    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show the version and exit.",
    )


if __name__ == "__main__":
    if "--is-optimised" in sys.argv:
        sys.exit(0 if is_optimised() else 1)
    print(description())
