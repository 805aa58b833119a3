"""The served OpenAPI document, and the broker held to it by schemathesis: made-up requests, right
and wrong ones, must be answered as the document says."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.http.client import Client
from tests.broker.http.process import TOKENS, running, tokens_file

SEED = 20_261_121
EXAMPLES = 3  # per operation
# Stopping would end the broker; events never end.
LEFT_OUT = ("stopNode", "streamEvents")
# A document cannot say which headers go together, or which version is the right one.
CONDITIONAL = (
    "putTopic",
    "deleteTopic",
    "putSubscriptionGroup",
    "deleteSubscriptionGroup",
    "changeConfig",
    "putPreferredLeader",
    "deletePreferredLeader",
)
CONFIG = f"""
[[operations]]
include-operation-id = {list(CONDITIONAL)}
checks.positive_data_acceptance.expected-statuses = [200, 204, 404, 409, 412, 422, 428]
checks.negative_data_rejection.expected-statuses = [400, 404, 405, 409, 412, 415, 422, 428]
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    directory = tmp_path_factory.mktemp("broker")
    with running(directory, f"httpTokensFile={tokens_file(directory / 'tokens')}") as one:
        yield one


async def test_openapi_document_has_every_operation_once(address):
    async with Client(address, Authorization=f"Bearer {TOKENS['viewer']}") as client:
        document = (await client.get("/api/v1/openapi.json")).json
    assert document["openapi"].startswith("3.1")
    operations = [one for path in document["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names)) > 30
    assert all(one["summary"] and one["responses"] for one in operations)
    put = document["paths"]["/api/v1/topics/{topic}"]["put"]
    assert {"412", "428", "504"} <= put["responses"].keys()
    assert [p["name"] for p in put["parameters"]] == ["topic", "If-Match", "If-None-Match"]


def test_broker_conforms_to_its_openapi_document(address, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    token = f"Authorization: Bearer {TOKENS['admin']}"
    left_out = [part for name in LEFT_OUT for part in ("--exclude-operation-id", name)]
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run",
        f"http://{address}/api/v1/openapi.json", "-H", token,
        "--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--seed", str(SEED),
        "--continue-on-failure", "--no-color", *left_out,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert "ignored_auth" not in done.stdout
