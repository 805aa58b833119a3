"""docs/http-api.md: its examples are run, in order, against a broker."""

import re
import subprocess
from pathlib import Path

from tests.broker.http.process import TOKENS, running, tokens_file
from tests.curl import CURL

DOCUMENT = Path(__file__).parents[3] / "docs" / "http-api.md"


def test_http_api_page_examples_work(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) > 6
    with running(tmp_path, f"httpTokensFile={tokens_file(tmp_path / 'tokens')}") as address:
        lines = "\n".join(f"echo '== {n}'\n{block}" for n, block in enumerate(blocks))
        assert "http://127.0.0.1:10915" in lines
        script = CURL + lines.replace("127.0.0.1:10915", address)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env={"TOKEN": TOKENS["admin"], "PATH": "/usr/bin:/bin", "no_proxy": "*"},
            capture_output=True,
            text=True,
            timeout=400,
        )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr
    answered = done.stdout
    for text in (
        '"status":"ready"',
        '"leaderReady":true',
        '"writeQueueNums":8',
        "VERSION_MISMATCH",
        '"text":"hello"',
        '"consumeEnable":false',
        '"needsRestart":["flushDiskType"]',
        '"kind":"roleChanged"',
        "no follower is within reach",
    ):
        assert text in answered, text
