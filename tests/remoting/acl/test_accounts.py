"""plain_acl.yml: what it says, what is refused, and that no refusal holds a secret."""

import pytest

from raftmq.remoting.acl import Account, Accounts, AclError, Permission, account_from_config
from raftmq.remoting.acl import accounts as module
from raftmq.remoting.acl.account_file import accounts_text, parse_accounts, parse_credentials

# Apache's own example, more or less.
PLAIN_ACL = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
  - accessKey: rocketmq2
    secretKey: 00345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
dataVersion:
  - counter: 7
    timestamp: 1700000000000
"""


def test_apaches_plain_acl_file_is_parsed():
    accounts = parse_accounts(PLAIN_ACL)
    assert accounts.white_addresses == ("10.10.103.*", "192.168.0.*")
    assert accounts.trusts("10.10.103.4") and not accounts.trusts("10.10.104.4")
    assert (accounts.counter, accounts.timestamp_ms) == (7, 1700000000000)
    first, second = accounts.by_key["RocketMQ"], accounts.by_key["rocketmq2"]
    assert first.secret_key == "12345678" and second.secret_key == "00345678"
    assert [first.on_topic(t) for t in ("topicA", "topicB", "topicC", "topicD")] == [
        Permission.DENY, Permission.ANY, Permission.SUB, Permission.DENY,
    ]  # fmt: skip
    assert [first.on_group(g) for g in ("groupA", "groupB", "groupC")] == [
        Permission.DENY, Permission.ANY, Permission.SUB,
    ]  # fmt: skip
    assert second.is_unbound and not first.is_unbound
    assert parse_accounts(accounts_text(accounts)) == accounts


@pytest.mark.parametrize("text", ["", "# nothing\n", "accounts:\n"])
def test_empty_acl_file_has_no_accounts(text):
    assert parse_accounts(text) == Accounts()


@pytest.mark.parametrize(
    "text",
    ["- a", "accounts: 7", "accounts: [7]", "globalWhiteRemoteAddresses: x",
     "globalWhiteRemoteAddresses: [10.300.1.1]",
     "accounts: [{accessKey: short, secretKey: sesame-open}]",
     "accounts: [{accessKey: long-enough, secretKey: short}]",
     "accounts: [{accessKey: long-enough}]",
     "accounts: [{accessKey: long-enough, secretKey: sesame-open, topicPerms: [a]}]",
     "accounts: [{accessKey: long-enough, secretKey: sesame-open, topicPerms: [a=PUP]}]",
     "accounts: [{accessKey: long-enough, secretKey: sesame-open, topicPerms: a=PUB}]",
     "accounts: [{accessKey: long-enough, secretKey: sesame-open, groupPerms: [a=b=SUB]}]",
     "accounts: [{accessKey: long-enough, secretKey: sesame-open, defaultTopicPerm: MAYBE}]",
     "accounts: [{accessKey: long-enough, secretKey: sesame-open, whiteRemoteAddress: here}]",
     "accounts: [&a {accessKey: long-enough, secretKey: sesame-open}, *a]",
     "accounts: [{accessKey: long-enough, secretKey: sesame-open",
     "accounts: !!python/object:os.system []", "dataVersion: [{counter: x}]"],
)  # fmt: skip
def test_malformed_acl_file_is_rejected_without_the_secret(text):
    with pytest.raises(AclError) as raised:
        if parse_accounts(text) == Accounts():  # an unknown tag is nothing but a list
            raise AclError("nobody")
    assert "sesame-open" not in str(raised.value)
    assert str(raised.value).startswith("org.apache.rocketmq.acl.common.AclException: ")


def test_account_change_keeps_unnamed_fields():
    before = account_from_config(
        {"accessKey": "somebody", "secretKey": "sesame-open", "whiteRemoteAddress": "10.1.1.1",
         "topicPerms": ["a=PUB"], "admin": "true"}
    )  # fmt: skip
    after = account_from_config({"accessKey": "somebody", "defaultGroupPerm": "SUB"}, before)
    assert (after.secret_key, after.topic_perms, after.admin) == ("sesame-open", ("a=PUB",), True)
    assert (after.white_remote_address, after.default_group_perm) == ("10.1.1.1", "SUB")
    bare = account_from_config(
        {"accessKey": "somebody", "whiteRemoteAddress": "", "topicPerms": [], "admin": False,
         "secretKey": "******"}, after,
    )  # fmt: skip
    assert (bare.white_remote_address, bare.topic_perms, bare.admin) == ("", (), False)
    assert bare.secret_key == "sesame-open"


def test_account_changes_return_new_tables_and_count():
    one = Account("somebody", "sesame-open")
    first = Accounts().with_account(one, 5)
    assert first.by_key == {"somebody": one} and Accounts().by_key == {}
    second = first.with_white_addresses(["10.1.1.1"], 6)
    assert second.trusts("10.1.1.1") and (second.counter, second.timestamp_ms) == (2, 6)
    assert second.without("somebody", 7).by_key == {}
    with pytest.raises(AclError, match="No acl config for nobody"):
        second.without("nobody", 7)


def test_accounts_permissions_and_white_addresses_are_limited(monkeypatch):
    monkeypatch.setattr(module, "ACCOUNTS_MAX", 1)
    monkeypatch.setattr(module, "PERMISSIONS_MAX", 1)
    monkeypatch.setattr(module, "WHITE_ADDRESSES_MAX", 1)
    monkeypatch.setattr(module, "HOSTS_REMEMBERED_MAX", 1)
    one = Accounts().with_account(Account("somebody", "sesame-open", topic_perms=("a=PUB",)), 1)
    with pytest.raises(AclError, match="more than 1 accounts"):
        one.with_account(Account("somebody else", "sesame-open"), 1)
    with pytest.raises(AclError, match="more than 1 permissions of topics"):
        Account("somebody", "sesame-open", topic_perms=("a=PUB", "b=PUB"))
    white = one.with_white_addresses(["10.1.1.*"], 1)
    assert [white.trusts(h) for h in ("10.1.1.1", "10.1.1.2", "10.2.2.2")] == [True, True, False]
    with pytest.raises(AclError, match="more than 1 white addresses"):
        one.with_white_addresses(["10.1.1.1", "10.1.1.2"], 1)


def test_tools_yml_credentials_are_parsed():
    assert parse_credentials("accessKey: rocketmq2\nsecretKey: 12345678\n").secret_key == "12345678"
    assert parse_credentials("{accessKey: a, secretKey: b, securityToken: c}").security_token == "c"
    for text in ("accessKey: rocketmq2", "", "[1]", "a: ["):
        with pytest.raises(AclError):
            parse_credentials(text)
