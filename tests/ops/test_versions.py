"""Versions of resources, and conditions."""

from raftmq.ops.versions import ANY, Condition, version_of


def test_condition_is_met_by_versions():
    for condition, none, same, other in (
        (Condition(absent=True), True, False, False),
        (Condition((ANY,)), False, True, True),
        (Condition(("v",)), False, True, False),
        (Condition(()), False, False, False),
    ):
        met = [condition.met_by(version) for version in (None, "v", "w")]
        assert met == [none, same, other], condition


def test_version_does_not_depend_on_the_order_of_keys():
    assert version_of({"a": 1, "b": 2}) == version_of({"b": 2, "a": 1}) != version_of({"a": 1})
