'use strict';

/*
 * Drives RocketMQ 5's own Node client, unmodified: reads a step per line as JSON from its standard
 * input, answers each with a line. The steps are those of python5/driver.py.
 */

const readline = require('readline');
const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { TransactionResolution } = require(
  'rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [ endpoints, accessKey, accessSecret ] = process.argv.slice(2);
const warn = (...args) => console.error(...args);
const logger = { debug() {}, info() {}, warn, error: warn };
const common = { endpoints, namespace: '', logger, requestTimeout: 5000 };
if (accessKey) common.sessionCredentials = { accessKey, accessSecret };

const clients = [];
const held = new Map();
const found = [];
const failed = new Set();
const asked = [];
let producer, simple, load;

async function started(client) {
  await client.startup();
  clients.push(client);
  return client;
}

const steps = {
  async produce({ topics }) {
    const checker = {
      async check(message) {
        asked.push(message.body.toString());
        return TransactionResolution.COMMIT;
      },
    };
    producer = await started(new Producer({ ...common, topics, checker }));
  },

  async send({ topic, body, group, delay_s: delayS, tag, key }) {
    const receipt = await producer.send({
      topic,
      body: Buffer.from(body),
      tag,
      messageGroup: group,
      keys: key ? [ key ] : [],
      delay: delayS ? delayS * 1000 : undefined,
      properties: new Map([[ 'from', 'sdk' ]]),
    });
    return [ receipt.messageId, receipt.offset, receipt.recallHandle || '' ];
  },

  async recall({ topic, handle }) {
    await producer.recallMessage(topic, handle);
  },

  async transact({ topic, body, end }) {
    const transaction = producer.beginTransaction();
    await producer.send({ topic, body: Buffer.from(body) }, transaction);
    if (end) await transaction[end]();
  },

  async checked() {
    return asked;
  },

  async begin_load({ topic }) {
    load = { sent: [], failed: [], stop: false };
    load.done = (async () => {
      for (let number = 0; !load.stop; number++) {
        try {
          await steps.send({ topic, body: String(number) });
          load.sent.push(number);
        } catch (error) {
          load.failed.push(String(error));
        }
      }
    })();
  },

  async load_size() {
    return load.sent.length;
  },

  async end_load() {
    load.stop = true;
    await load.done;
    return [ load.sent, load.failed ];
  },

  async subscribe({ group, topic, tag = '*', wait_s: waitS = 1 }) {
    const subscriptions = new Map([[ topic, new FilterExpression(tag) ]]);
    const options = { ...common, consumerGroup: group, subscriptions };
    simple = await started(new SimpleConsumer({ ...options, awaitDuration: waitS * 1000 }));
  },

  async receive({ count = 16, invisible_s: invisibleS = 15 }) {
    const messages = await simple.receive(count, invisibleS * 1000);
    return messages.map(one => {
      held.set(one.messageId, one);
      const properties = Object.fromEntries(one.properties);
      return [ one.messageId, one.body.toString(), one.tag || '', properties ];
    });
  },

  async ack({ message_id: id }) {
    await simple.ack(held.get(id));
    held.delete(id);
  },

  async hide({ message_id: id, seconds }) {
    await simple.changeInvisibleDuration(held.get(id), seconds * 1000);
  },

  async listen({ group, topic, tag = '*' }) {
    const messageListener = {
      async consume(message) {
        const body = message.body.toString();
        found.push([ body, message.deliveryAttempt, message.messageId ]);
        if (body.startsWith('fail') && !failed.has(body)) {
          failed.add(body);
          return ConsumeResult.FAILURE;
        }
        return ConsumeResult.SUCCESS;
      },
    };
    const subscriptions = new Map([[ topic, new FilterExpression(tag) ]]);
    await started(new PushConsumer({
      ...common, consumerGroup: group, subscriptions, messageListener,
    }));
  },

  async heard() {
    return found;
  },

  async stop() {
    await Promise.all(clients.map(client => client.shutdown()));
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [ name, step ] = JSON.parse(line);
    let answer;
    try {
      answer = { value: (await steps[name](step)) ?? null };
    } catch (error) {
      answer = { error: `${error.name}: ${error.message}` };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
    if (name === 'stop') break;
  }
  process.exit(0);
}

main();
