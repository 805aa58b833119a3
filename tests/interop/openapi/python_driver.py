"""What a user does with a generated client: `python python_driver.py URL`, with the client on the
path.

It makes a topic, and again, sends a message, finds it, and deletes the topic; it prints what it saw
as JSON.
"""

import json
import sys
import time

from cluster_client import Client
from cluster_client.api.default import (
    delete_topic,
    get_cluster,
    list_topic_messages,
    list_topics,
    put_topic,
    send_message,
)
from cluster_client.models import ProblemView, SendBody, TopicBody, TopicBodyMessageType

PATIENCE_S = 120.0


def main() -> None:
    client = Client(sys.argv[1])
    cluster = get_cluster.sync(client=client)
    leader = cluster.groups[0].leader
    body = TopicBody(
        read_queue_nums=2, write_queue_nums=2, message_type=TopicBodyMessageType.NORMAL
    )
    made = put_topic.sync("Generated", client=client, body=body, if_none_match="*")
    again = put_topic.sync("Generated", client=client, body=body, if_none_match="*")
    deadline = time.monotonic() + PATIENCE_S
    while not list_topics.sync(client=client, q="Generated").items:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    message = SendBody(topic="Generated", body="hello", tags="t", keys="k")
    sent = send_message.sync(client=client, body=message)
    result = list_topic_messages.sync("Generated", client=client, tag="t").items
    gone = delete_topic.sync("Generated", client=client, if_match="*")
    print(json.dumps({
        "leader": leader,
        "made": [one.outcome for one in made.results],
        "again": again.code if isinstance(again, ProblemView) else repr(again),
        "sent": sent.offset_msg_id,
        "found": [[one.offset_msg_id, one.text, one.tags, one.keys] for one in result],
        "gone": [one.outcome for one in gone.results],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
