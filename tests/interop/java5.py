"""RocketMQ 5's own Java client, unmodified, driven from Python. Its calls block."""

from pathlib import Path

from py4j.java_gateway import JavaObject

from tests.interop.jvm import Jvm, fetch

IVY_FILE = Path(__file__).with_name("ivy-client5.xml")
JARS = "rocketmq-client-java-5.0.7"


class Java5:
    """The client in a JVM of its own."""

    def __init__(self, home: Path, *ports: int) -> None:
        self.jvm = Jvm({"user.home": str(home)}, jars=fetch(IVY_FILE, JARS), heap="384m")
        self.apis = self.jvm.rocketmq.client.apis
        self.provider = self.apis.ClientServiceProvider.loadService()
        self.config = self.configured(*ports)
        self.clients: list[JavaObject] = []

    def configured(self, *ports: int) -> JavaObject:
        builder = self.apis.ClientConfiguration.newBuilder()
        endpoints = ";".join(f"127.0.0.1:{port}" for port in ports)
        # Its default is TLS.
        return builder.setEndpoints(endpoints).enableSsl(False).build()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.jvm.close()

    def strings(self, *texts: str) -> JavaObject:
        made = self.jvm.gateway.new_array(self.jvm.gateway.jvm.java.lang.String, len(texts))
        for number, text in enumerate(texts):
            made[number] = text
        return made

    def text(self, view):
        """The body of a message."""
        charset = self.jvm.gateway.jvm.java.nio.charset.StandardCharsets.UTF_8
        return charset.decode(view.getBody()).toString()

    def producer(
        self, topic: str, checker: object = None, config: JavaObject | None = None
    ) -> JavaObject:
        """`config`: another than its own."""
        builder = self.provider.newProducerBuilder()
        builder = builder.setClientConfiguration(config or self.config)
        builder = builder.setTopics(self.strings(topic))
        if checker is not None:
            builder = builder.setTransactionChecker(checker)
        self.clients.append(builder.build())
        return self.clients[-1]

    def message(self, topic: str, body: str, *, group: str = "", delay_ms: int = 0) -> JavaObject:
        builder = self.provider.newMessageBuilder().setTopic(topic).setBody(body.encode())
        builder = builder.setTag("a").setKeys(self.strings("k"))
        if group:
            builder = builder.setMessageGroup(group)
        if delay_ms:
            now_ms = self.jvm.gateway.jvm.java.lang.System.currentTimeMillis()
            builder = builder.setDeliveryTimestamp(now_ms + delay_ms)
        return builder.build()

    def expressions(self, topic):
        consumer = self.apis.consumer
        expression = consumer.FilterExpression("*", consumer.FilterExpressionType.TAG)
        result = self.jvm.gateway.jvm.java.util.HashMap()
        result.put(topic, expression)
        return result

    def push(self, group, topic, listener):
        builder = self.provider.newPushConsumerBuilder().setClientConfiguration(self.config)
        builder = builder.setConsumerGroup(group).setMessageListener(listener)
        builder = builder.setSubscriptionExpressions(self.expressions(topic))
        self.clients.append(builder.build())
        return self.clients[-1]

    def simple(self, group, topic):
        builder = self.provider.newSimpleConsumerBuilder().setClientConfiguration(self.config)
        builder = builder.setConsumerGroup(group).setAwaitDuration(self.seconds(5))
        builder = builder.setSubscriptionExpressions(self.expressions(topic))
        self.clients.append(builder.build())
        return self.clients[-1]

    def seconds(self, count):
        return self.jvm.gateway.jvm.java.time.Duration.ofSeconds(count)
