// The cluster API: JSON, and the stream of events. Who logged in is in a cookie that no script reads.

const RETRY_MS = 1500;
const READ_MS = 12_000; // longer than a name server takes to say that it took too long
const WRITE_MS = 35_000;
const AT_ONCE = 4; // reads of one page; a browser has six connections to a server, and one is for the events
const SILENCE_MS = 40_000; // of the events: without any, a comment comes every 15 s

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.code = problem.code || "";
    this.problem = problem;
  }
}

let askForLogin = async () => false;
export const onUnauthorized = (handler) => { askForLogin = handler; };

/** Encode one segment of a path; callers do this for every name that they put into one. */
export const seg = encodeURIComponent;

export function query(parameters) {
  const present = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return present.length ? `?${new URLSearchParams(present)}` : "";
}

/** Return the JSON of a successful answer. */
export const call = async (...what) => (await versioned(...what)).value;

/** Return {value, version}; `version` is the value for If-Match. */
export async function versioned(method, path, { body, headers, signal } = {}) {
  const { answer, text } = await send(method, path, {
    headers: { ...(body !== undefined && { "Content-Type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  if (answer.status === 401 && path !== "/session" && (await askForLogin(method === "GET"))) return versioned(method, path, { body, headers, signal });
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = { detail: text.slice(0, 200) };
  }
  if (!answer.ok) throw new ApiError(answer.status, value ?? {});
  return { value, version: answer.headers.get("ETag") };
}

/** Return {answer, text}. Without an answer in time, a change may have been done all the same. */
async function send(method, path, { signal, ...options }) {
  const timeLimit = AbortSignal.timeout(method === "GET" ? READ_MS : WRITE_MS);
  try {
    const answer = await fetch(`/api/v1${path}`, { method, ...options, signal: AbortSignal.any([timeLimit, ...(signal ? [signal] : [])]), cache: "no-store" });
    return { answer, text: await answer.text() };
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(504, { detail: "this name server does not answer", code: method === "GET" ? "" : "OUTCOME_UNKNOWN" });
  }
}

export const get = (path, options) => call("GET", path, options);

/** Return what `read` gives for each item, in their order. Few run at once: a read that waits in the browser
 *  for a connection would use up its time there. */
export async function fewAtOnce(items, read) {
  const results = [];
  const rest = items.entries();
  const worker = async () => {
    for (const [at, item] of rest) results[at] = await read(item);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return results;
}

/** Read events without end: call `onEvent(event)` for each, and `state(connected)` when the stream opens
 *  or breaks. It uses fetch, because EventSource does not say why it fails. The name server first sends the
 *  events that it has kept. */
export async function follow(onEvent, state) {
  let last = "0-0";
  for (;;) {
    const stream = new AbortController();
    let silence = 0;
    const restartSilence = () => {
      clearTimeout(silence);
      silence = setTimeout(() => stream.abort(), SILENCE_MS);
    };
    try {
      restartSilence();
      const headers = { Accept: "text/event-stream", "Last-Event-ID": last };
      const answer = await fetch("/api/v1/events", { headers, signal: stream.signal, cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      state(true);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let buffer = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        restartSilence();
        buffer += value;
        const parts = buffer.split("\n\n");
        buffer = parts.pop();
        for (const part of parts) last = deliver(part, onEvent) || last;
      }
    } catch {
      // `state` has reported it; the next attempt is below
    }
    clearTimeout(silence);
    state(false);
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function deliver(part, onEvent) {
  let id = "";
  const data = [];
  for (const line of part.split("\n")) {
    if (line.startsWith("id:")) id = line.slice(3).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5));
  }
  if (data.length) {
    const event = JSON.parse(data.join("\n"));
    if (event.kind !== "gap") onEvent(event);
  }
  return id;
}
