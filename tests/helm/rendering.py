"""What the Helm chart makes of the values in cases/, kept in rendered/, so that tests without Helm
can judge it.

`python -m tests.helm.rendering` (make helm) renders all of them anew, with the Helm that HELM
names or else with one built from its Go module. Beside them stands a digest of the chart: a chart
that was changed and not rendered again is a failing test. Random values are replaced by numbered
ones of the same length, so that a rendering is the same every time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.interop.toolchain import TOOLCHAINS, build_go, made

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy" / "helm" / "raftmq"
CASES = sorted(path.stem for path in (HERE / "cases").glob("*.yaml"))
RENDERED = HERE / "rendered"
DIGEST = RENDERED / "chart.sha256"
RELEASE, NAMESPACE = "mq", "messaging"
KUBERNETES = "1.36.0"  # a Helm built from its module takes an old one for granted
GO = HERE / "go"
RANDOM = re.compile(r"\b[A-Za-z0-9]{43}\b")

Object = dict[str, Any]


def tool(name: str, package: str) -> Path:
    """The path of a command that `package` is built to on first use: minutes for Helm. Raises
    ToolMissing."""
    inputs = [GO / "go.mod", GO / "go.sum", *GO.rglob("*.go"), TOOLCHAINS]

    def make(directory: Path) -> None:
        build_go(directory / name, package, GO)

    return made(f"helm-{name}", inputs, make) / name


def helm() -> str:
    return os.environ.get("HELM") or str(tool("helm", "helm.sh/helm/v3/cmd/helm"))


def run_helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *words], capture_output=True, text=True, timeout=120)


def template(*options: str, release: str = RELEASE) -> subprocess.CompletedProcess[str]:
    where = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    return run_helm("template", release, str(CHART), *where, *options)


def render(case: str) -> str:
    """What the chart makes of a case, as YAML. Raises AssertionError with Helm's words."""
    result = template("--values", str(HERE / "cases" / f"{case}.yaml"))
    assert result.returncode == 0, result.stderr
    return steady(result.stdout)


def steady(text: str) -> str:
    """YAML without what is random: secrets are numbered, certificates and their keys left out."""
    seen: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"generated{len(seen):034d}")

    text = re.sub(r"(?m)^(  (?:tls\.crt|tls\.key|ca\.crt): ).*$", r"\1Z2VuZXJhdGVk", text)
    return RANDOM.sub(numbered, text)


def digest() -> str:
    """Of all that a rendering depends on: the chart without its README and the bytecode of its
    scripts, and the cases."""
    result = hashlib.sha256()
    others = (".md", ".pyc")
    files = [path for path in CHART.rglob("*") if path.is_file() and path.suffix not in others]
    for path in sorted([*files, *(HERE / "cases").glob("*.yaml")]):
        result.update(str(path.relative_to(HERE.parents[1])).encode() + b"\n" + path.read_bytes())
    return result.hexdigest()


@functools.cache
def rendered(case: str) -> list[Object]:
    """The objects of a case, as they were last rendered; not to be changed."""
    documents = yaml.safe_load_all((RENDERED / f"{case}.yaml").read_text())
    return [document for document in documents if document]


def main() -> None:
    for case in CASES:
        (RENDERED / f"{case}.yaml").write_text(render(case))
        print(f"rendered {case}")
    DIGEST.write_text(digest() + "\n")


if __name__ == "__main__":
    main()
