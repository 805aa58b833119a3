"""Strangers' registrations: what they may register, how long it lasts, and that signed names
are not theirs. The table
alone first, then a real name server with real brokers' registrars, over loopback."""

import asyncio
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, cast

import pytest

from raftmq.broker.registration import Identity, Registrar
from raftmq.client.admin import Admin
from raftmq.client.errors import BrokerRefused
from raftmq.client.instance import InstanceConfig
from raftmq.namesrv import registrations
from raftmq.namesrv.routes import (
    CLAIM_MS,
    EXPIRY_MS,
    Registration,
    RegistrationRefused,
    RouteLimits,
    RouteTable,
)
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.registration import (
    TERM_MAX,
    BrokerHeader,
    DataVersion,
    RegisterBrokerHeader,
    TopicConfig,
    body_crc,
    encode_register_body,
)
from raftmq.remoting.registration_proof import RegistrationSigner, nonce_of
from tests.namesrv.test_server import Caller
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
KEY = "a-key-of-the-cluster-alone"
V1 = DataVersion(1, 0, 5)
TOPICS = [TopicConfig("T", 4, 4, 6)]
LEADER, FOLLOWER, STRANGER = "n0:1", "n1:1", "stranger:1"


def claim(address, broker_id=0, term=5, **more):
    fields: dict[str, Any] = {"cluster": "c", "broker_name": "g", "version": V1, "topics": TOPICS}
    fields |= {"channel": f"of {address}", "term": term}
    return Registration(address=address, broker_id=broker_id, **(fields | more))


def addresses(table):
    group = table.group("g")
    assert group is not None
    return group.addresses


def refused(table, wanted, now_ms=0):
    """Why; "" if it was taken."""
    try:
        table.register(wanted, now_ms)
    except RegistrationRefused as error:
        return str(error)
    return ""


# ---- how long a claim lasts ------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["closed", "unregistered", "silent", "moved"])
def test_unsigned_claim_ends_a_period_after_its_broker_is_gone(ends):
    table = RouteTable()
    table.register(claim(LEADER), 0)
    table.register(claim(FOLLOWER, 1), 0)
    table.register(claim(STRANGER, term=TERM_MAX), 1_000)
    assert refused(table, claim(LEADER, term=6), 2_000).startswith("[STALE_TERM]")
    if ends == "closed":
        table.channel_closed("of " + STRANGER, 10_000)
    elif ends == "unregistered":
        table.unregister(STRANGER, "g", 10_000)
    elif ends == "moved":
        table.register(claim(STRANGER, broker_name="elsewhere"), 10_000)
    else:
        table.refresh(LEADER, "g", "of " + LEADER, 10_000, 600_000)
        table.refresh(FOLLOWER, "g", "of " + FOLLOWER, 10_000, 600_000)
        table.refresh(STRANGER, "g", "of " + STRANGER, 8_999, 1_000)
        table.expire(10_000)
    # A deposed leader's claim is refused for so long, and not for longer.
    assert refused(table, claim(LEADER, term=6), 10_000 + CLAIM_MS - 1)
    assert refused(table, claim(LEADER, term=6), 10_000 + CLAIM_MS) == ""
    assert addresses(table) == {0: LEADER, 1: FOLLOWER}


def test_unsigned_claim_lasts_while_its_broker_is_registered():
    table = RouteTable()
    table.register(claim(FOLLOWER, 1), 0)
    table.register(claim(LEADER, term=7), 0)
    table.expire(100_000)
    assert refused(table, claim(FOLLOWER, term=6), 100_000).startswith("[STALE_TERM]")


# ---- names that are held ----------------------------------------------------------------------


def held():
    table = RouteTable()
    table.register(claim(LEADER, signed=True), 0)
    table.register(claim(FOLLOWER, 1, signed=True), 0)
    return table


def picture(table):
    group = table.group("g")
    return dict(group.addresses), dict(table.queues("T") or {}), group.term, table.broker_count


@pytest.mark.parametrize("seed", range(100))
def test_unsigned_requests_do_not_change_a_signed_name(seed):
    rng = random.Random(seed)
    table = held()
    before, now_ms = picture(table), 0
    for _ in range(30):
        now_ms += rng.randrange(1_000)
        address = rng.choice([LEADER, FOLLOWER, STRANGER])
        name = rng.choice(["g", "g", "x"])
        deed = rng.randrange(7)
        if deed <= 2:
            expected = claim(
                address, rng.choice([0, 0, 1, 5]), rng.choice([0, 5, 6, TERM_MAX]),
                broker_name=name, topics=rng.choice([None, [], [TopicConfig("T", 1, 1, 0)]]),
                channel="stranger",
            )  # fmt: skip
            why = refused(table, expected, now_ms)
            assert why.startswith("[SIGNED]") or (name == "x" and address == STRANGER)
            if not why:
                assert table.unregister(STRANGER, "x", now_ms)
        elif deed == 3:
            with pytest.raises(RegistrationRefused, match="SIGNED"):
                table.unregister(rng.choice([LEADER, FOLLOWER]), "g", now_ms)
        elif deed == 4:
            assert not table.refresh(address, name, "stranger", now_ms, 1_000)
        elif deed == 5:
            with pytest.raises(RegistrationRefused, match="SIGNED"):
                table.set_writable("g", rng.random() < 0.5)
            with pytest.raises(RegistrationRefused, match="SIGNED"):
                table.put_queues("g", TopicConfig("T", 1, 1, 6))
        else:
            assert table.delete_topic("T") == 0
        table.channel_closed("stranger", now_ms)
        assert picture(table) == before


def test_signed_name_yields_only_to_a_signed_claim_of_a_higher_term():
    table = held()
    for term in (0, 4, 5):
        why = refused(table, claim("n2:1", term=term, signed=True))
        assert why.startswith("[STALE_TERM]"), term
    assert refused(table, claim("n2:1", term=6, signed=True)) == ""
    assert table.group("g").addresses[0] == "n2:1"


def test_signed_claim_replaces_unsigned_brokers_of_its_name():
    table = RouteTable()
    fake = [TopicConfig("T", 1, 1, 6), TopicConfig("Fake", 1, 1, 6)]
    table.register(claim(STRANGER, term=TERM_MAX, topics=fake, version=V1), 0)
    table.register(claim("stranger:2", 3, term=TERM_MAX), 0)
    table.register(claim(LEADER, 1, term=TERM_MAX, channel="stranger"), 0)  # under its address
    assert table.wants_topics("g", LEADER, 0, V1, signed=True)
    delta = claim(LEADER, term=5, signed=True, delta_base=V1, version=DataVersion(2))
    assert table.register(delta, 1).need_full, "what strangers told is no base"
    table.register(claim(LEADER, term=5, signed=True), 1)
    assert addresses(table) == {0: LEADER}
    assert set(table.topics()) == {"T"} and (table.queues("T") or {})["g"].write_queue_count == 4
    assert table.broker_count == 1


def test_unsigned_brokers_keep_their_name_until_a_signed_claim():
    """A rolling upgrade: the followers first, then the leader."""
    table = RouteTable()
    table.register(claim(LEADER), 0)
    assert refused(table, claim(FOLLOWER, 1, signed=True)) == ""
    assert refused(table, claim(LEADER)) == "" and refused(table, claim("n2:1", 2)) == ""
    assert refused(table, claim(FOLLOWER, term=6, signed=True)) == ""
    assert refused(table, claim(LEADER, 1)).startswith("[SIGNED]")
    assert refused(table, claim(LEADER, 1, term=6, signed=True)) == ""
    assert addresses(table) == {0: FOLLOWER, 1: LEADER}


def test_signed_claim_replaces_any_unsigned_group_id():
    """An id proves nothing, and anybody may say one."""
    table = RouteTable()
    own, made_up = "0a" * 16, "0b" * 16
    assert refused(table, claim(STRANGER, 1, group_id=made_up)) == ""
    why = refused(table, claim(FOLLOWER, 2, group_id=own, signed=True))
    assert why.startswith("[OTHER_GROUP]")
    assert refused(table, claim(LEADER, any_group=True, signed=True)) == ""  # of a version before
    assert refused(table, claim(FOLLOWER, 2, group_id=own, signed=True)) == ""
    assert addresses(table) == {0: LEADER, 2: FOLLOWER}
    why = refused(table, claim(STRANGER, 1, term=6, group_id=made_up, signed=True))
    assert why.startswith("[OTHER_GROUP]"), "of another group that has the same key"


def test_signed_name_is_free_after_its_signed_brokers_are_gone():
    table = held()
    table.channel_closed("of " + LEADER, 1_000)
    later = 1_000 + 10 * CLAIM_MS
    table.refresh(FOLLOWER, "g", "of " + FOLLOWER, later, signed=True)
    assert refused(table, claim(STRANGER), later).startswith("[SIGNED]")
    table.channel_closed("of " + FOLLOWER, later)
    assert refused(table, claim(STRANGER), later) == ""


def test_unsigned_registrations_cannot_fill_the_table_for_signed_ones():
    table = RouteTable(RouteLimits(brokers_max=3, topics_max=5, topic_entries_max=15))
    many = [TopicConfig(f"t{n}", 1, 1, 6) for n in range(5)]
    for number in range(3):
        table.register(claim(f"x{number}:1", broker_name=f"x{number}", topics=many), 0)
    assert refused(table, claim("x3:1", broker_name="x3")).startswith("[TABLE_FULL]")
    own = [TopicConfig(f"own{n}", 1, 1, 6) for n in range(5)]
    assert refused(table, claim(LEADER, signed=True, topics=own)) == ""
    more = [*own, TopicConfig("one-more", 1, 1, 6)]
    assert refused(table, claim(LEADER, signed=True, topics=more)).startswith("[TABLE_FULL]")
    only = RouteTable(signed_only=True)
    assert refused(only, claim(LEADER)).startswith("[SIGNED]")
    assert refused(only, claim(LEADER, signed=True)) == ""


def test_signed_brokers_are_counted_without_a_full_scan():
    table = held()
    assert table.signed_broker_count == 2
    table.register(claim(LEADER, signed=True), 1)  # again
    table.register(claim(STRANGER, broker_name="x"), 1)
    table.register(claim("y:1", broker_name="y"), 1)
    table.register(claim("y:1", broker_name="y", signed=True), 1)  # it has a key now
    assert (table.signed_broker_count, table.broker_count) == (3, 4)
    table.unregister(FOLLOWER, "g", 1, signed=True)
    table.unregister(STRANGER, "x", 1)
    assert table.signed_broker_count == 2
    table.expire(10 * EXPIRY_MS)
    assert table.signed_broker_count == table.broker_count == 0


def test_broker_names_per_connection_are_limited():
    table = RouteTable()
    answers = [
        refused(table, claim(f"n{n}:1", broker_name=f"g{n}", channel="one")) for n in range(70)
    ]
    assert answers.count("") == 64 and answers[-1].startswith("[TABLE_FULL]")
    assert refused(table, claim("n0:1", broker_name="g0", channel="one")) == ""


# ---- a real name server -----------------------------------------------------------------------


@pytest.fixture
async def server(tmp_path):
    path = tmp_path / "registration.key"
    path.write_text(f"an-older-key-of-it\n{KEY}\n")
    path.chmod(0o600)
    config = NameServerConfig(
        "127.0.0.1", 0, http_enable=False, registration_key_file=str(path),
        registrations_must_be_signed=False,
    )  # fmt: skip
    async with NameServer(config) as running:
        yield running


class Topics:
    version = V1

    def all(self):
        return TOPICS

    def since(self, base):
        return []


def registrar(server, keys, address=LEADER, term=5, broker_id=0):
    return Registrar(
        [server.address], cluster="c", broker_name="g", address=address,
        ha_address=lambda: "", identity=lambda: Identity(broker_id, term, "leader"),
        topics=cast(Any, Topics()), on_master=lambda *_: None,
        needs_master=lambda: False, period_ms=60_000, timeout_ms=60_000, signing_keys=keys,
    )  # fmt: skip


class Stranger(Caller):
    """It may say whatever it likes, and may have heard what others said."""

    async def signer(self, key):
        answer = await self.ask(RequestCode.REGISTRATION_NONCE)
        nonce = nonce_of(answer)
        assert nonce is not None
        return RegistrationSigner(key.encode(), nonce)

    async def say(self, header, signer=None, code=RequestCode.REGISTER_BROKER, body=b""):
        command = RemotingCommand.request(code, header.to_ext(), body)
        if signer is not None:
            signer.sign(command)
        return await self.remoting.invoke(self.address, command, 60_000), command


HEADER = RegisterBrokerHeader("g", STRANGER, "c", "", 0, raft_term=TERM_MAX)


async def test_signed_name_rejects_unsigned_and_wrongly_signed_brokers(server):
    own = registrar(server, [KEY.encode()])
    own.start()
    await until(lambda: server.address in own.registered)
    before = picture(server.table)
    assert server.table.group("g").signed
    stranger = Stranger(server.address)
    wrong = await stranger.signer("a-key-that-is-another")
    for signer, text in ((None, "[SIGNED]"), (wrong, "[SIGNATURE]")):
        for address in (STRANGER, LEADER):
            answer, _ = await stranger.say(HEADER._replace(broker_address=address), signer)
            assert answer.code == 16 and answer.remark.startswith(text)
        gone = BrokerHeader("g", LEADER, "c", 0)
        answer, _ = await stranger.say(gone, signer, RequestCode.UNREGISTER_BROKER)
        assert answer.code == 16 and answer.remark.startswith(text)
    for code in (RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER):
        assert (await stranger.ask(code, {"brokerName": "g"})).code == 16
    await stranger.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
    await stranger.ask(RequestCode.BROKER_HEARTBEAT, gone.to_ext())
    await stranger.ask(RequestCode.QUERY_DATA_VERSION, gone.to_ext())
    await stranger.remoting.close()
    await until(lambda: len(server.server.connections) == 1)
    assert picture(server.table) == before
    own.trigger()  # the same connection, the next counter
    await asyncio.sleep(0)
    await own.stop()  # and it unregisters itself
    await until(lambda: server.table.broker_count == 0)


async def test_unsigned_registration_is_rejected_by_its_header(tmp_path, monkeypatch):
    """With a key, by default: neither what is not signed nor what cannot be signed right costs the
    work of its body; a wrong signature costs a hash of it."""
    path = tmp_path / "registration.key"
    path.write_text(KEY)
    path.chmod(0o600)
    config = NameServerConfig("127.0.0.1", 0, http_enable=False, registration_key_file=str(path))
    hashed = []

    def counted(body):
        hashed.append(len(body))
        return body_crc(body)

    def read(*_):
        raise AssertionError("its body was read")

    async with NameServer(config) as one:
        monkeypatch.setattr("raftmq.namesrv.registrations.body_crc", counted)
        monkeypatch.setattr(registrations, "reading_register_body", read)
        monkeypatch.setattr(registrations, "peek_data_version", read)
        stranger = Stranger(one.address)
        body = bytes(17 << 20)
        answer, _ = await stranger.say(HEADER, body=body)
        assert answer.code == 16 and answer.remark.startswith("[SIGNED]")
        wrong = RegistrationSigner(KEY.encode(), bytes(16))
        answer, _ = await stranger.say(HEADER, wrong, body=body)  # it asked for no nonce
        assert answer.code == 16 and answer.remark.startswith("[SIGNATURE]")
        assert hashed == []
        wrong = await stranger.signer("a-key-that-is-another")
        answer, _ = await stranger.say(HEADER, wrong, body=body)
        assert answer.code == 16 and answer.remark.startswith("[SIGNATURE]")
        assert hashed == [len(body)]
        answer, _ = await stranger.say(HEADER, body=bytes(config.registration_bytes_max + 1))
        assert answer.remark.startswith("[SIGNED]")
        monkeypatch.undo()
        large = encode_register_body(
            V1, [TopicConfig(f"t{n}", 1, 1, 6) for n in range(3_000)], False
        )
        own = RegisterBrokerHeader("g", LEADER, "c", "", 0, raft_term=5)
        answer, _ = await stranger.say(own, await stranger.signer(KEY), body=large)
        assert (answer.code, one.table.topic_count) == (0, 3_000)
        await stranger.remoting.close()


async def test_replayed_signed_registration_is_rejected(server):
    honest, thief = Stranger(server.address), Stranger(server.address)
    header = RegisterBrokerHeader("g", LEADER, "c", "", 0, raft_term=5)
    answer, recorded = await honest.say(header, await honest.signer(KEY))
    assert answer.code == 0
    own = await thief.signer("a-key-that-is-another")  # it has a nonce, too
    del own
    for sender in (thief, honest):
        command = RemotingCommand.request(recorded.code, dict(recorded.ext), recorded.body)
        answer = await sender.remoting.invoke(server.address, command, 60_000)
        assert (answer.remark or "").startswith("[SIGNATURE]")
    assert server.processor.proofs.wrong_count == 2
    for one in (honest, thief):
        await one.remoting.close()
    await until(lambda: not server.processor.proofs._challenges)


async def test_broker_with_an_unknown_key_registers_while_no_broker_is_signed(server):
    old = registrar(server, [])
    old.start()
    await until(lambda: server.address in old.registered)
    new = registrar(server, [b"an-older-key-of-it"], "n9:1", 6)
    new.start()
    await until(lambda: server.address in new.registered)
    assert addresses(server.table) == {0: "n9:1"}
    await old.stop()
    await new.stop()


async def test_name_server_without_a_key_gets_an_unsigned_registration():
    async with NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as plain:
        own = registrar(plain, [KEY.encode()])
        own.start()
        await until(lambda: plain.address in own.registered)
        there = plain.table.group("g")
        assert there is not None and not there.signed
        await own.stop()
        # One of before does not know the request at all.
        old = NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False))
        async with old:
            del cast(Any, old).server._handlers[int(RequestCode.REGISTRATION_NONCE)]
            own = registrar(old, [KEY.encode()])
            own.start()
            await until(lambda: old.address in own.registered)
            await own.stop()


async def test_registration_with_a_wrong_key_is_retried_and_reported(server, caplog):
    wrong = registrar(server, [b"a-key-that-is-another"])
    wrong.start()
    await until(lambda: server.processor.proofs.wrong_count >= 2)
    assert server.table.broker_count == 0
    assert "[SIGNATURE]" in caplog.text and "a-key-that" not in caplog.text
    await wrong.stop()


async def test_tool_with_the_key_changes_routes_of_signed_brokers(server):
    own = registrar(server, [KEY.encode()])
    own.start()
    await until(lambda: server.address in own.registered)
    for key, taken in ((b"", False), (b"a-key-that-is-another", False), (KEY.encode(), True)):
        config = InstanceConfig(registration_key=key)
        async with Admin(server.address, instance_config=config) as admin:
            if taken:
                assert await admin.name_server.set_write_perm("g", False) == {server.address: 1}
                assert server.table.queues("T")["g"].perm == 4
                assert await admin.name_server.set_write_perm("g", True) == {server.address: 1}
            else:
                with pytest.raises(BrokerRefused, match="SIGN"):
                    await admin.name_server.set_write_perm("g", False)
            assert server.table.queues("T")["g"].perm == 6
    await own.stop()


# ---- what nobody can be called ------------------------------------------------------------------


def made_up_text(rng):
    kinds = ["\r\n\r\n", "a\nb", "a b", "\x00", "g\x7f", "\u2028", "é", "x" * 256, "<b>",
             "a\tb", "/", "\x1b[2J", '"', ";", ","]  # fmt: skip
    return rng.choice(kinds) + rng.choice(["", "x", "\n"])


@pytest.mark.parametrize("seed", range(8))
async def test_malformed_registrations_leave_no_entry(server, seed):
    rng = random.Random(seed)
    stranger = Stranger(server.address)
    good = RegisterBrokerHeader("g", STRANGER, "c", "h:1", 0, raft_term=5, raft_role="leader")
    names = ["brokerName", "clusterName", "brokerAddr", "haServerAddr", "raftRole", "httpAddr",
             "raftGroupId"]  # fmt: skip
    for _ in range(40):
        ext, body, compressed = good.to_ext(), b"", rng.random() < 0.5
        kind = rng.randrange(4)
        if kind == 0:
            ext[rng.choice(names)] = made_up_text(rng)
        elif kind == 1:
            name, text = rng.choice([("raftOwnId", "-1"), ("raftTerm", str(TERM_MAX + 1))])
            ext[name] = rng.choice([text, "-1", str((1 << 63) - 1), str(1 << 64), "x"])
        elif kind == 2:
            numbers = [-1, 65_537, 1 << 31]
            topic = rng.choice([
                TopicConfig(made_up_text(rng), 1, 1, 6),
                TopicConfig("T", rng.choice(numbers), 1, 6),
                TopicConfig("T", 1, rng.choice(numbers), 6),
                TopicConfig("T", 1, 1, rng.choice([-1, 16])),
            ])  # fmt: skip
            body = encode_register_body(V1, [topic], compressed)
        else:
            compressed = True
            many = b"[" + b",".join([b'"h:1"'] * 101) + b"]"
            lists = rng.choice([many, b'["\\n"]', b"{}", b"[7]"])
            head = struct.pack(">i", 2) + b"{}"
            twice = (struct.pack(">i", 9) + b"T 1 1 6 S") * 2
            body = zlib.compress(rng.choice([
                head + struct.pack(">i", 0) + struct.pack(">i", len(lists)) + lists,
                head + struct.pack(">i", 2) + twice,
                head + struct.pack(">i", 1_000_001),
                head + struct.pack(">i", -1),
            ]))  # fmt: skip
        ext["compressed"] = "true" if compressed else "false"
        answer = await stranger.ask(RequestCode.REGISTER_BROKER, ext, body)
        assert answer.code != 0, (ext, body)
    assert server.table.broker_count == server.table.topic_count == 0
    assert (await stranger.say(good))[0].code == 0
    await stranger.remoting.close()


# ---- bodies that unpack to more than there is room for ----------------------------------

BOMB = """
import asyncio, resource, struct, sys, zlib
from raftmq.namesrv.server import NameServer, NameServerConfig
from tests.namesrv.test_claims import Stranger, HEADER

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

def packed(line, total):
    made = zlib.compressobj(9)
    head = struct.pack(">i", 2) + b"{}" + struct.pack(">i", total // len(line))
    parts = [made.compress(head)]
    block = line * (1048576 // len(line))
    parts += [made.compress(block) for _ in range(total // len(block))]
    return b"".join(parts) + made.flush()

async def main():
    config = NameServerConfig("127.0.0.1", 0, http_enable=False)
    async with NameServer(config) as server:
        stranger = Stranger(server.address)
        header = HEADER._replace(raft_term=1, compressed=True)
        await stranger.say(header)
        topic = struct.pack(">i", 9) + b"T 1 1 6 S"
        bodies = [packed(bytes(1), 250 << 20), packed(topic, 250 << 20)]
        before = peak()
        for body in bodies:
            assert 200_000 < len(body) < 1_500_000, len(body)
            answer, _ = await stranger.say(header, body=body)
            assert answer.code != 0, answer
            print(answer.remark)
        print(peak() - before)
        assert server.table.topic_count == 0
        await stranger.remoting.close()

asyncio.run(main())
"""


def test_registration_that_inflates_to_250_mb_costs_little():
    ran = subprocess.run(
        [sys.executable, "-c", BOMB], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    *remarks, grown_mb = ran.stdout.splitlines()
    assert len(remarks) == 2
    assert all("[TOO_LARGE]" in one and "registrationBytesMax" in one for one in remarks)
    assert int(grown_mb) <= 32, f"{grown_mb} MB more"
