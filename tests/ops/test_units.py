"""The systemd units do what docs/deployment.md says of them."""

import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
UNITS = {path.name: path for path in (ROOT / "deploy" / "systemd").iterdir()}


def unit(name: str) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)  # a key may come twice
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNITS[name].read_text())
    return parser


@pytest.mark.parametrize("name", UNITS)
def test_systemd_unit_restarts_without_limit(name: str) -> None:
    """By default systemd gives up after five starts in 10 s, as for a taken port or before DNS
    answers."""
    result = unit(name)
    assert result["Service"]["Restart"] == "on-failure"
    assert result["Service"]["RestartPreventExitStatus"] == "2"
    assert result["Unit"]["StartLimitIntervalSec"] == "0"


@pytest.mark.parametrize("name", UNITS)
def test_systemd_units_documentation_is_installed(name: str) -> None:
    command = name.partition(".")[0].rstrip("@")
    page, file = unit(name)["Unit"]["Documentation"].split()
    assert page == f"man:{command}(1)"
    directory, _, base = file.removeprefix("file:/opt/raftmq/").rpartition("/")
    assert base in {path.name for pattern in INSTALLED[directory] for path in ROOT.glob(pattern)}
