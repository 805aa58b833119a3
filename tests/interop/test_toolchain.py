"""Parts of the foreign clients' toolchains: complete or not there, and never silently missing."""

import sys
from pathlib import Path

import pytest

from tests.interop import toolchain
from tests.interop.toolchain import ToolMissing, made, run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(toolchain, "ROOT", tmp_path / "tools")
    return tmp_path / "tools"


def test_missing_tool_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match=r"no-such-tool --version: .*No such file"):
        run(["no-such-tool", "--version"], {}, tmp_path)


def test_failed_command_gives_its_output_in_the_error(tmp_path: Path) -> None:
    script = "import os, sys; sys.exit(f'no route to {os.environ[\"REGISTRY\"]}')"
    with pytest.raises(ToolMissing, match="ended with 1:\nno route to nowhere"):
        run([sys.executable, "-c", script], {"REGISTRY": "nowhere"}, tmp_path)


def test_toolchain_parts_are_made_once_per_inputs(root: Path, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    times = []

    def make(directory: Path) -> None:
        times.append(lock.read_text())
        (directory / "tool").write_text(lock.read_text())

    lock.write_text("one")
    first = made("tool", [lock], make)
    assert made("tool", [lock], make) == first
    assert (first / "tool").read_text() == "one"
    lock.write_text("two")
    second = made("tool", [lock], make)
    assert (second / "tool").read_text() == "two"
    assert times == ["one", "two"]
    assert not first.exists()


def test_toolchain_discards_a_part_left_incomplete(root: Path, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("one")

    def fails(directory: Path) -> None:
        (directory / "half").write_text("")
        raise ToolMissing("the network went away")

    with pytest.raises(ToolMissing):
        made("tool", [lock], fails)
    again = made("tool", [lock], lambda directory: None)
    assert list(again.iterdir()) == []


def test_old_client_is_compiled_without_newer_features() -> None:
    source = "one\n  x(); // since 4.6\ntwo\n  // since 4.6 {\n  y {\n  }\n  // }\nthree\n"
    assert toolchain.without_newer(source) == "one\ntwo\nthree\n"
    assert toolchain.without_newer("four\n") == "four\n"


def test_toolchain_versions_are_pinned_and_locked() -> None:
    pins = toolchain.TOOLCHAINS.read_text().splitlines()[1:]
    assert all("==" in pin for pin in pins)
    assert (
        "github.com/apache/rocketmq-client-go/v2 v2.1.2 h1:"
        in (toolchain.HERE / "go" / "go.sum").read_text()
    )
    assert '"integrity"' in (toolchain.HERE / "node" / "package-lock.json").read_text()
    assert sorted((toolchain.HERE / "go").iterdir()) == sorted(toolchain.GO_FILES)
    assert 'name = "rocketmq"\nversion = "5.0.0"' in toolchain.RUST5_FILES[1].read_text()


def test_missing_cargo_is_reported_with_the_script_that_finds_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARGO", "no-such-cargo")
    with pytest.raises(ToolMissing, match=r"tools/find-cargo\.sh"):
        toolchain.rust5()
