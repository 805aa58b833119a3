"""Find a Java that Spark can run on: 17 or newer, with the module that Spark needs at its start.

Searched in this order: JAVA_HOME, `java` on the PATH, the usual places of Linux and macOS. Among
the usual places, versions 17 to 21 are preferred: Spark is made for these.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

JAVA_VERSION_MIN = 17
JAVA_VERSION_PREFERRED_MAX = 21
PROBE_TIMEOUT_S = 120  # a JVM answers -version in 0.1 s; a busy machine takes longer
USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


class JavaNotFound(Exception):
    """No usable Java was found; the message is one line that says what to do."""

    def __init__(self) -> None:
        super().__init__(
            f"Java {JAVA_VERSION_MIN} or newer is needed and was not found: install one "
            "(Debian, Ubuntu: apt-get install default-jre-headless) or set JAVA_HOME"
        )


def find_java_home(environment: Mapping[str, str], places: tuple[str, ...] = USUAL_PLACES) -> str:
    """Return the home directory of a Java that can run Spark. Raises JavaNotFound.

    JAVA_HOME, PATH and HOME are looked up in `environment`.
    """
    for home in _named(environment):
        if java_version(home) >= JAVA_VERSION_MIN:
            return str(home)
    found = [(java_version(home), str(home)) for home in _usual(environment, places)]
    usable = sorted(pair for pair in found if pair[0] >= JAVA_VERSION_MIN)
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
        return 0  # not a program of this machine, or one that hangs: no Java to use
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


def _usual(environment: Mapping[str, str], places: tuple[str, ...]) -> Iterator[Path]:
    for pattern in places:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    if environment.get("HOME"):
        yield from sorted(Path(environment["HOME"]).glob(".sdkman/candidates/java/*"))
