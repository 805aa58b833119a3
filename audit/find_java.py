"""Finds a Java of version 17 or newer that has the module that Spark needs.

The search order is JAVA_HOME, `java` on the PATH, the usual directories of Linux and macOS. Among
the usual directories, versions 17 to 21 are preferred, which Spark supports.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

JAVA_VERSION_MIN = 17
JAVA_VERSION_PREFERRED_MAX = 21
PROBE_TIMEOUT_S = 120  # a JVM answers -version in 0.1 s, and later on a busy machine
USUAL_PATTERNS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


class JavaNotFound(Exception):
    """No usable Java was found; the message gives the remedy in a line."""

    def __init__(self) -> None:
        super().__init__(
            f"Java {JAVA_VERSION_MIN} or newer is needed and was not found: install one "
            "(Debian, Ubuntu: apt-get install default-jre-headless) or set JAVA_HOME"
        )


def find_java_home(
    environment: Mapping[str, str], patterns: tuple[str, ...] = USUAL_PATTERNS
) -> str:
    """Return the home of a Java that can run Spark, by JAVA_HOME, PATH and HOME of `environment`.
    Raises JavaNotFound."""
    for home in _named(environment):
        if java_version(home) >= JAVA_VERSION_MIN:
            return str(home)
    homes = [(java_version(home), str(home)) for home in _usual(environment, patterns)]
    usable = sorted(pair for pair in homes if pair[0] >= JAVA_VERSION_MIN)
    if not usable:
        raise JavaNotFound
    preferred = [home for version, home in usable if version <= JAVA_VERSION_PREFERRED_MAX]
    return preferred[-1] if preferred else usable[0][1]


def java_version(home: Path) -> int:
    """Return the Java's major version; 0 if none in `home` starts with Spark's module."""
    java = home / "bin" / "java"
    if not java.is_file():
        return 0
    command = [str(java), "--add-modules=jdk.incubator.vector", "-version"]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0  # no program of this machine, or a hanging program
    match = _VERSION.search(probe.stderr)
    if probe.returncode != 0 or match is None:
        return 0
    return int(match[1]) if match[1] != "1" else int(match[2] or 0)


def _named(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent


def _usual(environment: Mapping[str, str], patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    if environment.get("HOME"):
        yield from sorted(Path(environment["HOME"]).glob(".sdkman/candidates/java/*"))
