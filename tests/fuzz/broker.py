"""`python -m tests.fuzz.broker`: `mqbroker` with frequent snapshots, and with more lines about
peers than by default, so that those that say what happened are among them."""

from dataclasses import replace
from functools import partial
from unittest.mock import patch

from raftmq.broker import process
from raftmq.broker.cli import main
from raftmq.broker.durations import Durations
from raftmq.ops.logs import set_up


def machine(root: str) -> process.Machine:
    return replace(process.this_machine(root), durations=Durations(snapshot=2_000))


if __name__ == "__main__":
    with patch.object(process, "set_up", partial(set_up, peer_lines_per_s=50)):
        main(obj=machine)
