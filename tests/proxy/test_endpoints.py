"""Names with namespaces, receipt handles, transaction ids."""

import pytest

from raftmq.proxy.endpoints import Receipt, resource_of, topic_of, wrapped
from raftmq.proxy.protocol.messaging_pb2 import Code, Resource
from raftmq.proxy.status_codes import StatusError
from raftmq.remoting.pop_headers import Handle

HANDLE = Handle(10, 1_700_000_000_000, 30_000, 0, False, "b1", 3, 12)


def test_namespace_is_part_of_the_name():
    assert wrapped(Resource(resource_namespace="ns", name="T")) == "ns%T"
    assert wrapped(Resource(resource_namespace="ns", name="ns%T")) == "ns%T"
    assert wrapped(Resource(name="T")) == "T"
    assert resource_of("ns%T", "ns") == Resource(resource_namespace="ns", name="T")
    with pytest.raises(StatusError):
        topic_of(Resource(name="a b"))


@pytest.mark.parametrize(
    "shown, known",
    [
        ("%DLQ%g", "%DLQ%ns%g"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("TBW102", "TBW102"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ],
)
def test_internal_broker_names_have_their_derived_namespace(shown, known):
    """A dead-letter topic is called by its group, which has the namespace; system topics by none,
    as with Apache's `NamespaceUtil`."""
    assert wrapped(Resource(resource_namespace="ns", name=shown)) == known
    assert wrapped(Resource(resource_namespace="ns", name=known)) == known
    assert wrapped(Resource(name=known)) == known
    assert resource_of(known, "ns") == Resource(resource_namespace="ns", name=shown)
    assert resource_of(known, "") == Resource(name=known)


def test_receipt_handle_has_the_position_as_its_ninth_part():
    text = Receipt(HANDLE, 77).encode()
    assert text == "10 1700000000000 30000 0 0 b1 3 12 77"
    assert Receipt.decode(text) == Receipt(HANDLE, 77)
    assert Receipt.decode(HANDLE.encode()).position == -1
    assert Receipt(HANDLE._replace(retry=True), 0).stored_in("T", "g") == "%RETRY%g_T"


@pytest.mark.parametrize("text", ["", "x", "1 2 3 4 0 b 1", "1 2 3 4 0 b 1 2 x", "9" * 600])
def test_malformed_receipt_handle_is_rejected(text):
    with pytest.raises(StatusError) as refused:
        Receipt.decode(text)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE
