"""One JVM with the official Java client for all interop tests."""

from collections.abc import Iterator

import pytest

from tests.interop.jvm import Jvm


@pytest.fixture(scope="session")
def jvm() -> Iterator[Jvm]:
    machine = Jvm()
    yield machine
    machine.close()
