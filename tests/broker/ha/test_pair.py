"""Master and slaves end to end over loopback."""


from remoting.codes import ResponseCode
from remoting.headers import SendResponseHeader
from tests.broker.ha.pair import Classic, log_bytes


async def test_what_the_master_stores_the_slave_has_byte_for_byte(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        assert (await pair.create_topic(pair.master, "T")).code == 0
        for number in range(40):  # 40 times 20 kB: over three segments
            response = await pair.send(pair.master, "T", b"%d" % number * 10_000, queue=number % 4)
            assert response.code == ResponseCode.SUCCESS
            assert SendResponseHeader.parse(response.ext).queue_offset == number // 4
        await pair.caught_up()
        assert len(pair.master.store.commitlog.segments()) > 2
        assert log_bytes(pair.slave) == log_bytes(pair.master)
        for queue in range(4):
            mine = pair.slave.store.queues.queue("T", queue)
            assert mine.max_offset == 10
            assert mine.units(0, 10) == pair.master.store.queues.queue("T", queue).units(0, 10)
