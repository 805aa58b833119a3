"""No request keeps a broker's event loop for long, whatever it asks."""

from raftmq.remoting.acl.needs import BROKER
from tests.broker import turns

LIMIT_S = 0.020


def test_every_request_code_has_load_cases():
    assert set(turns.CASES) == set(BROKER), "test_rights compares BROKER with the handlers"


async def test_no_request_blocks_the_event_loop_for_long(tmp_path):
    result = await turns.measure(tmp_path, limit_s=LIMIT_S)
    assert {code for _, code, *_ in result} == set(BROKER)
    long = [(round(1000 * seconds), code, name, what) for seconds, code, name, what, _ in result
            if seconds > LIMIT_S]  # fmt: skip
    assert long == []
