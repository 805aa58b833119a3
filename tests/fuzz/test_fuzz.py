"""Some thousand hostile inputs to a broker and a name server; more: `python -m tests.fuzz`."""

from remoting.codec import FrameReader, RemotingProtocolError, decode_command
from remoting.errors import RemotingError
from tests.fuzz.cases import Maker, field_names
from tests.fuzz.victims import BrokerVictim, NameServerVictim, Surprises

CASES = 1_500
ALL_CODES = (10, 11, 12, 34, 36, 37, 41, 103, 105, 310, 320, 325)


def test_the_fields_that_are_tried_are_those_that_are_read():
    assert {"b", "topic", "queueId", "consumerGroup", "commitOrRollback"} <= set(field_names())


def test_frames_of_any_bytes_are_read_or_refused():
    """Only protocol errors come out of the codec, however the bytes arrive."""
    decoded = refused = 0
    for seed in range(20):
        maker = Maker(seed, ALL_CODES)
        for _ in range(100):
            reader = FrameReader()
            data = maker.case().data
            step = maker.rng.choice((1, 7, 4096, len(data) or 1)) if len(data) < 5_000 else 4096
            try:
                for at in range(0, len(data), step):
                    reader.receive_data(data[at : at + step])
                    while (raw := reader.next_frame()) is not None:
                        decode_command(raw)
                        decoded += 1
            except (RemotingProtocolError, RemotingError):
                refused += 1
    assert decoded > 1_000
    assert refused > 50


async def test_a_broker_goes_on_serving_the_others(tmp_path):
    victim = BrokerVictim(tmp_path)
    with Surprises() as surprises:
        await _feed_broker(victim)
    assert surprises == []


async def _feed_broker(victim):
    async with victim.group() as group:
        await victim.begin(group)
        maker = Maker(7, victim.codes)
        try:
            for number in range(CASES):
                await victim.feed(maker.case())
                if number % 100 == 99:
                    await victim.others()
            await victim.read_back()
            assert await victim.starts_again() > CASES // 100  # some of what it was fed was right
        finally:
            await victim.close()


async def test_a_name_server_goes_on_serving_the_others():
    victim = NameServerVictim()
    with Surprises() as surprises:
        await _feed_name_server(victim)
    assert surprises == []


async def _feed_name_server(victim):
    async with victim.server_() as server:
        await victim.begin(server)
        maker = Maker(8, victim.codes)
        try:
            for number in range(CASES):
                await victim.feed(maker.case())
                if number % 100 == 99:
                    await victim.others()
        finally:
            await victim.close()
