"""JSON in which an object has a key twice is refused, wherever a client's or an operator's is
read."""

from pathlib import Path

import orjson
import pytest

from raftmq.ops.strict_json import loads
from raftmq.remoting import fast_json as fastjson
from raftmq.remoting.acl.signature import credentials_of
from raftmq.remoting.contexts import ContextError, read
from raftmq.remoting.errors import BodyError
from raftmq.web.auth import load_tokens
from raftmq.web.problem import ApiProblem
from raftmq.web.schema import Input, from_json
from raftmq.web.settings import WebConfigError

TWICE = (
    b'{"a":1,"a":2}',
    b'{"a":1,"\\u0061":2}',
    b'[{"b":{"c":[{"a":1,"x":":","a":1}]}}]',
    b'{"a":"\\u003a","a":"\\u003A"}',
    b'{"a":1,"a":"\\u003a"}',
    b'{"a":"x:y","b":{"a":1},"a":{}}',
)
ONCE = (
    b"1",
    b'"a:b"',
    b'{"a":{"a":[{"a":":"},{"a":":::"}]},"b":"a\\":1"}',
    b'{"a":"\\u003a","b":"\\u003c"}',
    b'{"":1," ":2,"a\\"":3,"a":4}',
    b"[" * 900 + b'{"a":":"}' + b"]" * 900,
)


@pytest.mark.parametrize("data", TWICE)
def test_json_with_a_duplicate_key_is_rejected(data: bytes) -> None:
    for text in (data, bytearray(data), data.decode()):
        with pytest.raises(orjson.JSONDecodeError, match="twice"):
            loads(text)
    with pytest.raises(BodyError, match="twice"):
        fastjson.loads(data)


@pytest.mark.parametrize("data", ONCE)
def test_other_json_is_read_as_by_orjson(data: bytes) -> None:
    assert loads(data) == loads(data.decode()) == fastjson.loads(data) == orjson.loads(data)


def test_fastjson_with_a_duplicate_key_is_rejected() -> None:
    queue = b'{"brokerName":"b","queueId":0,"topic":"t"}'
    assert len(fastjson.loads(b"{%s:5,0:1}" % queue)) == 2
    for body in (b"{%s:5,%s:6}" % (queue, queue), b'{0:1,"0":2}', b"{7:1,7:1}"):
        with pytest.raises(BodyError, match="twice"):
            fastjson.loads(body)


def test_files_and_bodies_are_read_strictly(tmp_path: Path) -> None:
    class Body(Input, frozen=True, kw_only=True):
        role: str = ""

    with pytest.raises(ApiProblem, match="twice") as refused:
        from_json(b'{"role":"viewer","role":"admin"}', Body)
    assert refused.value.status == 400
    path = tmp_path / "file.json"
    path.touch(mode=0o600)
    path.write_bytes(
        b'{"tokens":[{"token":"0123456789abcdef","role":"viewer","role":"admin","name":"a"}]}'
    )
    with pytest.raises(WebConfigError, match="twice"):
        load_tokens(path)
    path.write_bytes(b'{"contexts":{},"contexts":{"a":{"namesrv":"b:1"}}}')
    with pytest.raises(ContextError):
        read(path)
    with pytest.raises(ValueError, match="expected"):
        credentials_of('{"accessKey":"a","secretKey":"b","secretKey":"c"}')
