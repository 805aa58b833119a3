import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer; // since 4.6
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback; // since 4.6
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil; // since 4.6
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The official Java client behind lines of JSON: a request a line in, answers and events out.
 *
 * <p>The same source is compiled against 4.3, 4.9 and 5.3 of the client, for 4.3 without what is marked as
 * newer. tests/interop/driver.py says what the requests are. The client's own configuration is all that is
 * set: names, intervals, where to begin.
 */
public final class Driver {
    private static final int QUERY_MAX = 64;
    private static final int CALLBACK_S = 30;
    private static final String ROOM_MARK = "-at-"; // a consumer's name says where it is
    private static PrintStream out;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, Runnable> stops = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPullConsumer> pulls = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err);
        Driver driver = new Driver();
        ExecutorService pool = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject request = JSON.parseObject(line);
            pool.execute(() -> driver.answer(request));
        }
        Runtime.getRuntime().halt(0); // whoever drove us is gone
    }

    private static void write(JSONObject object) {
        synchronized (Driver.class) {
            out.println(object.toJSONString());
        }
    }

    private void answer(JSONObject request) {
        JSONObject answer = new JSONObject();
        answer.put("id", request.get("id"));
        try {
            answer.put("ok", perform(request));
        } catch (Throwable error) {
            answer.put("error", error.getClass().getSimpleName() + ": " + error.getMessage());
        }
        write(answer);
    }

    private Object perform(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "producer":
                return startProducer(request);
            case "send":
                return send(request);
            case "request": // since 4.6
                return ask(request); // since 4.6
            case "consumer":
                return startConsumer(request);
            case "stop":
                stops.remove(request.getString("name")).run();
                return null;
            case "pull":
                return pull(request);
            case "lookup":
                return lookup(request);
            case "reset":
                return reset(request);
            default:
                throw new IllegalArgumentException(request.getString("do"));
        }
    }

    private interface Starting {
        void start() throws Exception;
    }

    /** A client that did not start is gone: one that half runs would take queues from others. */
    private static void start(Starting client, Runnable shutdown) throws Exception {
        try {
            client.start();
        } catch (Exception error) {
            shutdown.run();
            throw error;
        }
    }

    // ---- producing

    private Object startProducer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQProducer producer;
        if (request.getBooleanValue("transactional")) {
            TransactionMQProducer transactional = new TransactionMQProducer(request.getString("group"));
            transactional.setTransactionListener(new Decider(name));
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(request.getString("group"));
        }
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName(name);
        producer.setPollNameServerInterval(routeMillis(request));
        if (request.containsKey("timeout_ms")) {
            producer.setSendMsgTimeout(request.getIntValue("timeout_ms"));
        }
        producer.setRetryTimesWhenSendFailed(request.getIntValue("retries"));
        producer.setRetryTimesWhenSendAsyncFailed(request.getIntValue("retries"));
        start(producer::start, producer::shutdown);
        producers.put(name, producer);
        stops.put(name, producer::shutdown);
        return null;
    }

    private static int routeMillis(JSONObject request) {
        return request.containsKey("route_ms") ? request.getIntValue("route_ms") : 1000;
    }

    private static Message message(String topic, JSONObject wanted) {
        Message message = new Message(topic, wanted.getString("body").getBytes(StandardCharsets.UTF_8));
        if (wanted.containsKey("tags")) {
            message.setTags(wanted.getString("tags"));
        }
        if (wanted.containsKey("keys")) {
            message.setKeys(wanted.getString("keys"));
        }
        if (wanted.containsKey("delay")) {
            message.setDelayTimeLevel(wanted.getIntValue("delay"));
        }
        JSONObject properties = wanted.getJSONObject("properties");
        if (properties != null) {
            for (String key : properties.keySet()) {
                message.putUserProperty(key, properties.getString(key));
            }
        }
        return message;
    }

    private Object send(JSONObject request) throws Exception {
        DefaultMQProducer producer = producers.get(request.getString("producer"));
        String topic = request.getString("topic");
        String how = request.getString("how");
        JSONArray wanted = request.getJSONArray("messages");
        List<Message> messages = new ArrayList<>();
        for (int n = 0; n < wanted.size(); n++) {
            messages.add(message(topic, wanted.getJSONObject(n)));
        }
        List<JSONObject> results = new ArrayList<>();
        if (how.equals("batch")) {
            results.add(result(() -> producer.send(messages)));
        } else if (how.equals("async")) {
            return sendAsync(producer, messages);
        } else {
            for (int n = 0; n < messages.size(); n++) {
                Message message = messages.get(n);
                JSONObject one = wanted.getJSONObject(n);
                results.add(result(() -> sendOne(producer, how, message, one)));
            }
        }
        return results;
    }

    private static SendResult sendOne(DefaultMQProducer producer, String how, Message message, JSONObject one)
            throws Exception {
        switch (how) {
            case "sync":
                return producer.send(message);
            case "oneway":
                producer.sendOneway(message);
                return null;
            case "ordered":
                return producer.send(
                        message,
                        (queues, m, key) -> queues.get((key.hashCode() & 0x7fffffff) % queues.size()),
                        one.getString("shard"));
            case "queue":
                return producer.send(
                        message,
                        (queues, m, id) -> queues.stream()
                                .filter(queue -> queue.getQueueId() == (Integer) id)
                                .findFirst()
                                .get(),
                        one.getInteger("queue"));
            case "transaction":
                return producer.sendMessageInTransaction(message, one.getString("decide"));
            default:
                throw new IllegalArgumentException(how);
        }
    }

    private static Object sendAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        // The client may call back twice for one message; what it says first is its outcome.
        Map<Integer, JSONObject> results = new ConcurrentHashMap<>();
        CountDownLatch left = new CountDownLatch(messages.size());
        for (int n = 0; n < messages.size(); n++) {
            int index = n;
            producer.send(
                    messages.get(n),
                    new SendCallback() {
                        @Override
                        public void onSuccess(SendResult sent) {
                            told(result(() -> sent));
                        }

                        @Override
                        public void onException(Throwable error) {
                            told(failure(error));
                        }

                        private void told(JSONObject outcome) {
                            if (results.putIfAbsent(index, outcome) == null) {
                                left.countDown();
                            }
                        }
                    });
        }
        if (!left.await(CALLBACK_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("callbacks outstanding: " + left.getCount());
        }
        List<JSONObject> inOrder = new ArrayList<>();
        for (int n = 0; n < messages.size(); n++) {
            inOrder.add(results.get(n));
        }
        return inOrder;
    }

    private interface Sending {
        SendResult send() throws Exception;
    }

    private static JSONObject failure(Throwable error) {
        JSONObject result = new JSONObject();
        result.put("ok", false);
        String cause = error.getCause() == null ? "" : " because of " + error.getCause();
        result.put("error", error.getClass().getSimpleName() + ": " + error.getMessage() + cause);
        return result;
    }

    private static JSONObject result(Sending sending) {
        JSONObject result = new JSONObject();
        try {
            SendResult sent = sending.send();
            result.put("ok", true);
            if (sent != null) {
                result.put("status", sent.getSendStatus().name());
                result.put("queue", sent.getMessageQueue().getQueueId());
                result.put("offset", sent.getQueueOffset());
                result.put("unique", sent.getMsgId());
                result.put("place", sent.getOffsetMsgId());
            }
        } catch (Throwable error) {
            return failure(error);
        }
        return result;
    }

    // since 4.6 {
    private Object ask(JSONObject request) throws Exception {
        DefaultMQProducer producer = producers.get(request.getString("producer"));
        Message message = message(request.getString("topic"), request);
        long ttl = request.getLongValue("ttl_ms");
        CompletableFuture<Message> answered = new CompletableFuture<>();
        // Not the call that waits: 5.3.3 counts its latch down when the request is sent. It calls back
        // then, too, with null, and once more with the answer.
        producer.request(
                message,
                new RequestCallback() {
                    @Override
                    public void onSuccess(Message answer) {
                        if (answer != null) {
                            answered.complete(answer);
                        }
                    }

                    @Override
                    public void onException(Throwable error) {
                        answered.completeExceptionally(error);
                    }
                },
                ttl);
        return described(answered.get(2 * ttl, TimeUnit.MILLISECONDS));
    }
    // }

    private static final class Decider implements TransactionListener {
        private final String name;

        Decider(String name) {
            this.name = name;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
            return state((String) decision);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            JSONObject event = described(message);
            event.put("event", "check");
            event.put("of", name);
            write(event);
            return state(message.getUserProperty("check"));
        }

        private static LocalTransactionState state(String decision) {
            switch (decision) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }

    // ---- consuming

    private static JSONObject described(Message message) {
        JSONObject shown = new JSONObject();
        shown.put("topic", message.getTopic());
        shown.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        shown.put("tags", message.getTags());
        shown.put("keys", message.getKeys());
        shown.put("properties", message.getProperties());
        if (message instanceof MessageExt) {
            MessageExt ext = (MessageExt) message;
            shown.put("queue", ext.getQueueId());
            shown.put("offset", ext.getQueueOffset());
            shown.put("unique", ext.getMsgId());
            shown.put("reconsumed", ext.getReconsumeTimes());
            shown.put("born_ms", ext.getBornTimestamp());
            shown.put("store_ms", ext.getStoreTimestamp());
        }
        return shown;
    }

    private static void delivered(String name, MessageExt message) {
        JSONObject event = described(message);
        event.put("event", "message");
        event.put("of", name);
        event.put("at_ms", System.currentTimeMillis());
        write(event);
    }

    private Object startConsumer(JSONObject request) throws Exception {
        switch (request.getString("kind")) {
            case "lite": // since 4.6
                return startLite(request); // since 4.6
            case "pull":
                return startPull(request);
            default:
                return startPush(request);
        }
    }

    private static AllocateMessageQueueStrategy strategy(JSONObject request) {
        switch (request.getString("strategy")) {
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "hash":
                return new AllocateMessageQueueConsistentHash();
            case "nearby":
                return new AllocateMachineRoomNearby(
                        new AllocateMessageQueueAveragely(),
                        new AllocateMachineRoomNearby.MachineRoomResolver() {
                            @Override
                            public String brokerDeployIn(MessageQueue queue) {
                                return queue.getBrokerName().split("@")[0];
                            }

                            @Override
                            public String consumerDeployIn(String clientId) {
                                int mark = clientId.lastIndexOf(ROOM_MARK);
                                return mark < 0 ? "west" : clientId.substring(mark + ROOM_MARK.length());
                            }
                        });
            case "room":
                AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
                room.setConsumeridcs(new HashSet<>(request.getJSONArray("rooms").toJavaList(String.class)));
                return room;
            case "config":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                List<MessageQueue> queues = new ArrayList<>();
                for (Object text : request.getJSONArray("queues")) {
                    String[] parts = ((String) text).split("/"); // broker/id
                    queues.add(new MessageQueue(request.getString("topic"), parts[0], Integer.parseInt(parts[1])));
                }
                config.setMessageQueueList(queues);
                return config;
            default:
                return new AllocateMessageQueueAveragely();
        }
    }

    private static ConsumeFromWhere from(JSONObject request) {
        return ConsumeFromWhere.valueOf("CONSUME_FROM_" + request.getString("from"));
    }

    /** The enumeration of models is in another package in 5.x. */
    private static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                    }
                }
            }
        }
    }

    private Object startPush(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        consumer.setNamesrvAddr(request.getString("namesrv"));
        consumer.setInstanceName(name);
        consumer.setPollNameServerInterval(routeMillis(request));
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setAwaitTerminationMillisWhenShutdown(5000); // since 4.6
        consumer.setConsumeFromWhere(from(request));
        if (request.containsKey("timestamp")) {
            consumer.setConsumeTimestamp(request.getString("timestamp"));
        }
        if (request.getBooleanValue("broadcast")) {
            broadcast(consumer);
        }
        if (request.containsKey("reconsume_max")) {
            consumer.setMaxReconsumeTimes(request.getIntValue("reconsume_max"));
        }
        consumer.setAllocateMessageQueueStrategy(strategy(request));
        if (request.getBooleanValue("sql")) {
            consumer.subscribe(request.getString("topic"), MessageSelector.bySql(request.getString("expression")));
        } else {
            consumer.subscribe(request.getString("topic"), request.getString("expression"));
        }
        int failures = request.getIntValue("failures");
        int level = request.getIntValue("delay");
        if (request.getString("kind").equals("orderly")) {
            consumer.setSuspendCurrentQueueTimeMillis(100);
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    delivered(name, message);
                    if (message.getReconsumeTimes() < failures) {
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            DefaultMQProducer replies = producers.get(String.valueOf(request.getString("reply")));
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    delivered(name, message);
                    if (replies != null) {
                        reply(replies, message);
                    }
                    if (message.getReconsumeTimes() < failures) {
                        context.setDelayLevelWhenNextConsume(level);
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        start(consumer::start, consumer::shutdown);
        stops.put(name, consumer::shutdown);
        return null;
    }

    private static void reply(DefaultMQProducer producer, MessageExt message) {
        try {
            byte[] body = ("re:" + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
            producer.send(MessageUtil.createReplyMessage(message, body), 3000); // since 4.6
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    // since 4.6 {
    private Object startLite(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"));
        consumer.setNamesrvAddr(request.getString("namesrv"));
        consumer.setInstanceName(name);
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setAutoCommitIntervalMillis(1000);
        consumer.setConsumeFromWhere(from(request));
        consumer.setAllocateMessageQueueStrategy(strategy(request));
        if (request.getBooleanValue("sql")) {
            consumer.subscribe(request.getString("topic"), MessageSelector.bySql(request.getString("expression")));
        } else {
            consumer.subscribe(request.getString("topic"), request.getString("expression"));
        }
        start(consumer::start, consumer::shutdown);
        boolean[] ends = new boolean[1];
        Thread thread = new Thread(() -> {
            while (!ends[0]) {
                for (MessageExt message : consumer.poll(200)) {
                    delivered(name, message);
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
        stops.put(name, () -> {
            ends[0] = true;
            try {
                thread.join();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            consumer.commitSync();
            consumer.shutdown();
        });
        return null;
    }
    // }

    @SuppressWarnings("deprecation")
    private Object startPull(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(request.getString("group"));
        consumer.setNamesrvAddr(request.getString("namesrv"));
        consumer.setInstanceName(name);
        consumer.setPollNameServerInterval(1000);
        consumer.setRegisterTopics(new HashSet<>(Collections.singleton(request.getString("topic"))));
        start(consumer::start, consumer::shutdown);
        pulls.put(name, consumer);
        stops.put(name, consumer::shutdown);
        return null;
    }

    /** One pull of a queue; the offset that it is to go on from is committed, too. */
    @SuppressWarnings("deprecation")
    private Object pull(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = pulls.get(request.getString("consumer"));
        MessageQueue queue = null;
        for (MessageQueue found : consumer.fetchSubscribeMessageQueues(request.getString("topic"))) {
            if (found.getQueueId() == request.getIntValue("queue")) {
                queue = found;
            }
        }
        PullResult pulled = consumer.pull(queue, "*", request.getLongValue("offset"), request.getIntValue("count"));
        consumer.updateConsumeOffset(queue, pulled.getNextBeginOffset());
        consumer.getOffsetStore().persist(queue);
        JSONObject answer = new JSONObject();
        answer.put("status", pulled.getPullStatus().name());
        answer.put("next", pulled.getNextBeginOffset());
        answer.put("min", consumer.minOffset(queue));
        answer.put("max", consumer.maxOffset(queue));
        JSONArray messages = new JSONArray();
        if (pulled.getMsgFoundList() != null) {
            for (MessageExt message : pulled.getMsgFoundList()) {
                messages.add(described(message));
            }
        }
        answer.put("messages", messages);
        return answer;
    }

    // ---- looking up, resetting

    private Object lookup(JSONObject request) throws Exception {
        DefaultMQProducer producer = producers.get(request.getString("producer"));
        String topic = request.getString("topic");
        String value = request.getString("value");
        JSONArray found = new JSONArray();
        if (request.getString("by").equals("key")) {
            QueryResult result = producer.queryMessage(topic, value, QUERY_MAX, 0, Long.MAX_VALUE);
            for (MessageExt message : result.getMessageList()) {
                found.add(described(message));
            }
        } else {
            found.add(described(producer.viewMessage(topic, value)));
        }
        return found;
    }

    private Object reset(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(request.getString("namesrv"));
        admin.setInstanceName(request.getString("name"));
        admin.start();
        try {
            Map<MessageQueue, Long> table = admin.resetOffsetByTimestamp(
                    request.getString("topic"), request.getString("group"), request.getLongValue("timestamp"), true);
            JSONObject answer = new JSONObject();
            table.forEach((queue, offset) -> answer.put(String.valueOf(queue.getQueueId()), offset));
            return answer;
        } finally {
            admin.shutdown();
        }
    }
}
