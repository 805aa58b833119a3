"""Our example of transactions, as it stands, at Apache's broker.

Apache's broker notes that a transaction has ended three seconds later. One that asks more often
than that asks about it again, and then delivers the message again.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.apache import ApacheBroker
from tests.interop.targets import make_topic, name_server

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "transaction.py"
IMPATIENT = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}  # ms
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


def test_transaction_example_at_apaches_broker_consumes_each_order_once(tmp_path: Path) -> None:
    with name_server() as namesrv:
        broker = ApacheBroker(tmp_path, namesrv, brokerName="broker-a", **IMPATIENT)
        broker.start()
        try:
            make_topic(namesrv, "Sold", 4)  # known there once it is registered
            for _ in range(2):  # the second time the kitchen goes on where it was
                done = subprocess.run(
                    [sys.executable, EXAMPLE],
                    env={**os.environ, "NAMESRV_ADDR": namesrv},
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
                assert done.returncode == 0, done.stderr
                assert done.stdout.splitlines() == [
                    "order-1 COMMIT",
                    "order-2 ROLLBACK",
                    "order-3 UNKNOWN",
                    "heard of ['order-1', 'order-3']",
                ]
        finally:
            broker.kill()
