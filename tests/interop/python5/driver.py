"""Drives the official Python client, unmodified, in a process of its own: reads a step per line as
JSON from its standard input, answers each with a line. It runs with what tests.interop.toolchain
installed for it, and knows nothing of this project."""

import json
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)


class Listener(MessageListener):
    """Keeps what it is given; fails the first deliveries of bodies that begin with `fail`."""

    def __init__(self):
        self.lock = threading.Lock()
        self.found = []
        self.failed = set()

    def consume(self, message):
        body = message.body.decode()
        with self.lock:
            self.found.append([body, message.delivery_attempt, message.message_id])
            if body.startswith("fail") and body not in self.failed:
                self.failed.add(body)
                return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    def __init__(self):
        self.asked = []

    def check(self, message):
        self.asked.append(message.body.decode())
        return TransactionResolution.COMMIT


class Driver:
    def __init__(self, endpoints, key="", secret=""):
        self.config = ClientConfiguration(endpoints, Credentials(key, secret), "", 5)
        self.producer: Any = None
        self.checker = Checker()
        self.simple: Any = None
        self.push = None
        self.listener = Listener()
        self.held = {}
        self.load: Any = ()  # of `begin_load`

    def produce(self, topics):
        self.producer = Producer(self.config, topics, checker=self.checker)
        self.producer.startup()

    def send(self, topic, body, group="", delay_s=0.0, tag="", key=""):
        message = Message()
        message.topic, message.body = topic, body.encode()
        if group:
            message.message_group = group
        if delay_s:
            message.delivery_timestamp = round(time.time() + delay_s)  # in s
        if tag:
            message.tag = tag
        if key:
            message.keys = key
        message.add_property("from", "sdk")
        receipt = self.producer.send(message)
        return [receipt.message_id, receipt.offset, receipt.recall_handle or ""]

    def recall(self, topic, handle):
        return self.producer.recall_message(topic, handle)

    def transact(self, topic, body, end):
        message = Message()
        message.topic, message.body = topic, body.encode()
        transaction = self.producer.begin_transaction()
        self.producer.send(message, transaction)
        if end == "commit":
            transaction.commit()
        elif end == "rollback":
            transaction.rollback()
        return True

    def checked(self):
        return self.checker.asked

    def begin_load(self, topic):
        """Send numbers, one after the other, until `end_load`."""
        sent, failed, stop = [], [], threading.Event()

        def run():
            number = 0
            while not stop.is_set():
                try:
                    self.send(topic, str(number))
                    sent.append(number)
                except Exception as error:
                    failed.append(str(error))
                number += 1

        thread = threading.Thread(target=run)
        thread.start()
        self.load = (thread, stop, sent, failed)

    def load_size(self):
        return len(self.load[2])

    def end_load(self):
        thread, stop, sent, failed = self.load
        stop.set()
        thread.join()
        return [sent, failed]

    def subscribe(self, group, topic, tag="*", wait_s=1):
        self.simple = SimpleConsumer(self.config, group, {topic: FilterExpression(tag)}, wait_s)
        self.simple.startup()

    def receive(self, count=16, invisible_s=15):
        result = self.simple.receive(count, invisible_s) or []
        for one in result:
            self.held[one.message_id] = one
        return [
            [one.message_id, one.body.decode(), one.tag or "", dict(one.properties)]
            for one in result
        ]

    def ack(self, message_id):
        self.simple.ack(self.held.pop(message_id))

    def hide(self, message_id, seconds):
        self.simple.change_invisible_duration(self.held[message_id], seconds)

    def listen(self, group, topic, tag="*"):
        self.push = PushConsumer(self.config, group, self.listener, {topic: FilterExpression(tag)})
        self.push.startup()

    def heard(self):
        with self.listener.lock:
            return list(self.listener.found)

    def stop(self):
        for one in (self.producer, self.simple, self.push):
            if one is not None:
                one.shutdown()


def main():
    driver = Driver(*sys.argv[1:])
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": getattr(driver, name)(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
        if name == "stop":
            break


if __name__ == "__main__":
    main()
