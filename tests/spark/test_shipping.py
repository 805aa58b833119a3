"""Registers the format where Spark's own search does not find it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.audit.find_java import find_java_home
from raftmq.spark.shipping import write_archive
from tests.smallspark import PROGRAM

ROOT = Path(__file__).parents[2]
SCRIPT = """
from pyspark.sql import SparkSession
from raftmq.spark.shipping import register

register(SparkSession.builder.getOrCreate())
away = {"namesrv": "127.0.0.1:1", "topic": "T", "timeoutMs": "100"}
SparkSession.active().read.format("raftmq").options(**away).load().count()
"""


@pytest.mark.long
def test_a_script_runs_by_the_path_of_its_environments_python(tmp_path: Path) -> None:
    python = tmp_path / "python3"  # the first on PATH, and without any package
    python.write_text('#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n')
    python.chmod(0o755)
    environment = PROGRAM | {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "JAVA_HOME": find_java_home(os.environ),
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "127.0.0.1:1" in run.stderr and "DATA_SOURCE_NOT_FOUND" not in run.stderr


def test_archive_imports_without_the_installed_package(tmp_path: Path) -> None:
    archive = tmp_path / "raftmq.zip"
    write_archive(archive)
    program = f"import sys; sys.path.insert(0, {str(archive)!r}); import raftmq.spark.parallel_sink"
    program += f", raftmq.spark.source; assert raftmq.__path__ == [{str(archive / 'raftmq')!r}]"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
