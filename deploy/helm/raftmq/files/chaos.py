"""Deletes one broker's pod, drawn by lot, if all brokers' pods are ready; else it does nothing.

Environment: API, the Kubernetes API's URL; CREDENTIALS, the directory of a service account's token
and ca.crt; NAMESPACE; SELECTOR, of the pods; BROKERS, how many there should be;
GRACE_PERIOD_SECONDS.
"""

import json
import os
import random
import ssl
import sys
import urllib.request
from pathlib import Path
from urllib.parse import quote

TIMEOUT_S = 30


def ready(pod: dict) -> bool:
    conditions = pod["status"].get("conditions", [])
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def main() -> int:
    credentials = Path(os.environ["CREDENTIALS"])
    headers = {"Authorization": f"Bearer {(credentials / 'token').read_text().strip()}"}
    api = os.environ["API"]
    context = None
    if api.startswith("https:"):
        context = ssl.create_default_context(cafile=credentials / "ca.crt")
    pods = f"{api}/api/v1/namespaces/{os.environ['NAMESPACE']}/pods"

    def ask(url: str, method: str) -> dict:
        request = urllib.request.Request(url, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            return json.load(answer)

    items = ask(f"{pods}?labelSelector={quote(os.environ['SELECTOR'])}", "GET")["items"]
    names = [pod["metadata"]["name"] for pod in items if ready(pod)]
    if len(names) < int(os.environ["BROKERS"]):
        print(f"nothing is deleted: {len(names)} of {os.environ['BROKERS']} brokers are ready")
        return 0
    name = random.choice(names)
    ask(f"{pods}/{name}?gracePeriodSeconds={os.environ['GRACE_PERIOD_SECONDS']}", "DELETE")
    print(f"deleted {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
