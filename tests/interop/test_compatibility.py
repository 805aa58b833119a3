"""docs/compatibility.md's requests, code by code, against the handlers that there are."""

import re
from pathlib import Path

import pytest

from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.codes import RequestCode
from tests.broker.cluster import Group
from tests.interop.codes import (
    BROKER_PARTS,
    NAMESRV_PART,
    PAGE,
    Seen,
    answered,
    look,
    page,
    part,
    rewritten,
    rows,
    unsaid,
)

OURS = re.compile(r"\| (3\d{4}) (\w+) \| a (broker|client|name server)")
TO_CLIENTS = {39, 40, 220, 221, 307, 309, 326}
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Ask four servers of Apache's; return what they answer."""
    return look(tmp_path_factory.mktemp("codes"))


@pytest.mark.long
def test_apaches_answers_are_as_documented(seen: Seen) -> None:
    """`python -m tests.interop.codes` writes the columns anew."""
    changed = set(rewritten(seen).splitlines()) - set(PAGE.read_text().splitlines())
    assert not changed
    assert unsaid(seen) == {"broker": [], "namesrv": []}, "answered by Apache's, and not told of"


@pytest.mark.long
def test_request_names_are_those_that_apache_declares(seen: Seen) -> None:
    names = seen.declared["4.9"] | seen.declared["5.3"]
    for of_part in page().values():
        for code, row in of_part.items():
            assert row[0] == names[code]
    assert set(names) >= TO_CLIENTS


def said(*headings: str) -> set[int]:
    """The codes that the page says are answered here."""
    return {code for h in headings for code, row in rows(h).items() if row[3] == "yes"}


def test_documented_no_has_a_reason_and_every_row_its_name() -> None:
    names = {int(code): code.name for code in RequestCode}
    seen = 0
    for of_part in page().values():
        for code, (name, _, _, here, why) in of_part.items():
            seen += 1
            assert (here == "no") == bool(why), code
            if here == "yes":
                assert names[code] == name
    assert seen > 110


async def test_broker_handles_the_documented_request_codes(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        broker = await group.leading()
        handled = {int(code) for code in broker.processor.handlers}
    requested = said(*BROKER_PARTS)
    own = {int(code) for code, _, of in OURS.findall(part("Ours alone")) if of == "broker"}
    assert handled == requested | own


async def test_name_server_handles_the_documented_request_codes() -> None:
    async with NameServer(NameServerConfig("127.0.0.1", 0)) as server:
        known = int(RequestCode.GET_BROKER_CLUSTER_INFO)
        handled = await answered(server.address, [int(code) for code in RequestCode], known)
    own = {int(code) for code, _, of in OURS.findall(part("Ours alone")) if of == "name server"}
    assert handled == said(NAMESRV_PART) | own


def test_documented_requests_to_clients_are_those_the_broker_sends() -> None:
    text = part("A broker asks clients")
    assert {int(code) for code in re.findall(r"^\| (\d+) ", text, re.M)} == TO_CLIENTS
    assert "no" not in re.findall(r"\| (yes|no) \|", text)
