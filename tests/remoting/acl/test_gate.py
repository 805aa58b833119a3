"""Access: the order of the questions, and what each request code needs."""

import orjson
import pytest

from raftmq.remoting.acl import (
    Accounts,
    AclError,
    Credentials,
    Gate,
    broker_needs,
    name_server_needs,
)
from raftmq.remoting.acl.account_file import parse_accounts
from raftmq.remoting.acl.accounts import SHARED_TOPICS
from raftmq.remoting.acl.needs import BROKER, FORWARDED_FROM, SUB, Need
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import SendHeader

ACCOUNTS = parse_accounts("""
globalWhiteRemoteAddresses: [10.10.10.10]
accounts:
  - {accessKey: administrator, secretKey: sesame-open, admin: true}
  - {accessKey: bound-admin, secretKey: sesame-open, admin: true, topicPerms: [a=PUB]}
  - {accessKey: from-home, secretKey: sesame-open, whiteRemoteAddress: 10.1.1.*}
  - accessKey: somebody
    secretKey: sesame-open
    topicPerms: [pub=PUB, sub=SUB, both=PUB|SUB, none=DENY]
    groupPerms: [group=SUB, other=DENY]
  - accessKey: reads-all
    secretKey: sesame-open
    defaultTopicPerm: SUB
    defaultGroupPerm: SUB
    topicPerms: [secret=DENY]
  - accessKey: reads-shared
    secretKey: sesame-open
    defaultGroupPerm: SUB
    topicPerms: [SCHEDULE_TOPIC_XXXX=SUB, rmq_sys_wheel_timer=SUB, RMQ_SYS_TRANS_HALF_TOPIC=SUB,
                 RMQ_SYS_TRANS_OP_HALF_TOPIC=SUB, TRANS_CHECK_MAX_TIME_TOPIC=SUB,
                 RAFTMQ_SYS_OPERATOR_LOG=SUB]
""")
PEER = "10.2.2.2:4711"


def refusal(
    who,
    code,
    ext=None,
    body=b"",
    peer=PEER,
    needs=broker_needs,
    secret="sesame-open",
    accounts=ACCOUNTS,
):
    """Why the request is refused; "" if it is not."""
    command = RemotingCommand.request(code, ext and dict(ext), body)
    if who:
        Credentials(who, secret).sign(command)
    try:
        Gate(lambda: accounts, needs).check(peer, command)
    except AclError as error:
        assert error.code == 1 and "sesame-open" not in str(error)
        return str(error).removeprefix("org.apache.rocketmq.acl.common.AclException: ")
    return ""


def test_access_checks_are_made_in_apaches_order():
    send = {"b": "pub"}
    assert refusal("", 310, send) == "No accessKey is configured"
    assert refusal("", 34) == "No accessKey is configured"
    assert refusal("nobody", 310, send) == "No acl config for nobody"
    wrong = refusal("somebody", 310, send, secret="sesame-closed")
    assert wrong == "Check signature failed for accessKey=somebody"
    assert refusal("somebody", 310, send) == ""
    assert refusal("", 17, peer="10.10.10.10:1") == ""
    assert refusal("from-home", 310, send, peer="10.1.1.7:1", secret="wrong") == ""
    assert refusal("from-home", 310, send) == "No default permission for topic:pub"


def test_gate_without_accounts_admits_nobody():
    command = RemotingCommand.request(310, {"b": "pub"})
    Credentials("somebody", "sesame-open").sign(command)
    with pytest.raises(AclError, match="No acl config"):
        Gate(Accounts, broker_needs).check(PEER, command)


GROUP = {"consumerGroup": "group"}
HEARTBEAT = {
    "clientID": "c", "producerDataSet": [{"groupName": "anything"}],
    "consumerDataSet": [
        {"groupName": "group",
         "subscriptionDataSet": [{"topic": "sub"}, {"topic": "%RETRY%group"}]}
    ],
}  # fmt: skip


def beat(group="group", topic="sub"):
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic}]}
    return orjson.dumps({"clientID": "c", "consumerDataSet": [consumer]})


def locks(group="group", *topics):
    queues = [{"brokerName": "b", "queueId": 0, "topic": topic} for topic in topics]
    return orjson.dumps({"clientId": "c", "consumerGroup": group, "mqSet": queues})


REPLY = SendHeader("g", "pub", "TBW102", 4, 0, 0, 1, 0, "").to_ext(324)
SHORT_REPLY = SendHeader("g", "pub", "TBW102", 4, 0, 0, 1, 0, "").to_ext(325)
ALLOWED = [
    (310, {"b": "pub"}, b""), (310, {"b": "both"}, b""), (320, {"b": "pub"}, b""),
    (10, {"topic": "pub"}, b""), (310, {"b": "%RETRY%group"}, b""),
    (310, {"b": "RMQ_SYS_TRACE_TOPIC"}, b""), (324, REPLY, b""), (325, SHORT_REPLY, b""),
    (11, {**GROUP, "topic": "sub"}, b""), (361, {**GROUP, "topic": "both"}, b""),
    (11, {**GROUP, "topic": "%RETRY%group"}, b""), (12, {"topic": "sub"}, b""),
    (14, {**GROUP, "topic": "sub"}, b""), (15, {**GROUP, "topic": "sub"}, b""),
    (29, {"topic": "pub"}, b""), (30, {"topic": "sub"}, b""), (31, {"topic": "%RETRY%group"}, b""),
    (34, None, orjson.dumps(HEARTBEAT)), (35, {"producerGroup": "x"}, b""), (35, GROUP, b""),
    (36, {"group": "group"}, b""), (37, {"producerGroup": "x"}, b""), (37, {"topic": "pub"}, b""),
    (38, GROUP, b""), (41, None, locks("group", "sub", "%RETRY%group")), (42, None, locks()),
    (222, {"group": "group", "topic": "sub"}, b""), (307, GROUP, b""), (309, GROUP, b""),
    (28, None, b""), (208, GROUP, b""), (46, None, b"{}"), (52, None, b""), (33, None, b""),
    (46, None, b'{"group":"group","subscriptionData":{"topic":"sub"}}'),
    (370, {"topic": "pub"}, b""),
    (351, {"topic": "pub"}, b""), (202, {"topic": "sub"}, b""), (300, {"topic": "sub"}, b""),
    (321, {"topic": "sub"}, b""), (203, GROUP, b""), (343, {"group": "group"}, b""),
    (303, {"group": "group", "topic": "sub"}, b""), (345, {"group": "group", "topic": "sub"}, b""),
]  # fmt: skip

REFUSED = [
    (310, {"b": "sub"}, b"", "No permission for topic:sub"),
    (310, {"b": "none"}, b"", "No permission for topic:none"),
    (310, {"b": "unlisted"}, b"", "No default permission for topic:unlisted"),
    (320, {"b": "sub"}, b"", "No permission for topic:sub"),
    (10, {"topic": "sub"}, b"", "No permission for topic:sub"),
    (310, {"b": "%RETRY%other", "a": "group"}, b"", "No permission for group:other"),
    (310, {"b": "%DLQ%group"}, b"", "No default permission for topic:%DLQ%group"),
    (11, {**GROUP, "topic": "pub"}, b"", "No permission for topic:pub"),
    (11, {"consumerGroup": "g2", "topic": "sub"}, b"", "No default permission for group:g2"),
    (11, {**GROUP, "topic": "%RETRY%other"}, b"", "No permission for group:other"),
    (361, {**GROUP, "topic": "pub"}, b"", "No permission for topic:pub"),
    (12, {"topic": "pub"}, b"", "No permission for topic:pub"),
    (14, {**GROUP, "topic": "pub"}, b"", "No permission for topic:pub"),
    (15, {"consumerGroup": "other", "topic": "sub"}, b"", "No permission for group:other"),
    (30, {"topic": "none"}, b"", "No permission for topic:none"),
    (324, {**REPLY, "topic": "sub"}, b"", "No permission for topic:sub"),
    (325, {**SHORT_REPLY, "b": "sub"}, b"", "No permission for topic:sub"),
    (321, {"topic": "pub"}, b"", "No permission for topic:pub"),
    (321, {"topic": "sub", "consumerGroup": "other"}, b"", "No permission for group:other"),
    (370, {"topic": "sub"}, b"", "No permission for topic:sub"),
    (351, {"topic": "none"}, b"", "No permission for topic:none"),
    (202, {"topic": "none"}, b"", "No permission for topic:none"),
    (300, {"topic": "none"}, b"", "No permission for topic:none"),
    (203, {"consumerGroup": "other"}, b"", "No permission for group:other"),
    (208, {**GROUP, "topic": "pub"}, b"", "No permission for topic:pub"),
    (303, {"group": "group", "topic": "pub"}, b"", "No permission for topic:pub"),
    (343, {"group": "other"}, b"", "No permission for group:other"),
    (345, {"group": "other", "topic": "sub"}, b"", "No permission for group:other"),
    (46, None, b'{"group":"other"}', "No permission for group:other"),
    (46, None, b'{"subscriptionData":{"topic":"pub"}}', "No permission for topic:pub"),
    (
        314,
        {"srcGroup": "group", "destGroup": "group", "topic": "pub"},
        b"",
        "No permission for topic:pub",
    ),
    (34, None, beat(group="other"), "No permission for group:other"),
    (34, None, beat(topic="pub"), "No permission for topic:pub"),
    (35, {"consumerGroup": "other"}, b"", "No permission for group:other"),
    (36, {"group": "other"}, b"", "No permission for group:other"),
    (37, {"topic": "sub"}, b"", "No permission for topic:sub"),
    (38, {"consumerGroup": "other"}, b"", "No permission for group:other"),
    (41, None, locks("other"), "No permission for group:other"),
    (42, None, locks("group", "pub"), "No permission for topic:pub"),
    (222, {"group": "other", "topic": "sub"}, b"", "No permission for group:other"),
    (307, {"consumerGroup": "other"}, b"", "No permission for group:other"),
    (314, {"srcGroup": "group", "destGroup": "other"}, b"", "No permission for group:other"),
]


@pytest.mark.parametrize(("code", "ext", "body"), ALLOWED)
def test_account_may_send_its_permitted_requests(code, ext, body):
    assert refusal("somebody", code, ext, body) == ""


@pytest.mark.parametrize(("code", "ext", "body", "why"), REFUSED)
def test_account_without_a_permission_is_rejected_with_the_reason(code, ext, body, why):
    assert refusal("somebody", code, ext, body) == why


ADMIN = [code for code, find in BROKER.items() if find is None]
ADMIN += [27, 316, 323, 908, 999, 30_099]  # not served, or not yet: no code is forgotten


@pytest.mark.parametrize("code", ADMIN)
def test_admin_requests_need_an_admin_account(code):
    why = f"Need admin permission for request code={code}, but accessKey=somebody is not"
    assert refusal("somebody", code) == why
    assert refusal("administrator", code) == "" == refusal("bound-admin", code)


def test_permission_lists_bind_an_admin_as_in_apache():
    assert refusal("administrator", 310, {"b": "anything"}) == ""
    assert refusal("bound-admin", 310, {"b": "a"}) == ""
    assert refusal("bound-admin", 310, {"b": "b"}) == "No default permission for topic:b"


def test_forwarded_reply_needs_an_admin_account():
    forwarded = {**REPLY, FORWARDED_FROM: "1.2.3.4:5"}
    assert "Need admin" in refusal("somebody", 324, forwarded)
    assert refusal("administrator", 324, forwarded) == ""


DEFAULT = "No default permission for topic:"


@pytest.mark.parametrize(("perms", "read", "sent"), [
    ("defaultTopicPerm: PUB|SUB", DEFAULT, DEFAULT),
    ("defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB, groupPerms: [g=DENY]", DEFAULT, DEFAULT),
    ("defaultTopicPerm: DENY, groupPerms: [g=SUB]", "", DEFAULT),
    ("defaultTopicPerm: DENY, defaultGroupPerm: ANY", "", DEFAULT),
    ("topicPerms: ['%DLQ%g=SUB']", "", "No permission for topic:"),
    ("topicPerms: ['%DLQ%g=PUB']", "No permission for topic:", ""),
    ("groupPerms: [g=SUB], topicPerms: ['%DLQ%g=DENY']", *["No permission for topic:"] * 2),
    ("admin: true", "", ""),
])  # fmt: skip
def test_dead_letters_are_readable_by_their_group_and_not_writable(perms, read, sent):
    accounts = parse_accounts(
        f"accounts: [{{accessKey: somebody, secretKey: sesame-open, {perms}}}]"
    )
    topic = "%DLQ%g"
    for why, code, field in ((read, 12, "topic"), (sent, 10, "topic"), (sent, 310, "b")):
        reported = refusal("somebody", code, {field: topic}, accounts=accounts)
        assert reported == (why and why + topic), code


def test_default_permission_for_replies_permits_only_sending():
    accounts = parse_accounts(
        "accounts: [{accessKey: somebody, secretKey: sesame-open, defaultTopicPerm: PUB|SUB,"
        " topicPerms: [listed_REPLY_TOPIC=SUB]}]"
    )
    reply = SendHeader("g", "c_REPLY_TOPIC", "TBW102", 4, 0, 0, 0, 0, "")
    for code in (324, 325):
        assert refusal("somebody", code, reply.to_ext(code), accounts=accounts) == ""
    why = "No default permission for topic:c_REPLY_TOPIC"
    assert refusal("somebody", 12, {"topic": "c_REPLY_TOPIC"}, accounts=accounts) == why
    assert refusal("somebody", 12, {"topic": "listed_REPLY_TOPIC"}, accounts=accounts) == ""


@pytest.mark.parametrize("topic", sorted(SHARED_TOPICS))
def test_default_permission_does_not_cover_shared_internal_topics(topic):
    for code in (11, 12, 30, 321):
        ext = {"consumerGroup": "g", "topic": topic}
        why = f"No default permission for topic:{topic}"
        assert refusal("reads-all", code, ext) == why
        assert refusal("reads-shared", code, ext) == ""


def test_gate_permits_uses_the_accounts_of_check():
    gate = Gate(lambda: ACCOUNTS, broker_needs)
    requested = [(PEER, "somebody"), (PEER, "administrator"), (PEER, "bound-admin"), (PEER, ""),
             (PEER, "nobody"), ("10.10.10.10:1", ""), ("10.1.1.7:1", "from-home"),
             (PEER, "from-home")]  # fmt: skip
    sub, group = Need(False, "sub", SUB), Need(True, "group", SUB)
    for needs, result in (
        ([sub, group], "yynnnyyn"), ([Need(False, "pub", SUB)], "nynnnyyn"), ([], "yyynnyyy"),
    ):  # fmt: skip
        assert "".join("ny"[gate.permits(*who, needs)] for who in requested) == result
    assert "".join("ny"[gate.is_unbound(*who)] for who in requested) == "nynnnyyn"


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [(310, {"a": "g"}, b""), (310, None, b""), (11, GROUP, b""), (34, None, b""), (34, None, b"[]"),
     (34, None, b'{"consumerDataSet":[7]}'), (34, None, b'{"consumerDataSet":7}'),
     (41, None, b'{"consumerGroup":"group","mqSet":{"a":1}}')],
)  # fmt: skip
def test_request_that_cannot_be_judged_is_rejected(code, ext, body):
    assert "cannot be judged" in refusal("somebody", code, ext, body)


def test_name_server_changes_need_an_admin_account():
    for code in (100, 102, 103, 104, 205, 216, 217, 318, 319, 322, 327, 904):
        assert "Need admin" in refusal("somebody", code, needs=name_server_needs)
        assert refusal("administrator", code, needs=name_server_needs) == ""
    assert refusal("somebody", 105, {"topic": "secret"}, needs=name_server_needs) == ""
