"""`python -m tests.interop.codes`: which requests Apache's brokers and name servers answer.

Every server of both versions is asked, without any field, for every code that either version's
RequestCode declares and every code of docs/compatibility.md. Whatever comes back but "not
supported" is an answer: there is a handler, which misses its fields. The name server of 4.9 says
nothing to a code that it does not know; so silence means what it means for a code that nobody has.

The page's columns of 4.9 and 5.3 are then written anew; what is here, and why not, is left alone.
"""

import asyncio
import re
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from tests.interop.apache import ApacheBroker, ApacheNameServer
from tests.interop.jvm import Jvm

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
ROW = re.compile(r"\| (\d+) (\w+) \| (yes|) \| (yes|) \| (yes|no) \| (.*?) ?\|$")
BROKER_PARTS = ("Producers ask a broker", "Consumers ask a broker", "Operators ask a broker")
NAMESRV_PART = "A name server is asked"
NOBODYS = 99_999  # a code that nobody has
PATIENCE_MS = 120_000.0  # a bound against hanging
FENCES = 3  # so often a known request is answered before others are held to be silent
FENCE_S = 1.0
PACKAGES = {"4.9": "common", "5.3": "remoting"}  # where RequestCode is
VERSIONS = tuple(PACKAGES)


async def answered(address: str, codes: Collection[int], known: int) -> set[int]:
    """Those of the codes that the server handles; `known` is one that it certainly does."""
    client = RemotingClient()

    async def ask(code: int) -> int:
        return (await client.invoke(address, RemotingCommand.request(code), PATIENCE_MS)).code

    try:
        requested = {code: asyncio.create_task(ask(code)) for code in {*codes, NOBODYS}}
        fences = 0
        while fences < FENCES and not all(task.done() for task in requested.values()):
            before = sum(task.done() for task in requested.values())
            await asyncio.sleep(FENCE_S)
            await ask(known)
            after = sum(task.done() for task in requested.values())
            fences = fences + 1 if after == before else 0
        silence = not requested[NOBODYS].done()  # is what it has for codes that it does not know
        result = set()
        for code, task in requested.items():
            if task.done():
                if task.result() != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    result.add(code)
            elif not silence:
                result.add(code)
            task.cancel()
        await asyncio.gather(*requested.values(), return_exceptions=True)
        assert NOBODYS not in result
        return result
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class Seen:
    """The request codes that Apache's servers have, by version."""

    declared: dict[str, dict[int, str]]  # code → name
    broker: dict[str, set[int]]
    namesrv: dict[str, set[int]]


def look(directory: Path) -> Seen:
    """Start all four, one beside the other, ask, and end them."""
    declared: dict[str, dict[int, str]] = {}
    ends: list[Callable[[], None]] = []

    def namesrv(version: str) -> str:
        server = ApacheNameServer(directory / f"namesrv-{version}", version)
        ends.append(server.kill)
        declared[version] = _declared(server.jvm, version)
        return server.address

    def broker(version: str) -> str:
        server = ApacheBroker(
            directory / f"broker-{version}", "127.0.0.1:1", version=version, brokerName="asked"
        )
        ends.append(server.kill)
        server.start()
        return server.address

    try:
        with ThreadPoolExecutor(2 * len(VERSIONS)) as pool:
            namesrvs = {version: pool.submit(namesrv, version) for version in VERSIONS}
            brokers = {version: pool.submit(broker, version) for version in VERSIONS}
            codes = {code for rows in page().values() for code in rows}
            addresses = [future.result() for future in (*namesrvs.values(), *brokers.values())]
        codes |= {code for of_version in declared.values() for code in of_version}
        known = [RequestCode.GET_BROKER_CLUSTER_INFO] * len(VERSIONS)
        known += [RequestCode.GET_BROKER_RUNTIME_INFO] * len(VERSIONS)

        async def all_asked() -> list[set[int]]:
            pairs = zip(addresses, known, strict=True)
            return await asyncio.gather(*(answered(a, codes, int(of)) for a, of in pairs))

        sets = asyncio.run(all_asked())
    finally:
        for end in ends:
            end()
    count = len(VERSIONS)
    return Seen(
        declared,
        namesrv=dict(zip(VERSIONS, sets[:count], strict=True)),
        broker=dict(zip(VERSIONS, sets[count:], strict=True)),
    )


def _declared(jvm: Jvm, version: str) -> dict[int, str]:
    name = f"org.apache.rocketmq.{PACKAGES[version]}.protocol.RequestCode"
    fields = jvm.gateway.jvm.java.lang.Class.forName(name).getFields()
    return {f.getInt(None): f.getName() for f in fields if f.getType().getName() == "int"}


def part(heading: str) -> str:
    text = PAGE.read_text().split(f"### {heading}\n")[1]
    return re.split(r"\n##", text)[0]


def rows(heading: str) -> dict[int, tuple[str, ...]]:
    """By code: name, in 4.9, in 5.3, here, why not."""
    lines = [line for line in part(heading).splitlines() if re.match(r"\| \d", line)]
    result = {}
    for line in lines:
        match = ROW.match(line)
        assert match is not None, line
        result[int(match[1])] = match.groups()[1:]
    assert len(result) == len(lines), "a code twice"
    return result


def page() -> dict[str, dict[int, tuple[str, ...]]]:
    return {heading: rows(heading) for heading in (*BROKER_PARTS, NAMESRV_PART)}


def unsaid(seen: Seen) -> dict[str, list[str]]:
    """Return the codes that some server answers and no row tells of, by kind of server."""
    names = seen.declared["4.9"] | seen.declared["5.3"]
    on_page = page()
    lacking = {}
    for kind, headings in (("broker", BROKER_PARTS), ("namesrv", (NAMESRV_PART,))):
        reported = {code for heading in headings for code in on_page[heading]}
        of_kind = set().union(*getattr(seen, kind).values())
        lacking[kind] = [f"{code} {names[code]}" for code in sorted(of_kind - reported)]
    return lacking


def rewritten(seen: Seen) -> str:
    """The page with the columns of 4.9 and 5.3 as they were seen."""
    lines, heading = [], ""
    for line in PAGE.read_text().splitlines():
        heading = line.removeprefix("### ") if line.startswith("#") else heading
        match = ROW.match(line)
        if match is not None and heading in (*BROKER_PARTS, NAMESRV_PART):
            has = seen.namesrv if heading == NAMESRV_PART else seen.broker
            said = ["yes" if int(match[1]) in has[version] else "" for version in VERSIONS]
            _, name, _, _, here, why = match.groups()
            line = f"| {match[1]} {name} | {said[0]} | {said[1]} | {here} | {why} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        seen = look(Path(directory))
    PAGE.write_text(rewritten(seen))
    for kind, lacking in unsaid(seen).items():
        print(f"{kind}: {', '.join(lacking) or 'every code that is answered has a row'}")


if __name__ == "__main__":
    main()
