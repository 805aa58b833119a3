"""Searches the model and prints the states and the time of each search:
`python -m tests.model`, or with `--long` those of the long tests."""

import argparse
import time

from tests.model.bounds import LONG_SEARCHES, SEARCHES
from tests.model.checker import search


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.model", description=__doc__)
    parser.add_argument("--long", action="store_true", help="the searches of the long tests")
    searches = LONG_SEARCHES if parser.parse_args().long else SEARCHES
    for name, (bounds, _) in searches.items():
        begun_s = time.monotonic()
        verdict = search(bounds)
        said = f"{verdict.violated} is violated\n{verdict.output}" if verdict.violated else "holds"
        print(f"{verdict.states:9,} states {time.monotonic() - begun_s:7.1f} s  {name}: {said}")


if __name__ == "__main__":
    main()
