"""Names of versions."""

import pytest

from raftmq.remoting.codes import version_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (213, "V4_0_0"),  # the numbers are those of Apache's MQVersion, 5.3.3
        (408, "V4_9_8_SNAPSHOT"),
        (409, "V4_9_8"),
        (412, "V5_0_0_SNAPSHOT"),
        (413, "V5_0_0"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "number 612"),
        (137, "number 137"),
        (-1, "number -1"),
    ],
)
def test_version_names_equal_apaches(number, name):
    assert version_name(number) == name
