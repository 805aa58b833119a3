"""The start of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.run.runner import with_needs

ASKED = Shape("raft", 2, 3, 1, netns=True, standard_ports=True, proxies=2)


@pytest.mark.parametrize(
    "needs, gets",
    [
        ((), {"links": False, "faultable": False}),
        (("links", "loop-device"), {"links": True, "faultable": False}),
        (("faultable",), {"links": False, "faultable": True}),
    ],
)
def test_shape_keeps_its_options_and_gets_what_faults_need(
    needs: tuple[str, ...], gets: dict[str, bool]
) -> None:
    assert with_needs(ASKED, needs) == replace(ASKED, **gets)  # type: ignore[arg-type]
    both = replace(ASKED, links=True, faultable=True)
    assert with_needs(both, needs) == both
