"""`python -m tests.client.scenarios [NAME…]`: the scenarios against Apache's broker, killed and
started again in each. A line of JSON each; ends with the first that fails."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from tests.client.scenarios.providers import ApacheCluster
from tests.client.scenarios.test_scenarios import NOT_SERVED_BY_APACHE, SCENARIOS


async def main(wanted: list[str]) -> None:
    chosen = [s for s in SCENARIOS if s not in NOT_SERVED_BY_APACHE]
    with TemporaryDirectory() as directory:
        async with ApacheCluster(Path(directory)) as cluster:
            for scenario in chosen:
                if wanted and scenario.__name__ not in wanted:
                    continue
                began_s, killed = time.monotonic(), cluster.killed
                await scenario(cluster)
                assert cluster.killed > killed, scenario.__name__
                seconds = round(time.monotonic() - began_s, 1)
                line = {"scenario": scenario.__name__, "against": "apache", "seconds": seconds}
                print(orjson.dumps(line).decode(), flush=True)


asyncio.run(main(sys.argv[1:]))
