"""Builds commands of other projects from their Go modules, pinned by go/go.sum, beside the virtual
environment, with the Go that drives the foreign clients of tests/interop."""

from __future__ import annotations

from pathlib import Path

from bench.peers.system import Missing
from tests.interop.toolchain import CACHES, TOOLCHAINS, ToolMissing, made, run, toolchains

MODULE = Path(__file__).with_name("go")
INPUTS = [MODULE / name for name in ("go.mod", "go.sum", "tools.go")]


def build(name: str, package: str) -> Path:
    """Return the command's path; it is built on first use. Raises Missing."""

    def make(directory: Path) -> None:
        command = toolchains() / "go" / "bin" / "go"
        environment = {
            "GOROOT": str(command.parents[1]),
            "GOPATH": str(CACHES / "go"),
            "GOMODCACHE": str(CACHES / "go" / "pkg" / "mod"),
            "GOCACHE": str(CACHES / "go-build"),
            "GOTOOLCHAIN": "local",
            "GOTELEMETRY": "off",
            "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false -trimpath",
            "CGO_ENABLED": "0",
        }
        run([str(command), "build", "-o", str(directory / name), package], environment, MODULE)

    try:
        return made(name, [*INPUTS, TOOLCHAINS], make) / name
    except ToolMissing as error:
        raise Missing(str(error)) from error
