'use strict';

/*
 * The npm package ali-ons behind lines of JSON: a request a line in, answers and events out.
 * tests/interop/driver.py says what the requests are.
 */

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const toStderr = (...args) => console.error(...args);
const quiet = { debug() {}, info() {}, warn: toStderr, error: toStderr };
const intervals = request => ({
  clientIP: '127.0.0.1',
  pollNameServerInteval: request.route_ms || 1000,
  heartbeatBrokerInterval: 1000,
  rebalanceInterval: 1000,
  persistConsumerOffsetInterval: 1000,
  pullTimeDelayMillsWhenException: 500,
  logger: quiet,
  httpclient: { request() { throw new Error('a name server was given: nobody asks for one'); } },
});
const running = new Map();

function write(object) {
  process.stdout.write(JSON.stringify(object) + '\n');
}

function message(topic, wanted) {
  const made = new Message(topic, wanted.tags, wanted.body);
  if (wanted.keys) made.keys = [ wanted.keys ];
  if (wanted.delay) made.delayTimeLevel = wanted.delay;
  if (wanted.shard) made.shardingKey = wanted.shard;
  Object.assign(made.properties, wanted.properties || {});
  return made;
}

function described(received) {
  return {
    topic: received.topic,
    body: received.body.toString(),
    tags: received.tags,
    keys: received.keys,
    properties: received.properties,
    queue: received.queueId,
    offset: Number(received.queueOffset),
    unique: received.properties.UNIQ_KEY,
    reconsumed: received.reconsumeTimes,
    born_ms: Number(received.bornTimestamp),
    store_ms: Number(received.storeTimestamp),
  };
}

async function result(sending) {
  try {
    const sent = await sending();
    return {
      ok: true,
      status: sent.sendStatus,
      queue: Number(sent.messageQueue.queueId),
      offset: Number(sent.queueOffset),
      place: sent.msgId,
    };
  } catch (error) {
    return { ok: false, error: `${error.name}: ${error.message}` };
  }
}

const requests = {
  async producer(request) {
    const { name, group, namesrv, retries } = request;
    const producer = new Producer({
      ...intervals(request),
      nameSrv: namesrv,
      producerGroup: group,
      instanceName: name,
      retryTimesWhenSendFailed: retries,
    });
    producer.on('error', error => console.error(name, error.message));
    await producer.ready();
    running.set(name, producer);
  },

  async send({ producer, how, topic, messages }) {
    const send = wanted => result(() => running.get(producer).send(message(topic, wanted)));
    if (how === 'async') return Promise.all(messages.map(send));
    const results = [];
    for (const wanted of messages) results.push(await send(wanted));
    return results;
  },

  async consumer(request) {
    const { name, topic, expression, failures } = request;
    const options = {
      ...intervals(request),
      nameSrv: request.namesrv,
      consumerGroup: request.group,
      instanceName: name,
      isBroadcast: request.broadcast,
      consumeFromWhere: `CONSUME_FROM_${request.from}`,
    };
    if (request.timestamp) options.consumeTimestamp = request.timestamp;
    if (request.reconsume_max) options.maxReconsumeTimes = request.reconsume_max;
    const consumer = new Consumer(options);
    consumer.on('error', error => console.error(name, error.message));
    const sql = { expressionType: 'SQL92', subString: expression };
    consumer.subscribe(topic, request.sql ? sql : expression, async received => {
      write({ event: 'message', of: name, at_ms: Date.now(), ...described(received) });
      return received.reconsumeTimes < failures ? Consumer.ACTION_RETRY : undefined;
    });
    try {
      await consumer.ready();
    } catch (error) { // one that half runs would take queues from others
      await consumer.close();
      throw error;
    }
    running.set(name, consumer);
  },

  async stop({ name }) {
    await running.get(name).close();
    running.delete(name);
  },
};

async function answer(line) {
  const request = JSON.parse(line);
  try {
    const ok = await requests[request.do](request);
    write({ id: request.id, ok: ok === undefined ? null : ok });
  } catch (error) {
    write({ id: request.id, error: `${error.name}: ${error.message}` });
  }
}

// The client leaves promises alone that fail while its broker is dead, and tells of errors when a
// producer is closed that nobody listens to any more.
process.on('unhandledRejection', error => console.error('unhandled', error));
process.on('uncaughtException', error => console.error('uncaught', error));
console.warn = toStderr;
console.log = toStderr;
readline.createInterface({ input: process.stdin })
  .on('line', answer)
  .on('close', () => process.exit(0));
