"""Before a broker's container is stopped: waits until the group can do without this replica, and
moves leadership to another.

`prestop.py SECONDS` asks the broker's own HTTP API, and its leader's. It ends with 0 as soon as
every other voter is connected and has nearly all of the log and this replica does not lead; with 1
after SECONDS, with the reason, which becomes an event of the pod. The stop follows either way: a
broker that still leads then hands leadership over itself, if anybody can take it.

Environment: RAFTMQ_BROKER_IP1 and RAFTMQ_DLEGER_PEERS, as the broker's. PRESTOP_DIRECTORY, if not
/etc/raftmq, and PRESTOP_PORT, if not 10915: where secrets and TLS files are, and the port of the
API (tests).
"""

import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

LAG_FRAMES_MAX = 100  # so close behind the leader a replica helps to commit at once
ASK_TIMEOUT_S = 3
PAUSE_S = 0.5


class Api:
    """The HTTP APIs of a group's brokers; all take the same token, and listen on the same port."""

    def __init__(self, directory: Path, port: str, peers: str) -> None:
        self._port = port
        self._hosts = dict(re.findall(r"(\w+)[-=]([^:;]+):\d+", peers))  # n0-host:port;…
        token = (directory / "secrets" / "operator.token").read_text().strip()
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        authority = directory / "tls" / "ca.crt"
        self._context = ssl.create_default_context(cafile=authority) if authority.exists() else None

    def of(self, host: str) -> str:
        """Return the URL of a broker's API."""
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://{host}:{self._port}"

    def leaders(self, node: dict) -> str:
        """Return the URL of the API of a follower's leader; "" if there is none. A replica that was
        restarted does not know its leader's addresses at first, only its id."""
        address: str = node["leaderHttpAddress"]
        if address:
            return address if "://" in address else f"http://{address}"
        return self.of(self._hosts[node["leader"]]) if node["leader"] in self._hosts else ""

    def ask(self, url: str, body: dict | None = None) -> dict:
        """Return an answer. Raises OSError and ValueError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, self._headers)
        with urllib.request.urlopen(
            request, timeout=ASK_TIMEOUT_S, context=self._context
        ) as answer:
            return json.load(answer)


def why_stay(api: Api, own: str) -> str:
    """Return why this replica should not stop yet, "" if it may. Begins to move leadership away
    once another replica can have it. Raises OSError and ValueError."""
    node = api.ask(f"{own}/api/v1/node")
    if node["membership"] != "voter":
        return ""
    leads = node["role"] == "leader"
    leader = own if leads else api.leaders(node)
    if not leader:
        return "the group has no leader"
    view = node if leads else api.ask(f"{leader}/api/v1/node")
    for peer in view["peers"]:
        if peer["id"] == node["name"] or not peer["voter"]:
            continue
        if not peer["connected"]:
            return f"{peer['id']} is not connected with the leader"
        if peer["lagFrames"] is None or peer["lagFrames"] > LAG_FRAMES_MAX:
            return f"{peer['id']} is {peer['lagFrames']} frames behind"
    if leads:
        api.ask(f"{own}/api/v1/node/transfer", {})
        return "this replica still leads"
    return ""


def main() -> int:
    until = time.monotonic() + float(sys.argv[1])
    directory = Path(os.environ.get("PRESTOP_DIRECTORY", "/etc/raftmq"))
    port, peers = os.environ.get("PRESTOP_PORT", "10915"), os.environ["RAFTMQ_DLEGER_PEERS"]
    api = Api(directory, port, peers)
    own = api.of(os.environ["RAFTMQ_BROKER_IP1"])
    while True:
        try:
            reason = why_stay(api, own)
        except urllib.error.HTTPError as error:
            reason = f"{error.url}: {error}"
        except (OSError, ValueError) as error:
            if isinstance(getattr(error, "reason", error), ConnectionRefusedError):
                return 0  # it is not up, or not any more: nothing is to be moved
            reason = str(error)
        if not reason:
            return 0
        if time.monotonic() > until:
            print(f"stops although {reason}")
            return 1
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
