"""Old names of figures, told beside the new ones, which follow docs/glossary.md.

They go with version 0.2. Until then a dashboard, rule or script of an older version finds what it
asks for. Old fields of HTTP answers stand in broker/http/views.py, which the API's document shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

METRICS = {"raft_election_backoff": "raft_election_patience", "raft_recovered": "raft_whole"}
RUNTIME_KEYS = {"raftRecovered": "raftWhole"}  # of GET_BROKER_RUNTIME_INFO
MEMBER_KEYS = {"recovered": "whole"}  # of CHANGE_MEMBERS


def with_old(figures: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
    """Return the figures, each that has an old name under both. `names`: the old ones by the new
    ones."""
    return {**figures, **{old: figures[new] for new, old in names.items()}}
