"""Builds commands of other projects from their Go modules, pinned by go/go.sum, beside the virtual
environment, with the Go that drives the foreign clients of tests/interop.

`python -m bench.peers.gomodule NAME PACKAGE` builds one and prints where it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers.system import Missing
from tests.interop.toolchain import TOOLCHAINS, ToolMissing, build_go, made

MODULE = Path(__file__).with_name("go")
INPUTS = [MODULE / name for name in ("go.mod", "go.sum", "tools.go", "load/main.go")]


def build(name: str, package: str) -> Path:
    """Return the path of the command `name`, which `package` is built to on first use. Raises
    Missing."""

    def make(directory: Path) -> None:
        build_go(directory / name, package, MODULE)

    try:
        return made(name, [*INPUTS, TOOLCHAINS], make) / name
    except ToolMissing as error:
        raise Missing(str(error)) from error


def main() -> None:
    try:
        print(build(*sys.argv[1:]))
    except Missing as error:
        sys.exit(f"{sys.argv[1]} cannot be had: {error}")


if __name__ == "__main__":
    main()
