"""`python -m tests.proxy.node`: `mqproxy` whose receives may wait and hide messages as short as the
tests want."""

from functools import partial
from unittest.mock import patch

from raftmq.proxy import process
from raftmq.proxy.cli import main
from raftmq.proxy.server import ProxyServer
from tests.proxy.world import WAITS

if __name__ == "__main__":
    with patch.object(process, "ProxyServer", partial(ProxyServer, waits=WAITS)):
        main()
