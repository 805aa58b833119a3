"""URIs of places: names are put into the path, and not behind what stands after it."""

import pytest
from pyarrow import fs

from raftmq.spark.filesystem import above, below, for_spark, name_of, opened

OPTIONS = "?endpoint_override=localhost:9000/s3&scheme=http"


@pytest.mark.parametrize("options", ["", OPTIONS])
def test_file_names_are_appended_to_the_path_of_a_uri(options: str) -> None:
    store = f"s3://backups/a/n0/store{options}"
    assert below(store, "commitlog") == f"s3://backups/a/n0/store/commitlog{options}"
    assert below(f"s3://backups/a/{options}", "n0") == f"s3://backups/a/n0{options}"
    assert above(store, 2) == f"s3://backups/a{options}"
    assert name_of(below(store, "0017")) == "0017"


def test_spark_file_system_uses_its_own_scheme_names() -> None:
    assert for_spark(f"s3://backups/a{OPTIONS}") == "s3a://backups/a"
    assert for_spark("hdfs://h/a") == "hdfs://h/a"
    assert for_spark("/data/what?/a") == "/data/what?/a"


def test_path_with_a_question_mark_is_kept() -> None:
    assert name_of("/data/what?/0017") == "0017"
    assert below("/data/what?", "0017") == "/data/what?/0017"


def test_hadoop_scheme_names_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []
    monkeypatch.setattr(fs, "FileSystem", FakeFileSystem(requested))
    for name in ("s3", "s3a", "s3n"):
        opened(f"{name}://backups/n0")
    assert requested == ["s3://backups/n0"] * 3


class FakeFileSystem:
    """Notes which URI is opened."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def from_uri(self, uri: str) -> tuple[None, str]:
        self._asked.append(uri)
        return None, ""
