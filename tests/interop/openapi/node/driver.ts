// What a user does with a generated client, as python_driver.py does: `node driver.js URL`.
import createClient from "openapi-fetch";
import type { paths } from "./cluster";

const PATIENCE_MS = 120_000;
const client = createClient<paths>({ baseUrl: process.argv[2] });

function needed<T>(value: T | null | undefined): T {
  if (value === null || value === undefined) throw new Error("an answer is missing");
  return value;
}

const topic = { path: { topic: "Generated" } };

async function put() {
  return client.PUT("/api/v1/topics/{topic}", {
    params: { ...topic, header: { "If-None-Match": "*" } },
    body: { readQueueNums: 2, writeQueueNums: 2, messageType: "NORMAL" },
  });
}

async function main(): Promise<void> {
  const cluster = needed((await client.GET("/api/v1/cluster")).data);
  const made = needed((await put()).data);
  const again = needed((await put()).error);
  const deadline = Date.now() + PATIENCE_MS;
  const listed = async () =>
    needed((await client.GET("/api/v1/topics", { params: { query: { q: "Generated" } } })).data)
      .items.length > 0;
  while (!(await listed())) {
    if (Date.now() > deadline) throw new Error("the topic is not listed");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const message = { topic: "Generated", body: "hello", tags: "t", keys: "k" };
  const sent = needed((await client.POST("/api/v1/messages", { body: message })).data);
  const found = needed(
    (await client.GET("/api/v1/topics/{topic}/messages", {
      params: { ...topic, query: { tag: "t" } },
    })).data,
  );
  const gone = needed(
    (await client.DELETE("/api/v1/topics/{topic}", {
      params: { ...topic, header: { "If-Match": "*" } },
    })).data,
  );
  console.log(JSON.stringify({
    leader: needed(cluster.groups[0]).leader,
    made: made.results.map((one) => one.outcome),
    again: again.code,
    sent: sent.offsetMsgId,
    found: found.items.map((one) => [one.offsetMsgId, one.text, one.tags, one.keys]),
    gone: gone.results.map((one) => one.outcome),
  }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
