"""One JVM with the official Java client for all interop tests."""

from collections.abc import Iterator

import py4j.java_gateway
import py4j.protocol
import pytest

from tests.interop.jvm import Jvm
from tests.leftovers import leftovers_collected as leftovers_collected


@pytest.fixture(scope="session")
def jvm() -> Iterator[Jvm]:
    machine = Jvm()
    yield machine
    machine.close()


@pytest.fixture(autouse=True)
def errors_of_this_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark, where other tests ran it in this process, has put itself between Py4J and every JVM's
    exceptions, and asks for classes that only its own has."""
    plain = py4j.protocol.get_return_value
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", plain)
