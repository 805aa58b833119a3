"""An installation by pip: one package and its commands, beside anything else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import raftmq
from tests.archives import unpack

ROOT = Path(__file__).parent.parent
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
COMMANDS = ("mqadmin", "mqaudit", "mqbroker", "mqchaos", "mqcluster", "mqnamesrv", "mqproxy")
NEWER = ("3.12", "3.13", "3.14")
OTHERS = [
    *(f"python{version}" for version in NEWER),
    *(str(path) for v in NEWER for path in Path.home().glob(f".pyenv/versions/{v}.*/bin/python")),
]


def is_usable(python: str) -> bool:
    """Whether a command runs: version managers put names on the PATH that do not."""
    result = shutil.which(python)
    return (
        result is not None
        and not subprocess.run([result, "-c", ""], capture_output=True).returncode
    )


PYTHONS = [
    sys.executable,
    *(pytest.param(other, marks=pytest.mark.long) for other in filter(is_usable, OTHERS)),
]
APPLICATION = """
import asyncio, client, store.items, sys, web
from raftmq import Message, Producer, __version__
from raftmq.errors import ClientError

async def main():
    async with Producer("orders", sys.argv[1]) as producer:
        result = await producer.send(Message("Orders", b"one"))
    print(client.MINE, store.items.MINE, web.MINE, result.status.name)

asyncio.run(main())
"""
ROUND = """
import asyncio, sys
from raftmq import Admin, ConsumeResult, Message, Producer, PushConsumer

async def main():
    came = asyncio.Event()

    def listen(messages):
        print(messages[0].body)
        came.set()
        return ConsumeResult.SUCCESS

    async with Admin(sys.argv[1]) as admin:
        await admin.topic.create("Orders", 1)
    consumer = PushConsumer("bills", sys.argv[1], listen)
    consumer.subscribe("Orders")
    async with Producer("orders", sys.argv[1]) as producer, consumer:
        while not consumer.queues:
            await asyncio.sleep(0.05)
        await producer.send(Message("Orders", b"one"))
        async with asyncio.timeout(60):
            await came.wait()

asyncio.run(main())
"""


def run(*line: object, cwd: object = "/") -> str:
    """Run a command outside the checkout; its output. Raises with what it said if it fails."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in line],
        capture_output=True,
        text=True,
        timeout=600,
        env=env,
        cwd=str(cwd),
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def wheel_of(project: Path, out: Path) -> Path:
    """Build a source tree as pip does."""
    run(*PIP, "wheel", "-q", "--no-deps", "-w", out, project)
    return next(out.glob("*.whl"))


def environment(directory: Path, python: str = sys.executable) -> Path:
    """Make an empty environment, without a pip of its own; its bin directory."""
    run(python, "-m", "venv", "--without-pip", directory)
    return directory / "bin"


def install(bin_: Path, *what: object) -> None:
    """Install as pip does, and compile only what is imported later."""
    run(*PIP, "--python", bin_ / "python", "install", "-q", "--no-compile", *what)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The files of the repository, as a fresh clone has them."""
    made = tmp_path_factory.mktemp("project")
    for name in run("git", "-C", ROOT, "ls-files", "-z").split("\0")[:-1]:
        if name.startswith("tests/") or not (ROOT / name).exists():
            continue
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, made / name, follow_symlinks=False)
    return made


@pytest.fixture(scope="module")
def wheel(project, tmp_path_factory):
    return wheel_of(project, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def everything(wheel, tmp_path_factory):
    """An environment with the wheel and, by a path, all packages that there are here."""
    home = tmp_path_factory.mktemp("everything")
    bin_ = environment(home)
    install(bin_, "--no-deps", wheel)
    site = next(home.glob("lib/python*/site-packages"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return bin_


def test_wheel_installs_only_raftmq_and_the_spark_module(wheel, everything):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    about = [f"raftmq-{raftmq.__version__}.{name}" for name in ("dist-info", "data")]
    assert tops == {"raftmq", "pyspark_raftmq", *about}
    pages = {path.name for path in (everything.parent / "share/man/man1").iterdir()}
    assert pages == {f"{command}.1" for command in COMMANDS}
    find = "from pyspark_raftmq import DefaultSource as s; print(s.name())"
    assert run(everything / "python", "-c", find).strip() == "raftmq"


def test_source_distribution_builds_the_same_wheel(project, wheel, tmp_path):
    tool = tomllib.loads((project / "pyproject.toml").read_text())["build-system"]
    bin_ = environment(tmp_path / "env")
    install(bin_, *tool["requires"])
    hook = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"
    run(bin_ / "python", "-c", hook, tmp_path, cwd=project)
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        unpack(archive, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    again = wheel_of(unpacked, tmp_path)
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_version_and_usage(everything, command):
    shown = run(everything / command, "--version").splitlines()
    assert shown[0].split()[-1] == raftmq.__version__ and "CPython" in shown[1]
    assert run(everything / command, "-h").startswith(f"Usage: {command}")


@pytest.mark.parametrize(
    "room", ["broker", "namesrv", "chaos", "chaos.cluster", "audit", "mqadmin", "proxy"]
)
def test_package_with_a_command_runs_as_a_module(everything, room):
    assert "Usage: mq" in run(everything / "python", "-m", f"raftmq.{room}", "--help")


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_client_installs_beside_an_application_with_equal_module_names(
    everything, wheel, tmp_path, python
):
    """`pip install raftmq` in an empty environment: the client sends to a broker that runs in
    another, mqadmin works, and the other commands say what they lack."""
    bin_ = environment(tmp_path / "env", python)
    pinned = [] if python != sys.executable else ["-c", ROOT / "requirements.txt"]
    install(bin_, *pinned, wheel)
    done = subprocess.run([bin_ / "mqbroker"], capture_output=True, text=True, cwd="/")
    assert (done.returncode, "pip install 'raftmq[server]'" in done.stderr) == (2, True)
    app = tmp_path / "app"
    for name in ("client/__init__.py", "store/__init__.py", "store/items.py", "web.py"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(f"MINE = {name!r}\n")
    (app / "main.py").write_text(APPLICATION)
    cluster = tmp_path / "cluster"
    run(everything / "mqcluster", "up", "--dir", cluster)
    try:
        status = json.loads(run(everything / "mqcluster", "status", "--json", "--dir", cluster))
        assert run(bin_ / "python", "main.py", status["namesrv"], cwd=app).split() == [
            "client/__init__.py", "store/items.py", "web.py", "OK",
        ]  # fmt: skip
        assert "Orders" in run(bin_ / "mqadmin", "topicList", "-n", status["namesrv"])
    finally:
        run(everything / "mqcluster", "down", "--dir", cluster)


def lowest(project: Path) -> list[str]:
    """The lowest version that pyproject.toml allows of each package of the client and the server,
    as pip wants to be told."""
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    ranges = [*table["dependencies"], *table["optional-dependencies"]["server"]]
    versions = dict(one.split(",")[0].split(">=") for one in ranges)  # the server's, of two
    return [f"{name}=={version}" for name, version in versions.items()]


@pytest.mark.long
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lowest versions are of its time")
def test_lowest_allowed_versions_serve_and_send(project, wheel, tmp_path):
    bin_ = environment(tmp_path / "env")
    named = lowest(project)
    install(bin_, *named, wheel)
    (tmp_path / "main.py").write_text(ROUND)
    cluster = tmp_path / "cluster"
    run(bin_ / "mqcluster", "up", "--dir", cluster)
    try:
        status = json.loads(run(bin_ / "mqcluster", "status", "--json", "--dir", cluster))
        assert run(bin_ / "python", tmp_path / "main.py", status["namesrv"]).split() == ["b'one'"]
        assert "Orders" in run(bin_ / "mqadmin", "topicList", "-n", status["namesrv"])
    finally:
        run(bin_ / "mqcluster", "down", "--dir", cluster)


def test_star_import_gives_all_public_names() -> None:
    result: dict[str, object] = {}
    exec("from raftmq import *", result)
    assert result["Producer"] is raftmq.Producer
    assert set(result) - {"__builtins__"} == set(raftmq.client.__all__)


def test_pinned_packages_support_the_oldest_python():
    """Debian 12's Python is 3.11.2; pyproject.toml promises 3.11."""
    pins = [
        line.partition("==")[0]
        for path in ROOT.glob("requirements*.txt")
        for line in path.read_text().splitlines()
        if "==" in line
    ]
    refused = {
        name: takes
        for name in pins
        if (takes := metadata(name)["Requires-Python"]) and "3.11.0" not in SpecifierSet(takes)
    }
    assert len(pins) > 80 and not refused
