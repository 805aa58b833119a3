"""docs/compatibility.md's requests, code by code, against the handlers that there are."""

import re
from pathlib import Path

from namesrv.server import NameServer, NameServerConfig
from remoting.client import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.broker.cluster import Group

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
ROW = re.compile(r"\| (\d+) (\w+) \| (yes|) \| (yes|) \| (yes|no) \| (.*?) ?\|$")
OURS = re.compile(r"\| (3\d{4}) (\w+) \| a (broker|client)")
TO_CLIENTS = {39, 40, 220, 221, 307, 309, 326}


def part(heading: str) -> str:
    text = PAGE.read_text().split(f"### {heading}\n")[1]
    return re.split(r"\n##", text)[0]


def rows(heading: str) -> dict[int, tuple[str, ...]]:
    lines = [line for line in part(heading).splitlines() if re.match(r"\| \d", line)]
    found = {}
    for line in lines:
        match = ROW.match(line)
        assert match is not None, line
        found[int(match[1])] = match.groups()[1:]
    assert len(found) == len(lines), "a code twice"
    return found


def said(*headings: str) -> set[int]:
    """The codes that the page says are answered here."""
    return {code for h in headings for code, row in rows(h).items() if row[3] == "yes"}


def test_every_no_has_a_reason_and_every_row_its_name() -> None:
    names = {int(code): code.name for code in RequestCode}
    seen = 0
    for heading in (
        "Producers ask a broker",
        "Consumers ask a broker",
        "A name server is asked",
        "Operators ask a broker",
    ):
        for code, (name, _, _, here, why) in rows(heading).items():
            seen += 1
            assert (here == "no") == bool(why), code
            if here == "yes":
                assert names[code] == name
    assert seen > 110


async def test_a_broker_handles_what_the_page_says(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        broker = await group.leading()
        handled = {int(code) for code in broker.processor.handlers}
    asked = said("Producers ask a broker", "Consumers ask a broker", "Operators ask a broker")
    own = {int(code) for code, _, of in OURS.findall(part("Ours alone")) if of == "broker"}
    assert handled == asked | own


async def test_a_name_server_handles_what_the_page_says() -> None:
    handled = set()
    async with NameServer(NameServerConfig("127.0.0.1", 0)) as server:
        client = RemotingClient()
        for code in RequestCode:
            answer = await client.invoke(server.address, RemotingCommand.request(code), 10_000)
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                handled.add(int(code))
        await client.close()
    assert handled == said("A name server is asked")


def test_clients_are_asked_what_the_page_says() -> None:
    text = part("A broker asks clients")
    assert {int(code) for code in re.findall(r"^\| (\d+) ", text, re.M)} == TO_CLIENTS
    assert "no" not in re.findall(r"\| (yes|no) \|", text)
