"""`python -m tests.fuzz [--minutes M] [--seed S]`: go on until the time is over; print how many."""

import asyncio
import logging
import tempfile
import time
from pathlib import Path

import click

from tests.fuzz.cases import Case, Maker
from tests.fuzz.victims import BrokerVictim, NameServerVictim, Surprises

ROUND = 2_000  # cases between two restarts of the broker


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first round.")
def main(minutes: float, seed: int) -> None:
    logging.disable(logging.WARNING)  # every damaged frame is one
    with Surprises() as surprises:
        asyncio.run(run(minutes, seed, surprises))


async def run(minutes: float, seed: int, surprises: list[str]) -> None:
    deadline = time.monotonic() + 60 * minutes
    broker_cases = name_cases = records = 0
    while time.monotonic() < deadline:
        last: Case | None = None
        try:
            with tempfile.TemporaryDirectory() as root:
                victim = BrokerVictim(Path(root))
                async with victim.group() as group:
                    await victim.begin(group)
                    maker = Maker(seed, victim.codes)
                    for number in range(ROUND):
                        last = maker.case()
                        await victim.feed(last)
                        if number % 50 == 49:
                            await victim.others()
                    await victim.read_back()
                    records += await victim.starts_again()
                    await victim.close()
            assert not surprises, "\n".join(surprises)
            broker_cases += ROUND
            names = NameServerVictim()
            async with names.server_() as server:
                await names.begin(server)
                maker = Maker(seed, names.codes)
                for number in range(ROUND):
                    last = maker.case()
                    await names.feed(last)
                    if number % 50 == 49:
                        await names.others()
                await names.close()
            assert not surprises, "\n".join(surprises)
            name_cases += ROUND
        except BaseException:
            print(f"seed {seed}: after {last.what if last else 'nothing'}")
            raise
        print(f"seed {seed}: broker {broker_cases} cases, name server {name_cases}", flush=True)
        seed += 1
    print(f"{broker_cases + name_cases} cases, {records} records stored, all whole")


if __name__ == "__main__":
    main()
