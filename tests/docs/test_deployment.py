"""docs/deployment.md has every variable that the compose files take."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

FILES = ("docker-compose.yml", "deploy/docker-compose.tls.yml")
TAKEN = re.compile(r"\$\{(RAFTMQ_\w+)")
ONE_OF_SOME = re.compile(r"_[ABC]?[0-9]?$")  # the page says: `RAFTMQ_PORT_PROXY_0`, `…_1`


def test_every_compose_variable_is_documented() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    taken = {name for file in FILES for name in TAKEN.findall((ROOT / file).read_text())}
    assert len(taken) > 20
    assert [name for name in sorted(taken) if ONE_OF_SOME.sub("_", name) not in page] == []
