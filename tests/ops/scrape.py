"""Reads /metrics as it was at one moment, and checks what every exposition keeps to."""

import re

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """One exposition, which is well named; figures added up by name and labels."""

    def __init__(self, text: str) -> None:
        well_named(text)
        self.text = text
        self.samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def sum(self, name: str, **labels: str) -> float:
        result = [
            value
            for known, its, value in self.samples
            if known == name and labels.items() <= its.items()
        ]
        assert result, f"no series {name} {labels}"
        return sum(result)


def well_named(text: str) -> None:
    """Prometheus' conventions, for a whole exposition."""
    for family in text_string_to_metric_families(text):
        assert re.fullmatch(r"(rocketmq|raft|process|python)_[a-z_]+", family.name), family.name
        assert family.documentation, family.name
        assert not re.search(r"_(ms|mills|millis|milliseconds|kb|mb|ratio_percent)$", family.name)
        if family.type == "histogram":
            assert family.name.endswith("_seconds"), family.name
