// The way to the server: one answer as events, and faults in words that say what to do.
export class Fault extends Error {
  // kind: key, busy, loading, long, network, broken, request, server. after: seconds until it is worth another try.
  constructor(kind, message, after = 0) {
    super(message);
    this.kind = kind;
    this.after = after;
  }
}

function headers(key, json) {
  return { ...(json ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// What the server says of an error, or nothing.
async function spoken(response) {
  try {
    const body = await response.json();
    return { message: String(body.error?.message ?? ""), code: String(body.error?.code ?? "") };
  } catch {
    return { message: "", code: "" };
  }
}

async function faultOf(response) {
  const { message, code } = await spoken(response);
  const after = Math.min(Number(response.headers.get("Retry-After")) || 0, 60);
  const said = message ? ` The server says: ${message}` : "";
  if (response.status === 401) return new Fault("key", "The server asks for an API key, or does not know the one it got.");
  if (response.status === 429) return new Fault("busy", "The server is busy and its queue is full.", after || 5);
  if (response.status === 503) return new Fault("loading", `The server takes no requests at the moment.${said}`, after || 5);
  if (code === "context_length_exceeded")
    return new Fault("long", "The conversation no longer fits into the model's context. Edit an earlier message to go on from there, or begin a new conversation.");
  if (response.status === 413) return new Fault("long", "The message is larger than the server takes.");
  if (response.status >= 500) return new Fault("server", `The server failed (${response.status}).${said}`);
  return new Fault("request", message || `The server refused the request (${response.status}).`);
}

async function reach(url, options) {
  try {
    return await fetch(url, { cache: "no-store", ...options });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Fault("network", "The server cannot be reached. Is it running, and is this machine online?", 3);
  }
}

export async function models(key) {
  const response = await reach("v1/models", { headers: headers(key) });
  if (!response.ok) throw await faultOf(response);
  return (await response.json()).data ?? [];
}

// {status, reason} of /health; status "away" where nobody answers.
export async function health() {
  try {
    const response = await fetch("health", { cache: "no-store" });
    return await response.json();
  } catch {
    return { status: "away" };
  }
}

// Calls take(line) for every line of server-sent events.
async function eachLine(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) take(line.trimEnd());
  }
}

// Asks for one answer. `on` has delta(delta), usage(usage), progress(done, total). Returns the finish reason.
export async function answer(request, key, signal, on) {
  const response = await reach("v1/chat/completions", {
    method: "POST", signal, headers: headers(key, true),
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }),
  });
  if (!response.ok) throw await faultOf(response);
  let finish = null;
  let ended = false;
  try {
    await eachLine(response.body, (line) => {
      const progress = /^: .*prefill (\d+)\/(\d+)/.exec(line);
      if (progress) on.progress(Number(progress[1]), Number(progress[2]));
      if (!line.startsWith("data:")) return;
      const data = line.slice(5).trim();
      if (data === "[DONE]") {
        ended = true;
        return;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Fault("server", `The answer broke off. The server says: ${chunk.error.message}`);
      if (chunk.usage) on.usage(chunk.usage);
      const choice = chunk.choices?.[0];
      if (choice?.delta) on.delta(choice.delta);
      if (choice?.finish_reason) finish = choice.finish_reason;
    });
  } catch (e) {
    if (e instanceof Fault || e.name === "AbortError" || signal.aborted) throw e;
    throw new Fault("broken", "The connection was lost in the middle of the answer.");
  }
  if (!ended) throw new Fault("broken", "The answer ended before it was complete: the server or a proxy closed the connection.");
  return finish;
}
