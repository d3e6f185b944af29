// The page: state, sending, keys. Drawing of turns is in turns.js, the way to the server in stream.js.
import { AnswerView, count, figures, userTurn } from "./turns.js";
import * as store from "./store.js";
import * as server from "./stream.js";
import { element } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const kStarters = ["What is the capital of France?", "Tell me a story about the sea.", "What is nine plus four?", "Who are you?"];
const kExampleTools = [{ type: "function", function: { name: "get_weather", description: "Get the current weather for a city.",
  parameters: { type: "object", properties: { city: { type: "string", description: "Name of the city" } }, required: ["city"] } } }];

const state = {
  settings: store.settings(),
  key: store.key(),
  here: store.fresh(),  // the conversation that is shown
  views: [],            // of its turns
  runs: new Map(),      // answers under way by the id of their conversation, see answerNext()
  unanswered: null,     // the last message that could not be sent; asked again when the server is back
  context: 0,
  model: "",
};

const runHere = () => state.runs.get(state.here.id);

// ---- The list and the conversation that is shown

function dayOf(time) {
  const days = Math.floor((new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 864e5 + 0.5);
  return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days < 7 ? "This week" : days < 31 ? "This month" : "Earlier";
}

function drawList() {
  let day = "";
  const rows = [];
  for (const c of store.index()) {
    const title = c.title || "Without a title";
    if (dayOf(c.changed) !== day) rows.push(element("li", { class: "when" }, (day = dayOf(c.changed))));
    const here = c.id === state.here.id;
    rows.push(element("li", { class: `item${here ? " here" : ""}${state.runs.has(c.id) ? " busy" : ""}` },
      element("button", { class: "open", "aria-current": here ? "true" : undefined, title, onclick: () => show(c.id) }, title),
      element("button", { class: "drop", "aria-label": `Delete ${title}`, title: "Delete", onclick: () => drop(c.id) }, "✕")));
  }
  $("list").replaceChildren(...rows);
}

function keep(conversation) {
  if (!store.save(conversation)) toast("This browser keeps no more: delete old conversations, or copy what you need.");
}

function show(id) {
  state.here = state.runs.get(id)?.conversation ?? (id && store.load(id)) ?? store.fresh();
  closeSide();
  drawConversation();
  $("scroll").scrollTop = $("scroll").scrollHeight;
  $("input").focus();
}

function drop(id) {
  const gone = store.load(id);
  forget(id);
  store.remove(id);
  if (state.here.id === id) show(null);
  drawList();
  if (gone) toast("Deleted.", "Undo", () => {
    keep(gone);
    show(gone.id);
  });
}

function drawConversation() {
  const c = state.here;
  document.title = c.title ? `${c.title} · Fathom` : "Fathom";
  $("title").textContent = c.title || "New conversation";
  $("empty").hidden = c.messages.length > 0;
  state.views = c.messages.map((m, i) => viewOf(c, i));
  $("log").replaceChildren(...state.views.map((v) => v.root));
  drawList();
  drawMeter();
  running();
}

function viewOf(c, i) {
  const m = c.messages[i];
  if (m.role === "user") {
    return userTurn(m, {
      copy: () => copy(m.content),
      edit: (text) => {
        if (!mayAsk()) return;
        cutBack(i);
        ask(text);
      },
    });
  }
  const view = new AnswerView(m, {
    copy: () => copy(m.content),
    retry: () => retry(),
    results: (list) => giveResults(m, list),
  });
  const run = state.runs.get(c.id);
  if (run?.message === m) {
    run.view = view;
    view.grow(run.progress);
  } else {
    view.finish(i === c.messages.length - 1);
  }
  return view;
}

// Takes turns off from the i-th on; they come back on request.
function cutBack(i) {
  const before = structuredClone(state.here);
  const lost = state.here.messages.length - i > 2;
  state.here.messages.length = i;
  if (lost) toast("What followed was replaced.", "Undo", () => {
    forget(before.id);
    keep(before);
    show(before.id);
  });
}

// ---- Asking

function wireMessages(c) {
  const out = c.system.trim() ? [{ role: "system", content: c.system }] : [];
  for (const m of c.messages) {
    if (m.role === "user") {
      out.push({ role: "user", content: m.content });
      continue;
    }
    const calls = m.calls.filter((call) => call.result !== null);
    if (!m.content && calls.length === 0) continue;
    out.push({ role: "assistant", content: m.content, reasoning_content: m.reasoning || undefined,
      tool_calls: calls.length ? calls.map((x) => ({ id: x.id, type: "function", function: { name: x.name, arguments: x.arguments } })) : undefined });
    for (const call of calls) out.push({ role: "tool", tool_call_id: call.id, content: call.result });
  }
  return out;
}

function toolsOf(text) {
  if (!text.trim()) return undefined;
  const list = JSON.parse(text);
  if (!Array.isArray(list)) throw new Error("expected a list");
  return list.length ? list : undefined;
}

function requestOf(c) {
  const s = state.settings;
  return { messages: wireMessages(c), tools: toolsOf(c.tools), reasoning_effort: s.effort, model: state.model || undefined,
    temperature: s.temperature ? Number(s.temperature) : undefined, max_tokens: s.most ? Number(s.most) : undefined };
}

function mayAsk() {
  if (runHere()) toast("An answer is under way: Esc stops it.");
  return !runHere();
}

function ask(text) {
  const c = state.here;
  if (!c.title) c.title = text.trim().replace(/\s+/g, " ").slice(0, 80);
  c.messages.push({ role: "user", content: text });
  answerNext();
}

function retry() {
  if (!mayAsk()) return;
  const list = state.here.messages;
  if (list.at(-1)?.role === "assistant") list.pop();
  if (list.length === 0) return;
  answerNext();
}

function giveResults(message, results) {
  if (!mayAsk()) return;
  message.calls.forEach((call, i) => { call.result = results[i] ?? ""; });
  answerNext();
}

async function answerNext() {
  const c = state.here;
  const m = { role: "assistant", reasoning: "", content: "", calls: [], finish: null, fault: null, stats: null };
  c.changed = Date.now();
  c.messages.push(m);
  const run = { conversation: c, message: m, view: null, abort: new AbortController(), progress: null,
    began: performance.now(), first: 0, saved: performance.now(), drawing: false, pause: 0, forgotten: false };
  state.runs.set(c.id, run);
  keep(c);
  drawConversation();
  follow(true);
  try {
    m.finish = await server.answer(requestOf(c), state.key, run.abort.signal, {
      delta: (d) => take(run, d),
      usage: (u) => measure(run, u),
      progress: (done, total) => {
        run.progress = [done, total];
        drawSoon(run);
      },
    });
  } catch (e) {
    if (run.abort.signal.aborted) m.finish = "stopped";
    else fault(run, e);
  }
  finish(run);
}

function take(run, delta) {
  const m = run.message;
  if (delta.reasoning_content) m.reasoning += delta.reasoning_content;
  if (delta.content) m.content += delta.content;
  for (const part of delta.tool_calls ?? []) {
    const call = (m.calls[part.index] ??= { id: "", name: "", arguments: "", result: null });
    if (part.id) call.id = part.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  if (!run.first && (m.reasoning || m.content || m.calls.length)) run.first = performance.now();
  drawSoon(run);
}

function measure(run, usage) {
  const now = performance.now();
  const spent = (now - run.first) / 1000;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? undefined;
  run.message.stats = {
    prompt: usage.prompt_tokens, cached, completion: usage.completion_tokens,
    first: run.first ? (run.first - run.began) / 1000 : undefined,
    speed: run.first && usage.completion_tokens > 1 && spent > 0 ? (usage.completion_tokens - 1) / spent : undefined,
  };
}

// Draws at the next frame, and never for more than a third of the time.
function drawSoon(run) {
  if (run.drawing) return;
  run.drawing = true;
  setTimeout(() => requestAnimationFrame(() => {
    run.drawing = false;
    if (state.here !== run.conversation || runHere() !== run) return;
    const began = performance.now();
    const low = atBottom();
    run.view.grow(run.progress);
    drawMeter();
    if (low) follow(true);
    const now = performance.now();
    run.pause = Math.min(500, 2 * (now - began));
    if (now - run.saved > 2000) {
      run.saved = now;
      keep(run.conversation);
    }
  }), run.pause);
}

function fault(run, e) {
  const known = e instanceof server.Fault;
  run.message.fault = known ? e.message : `This page failed: ${e.message}`;
  if (!known) console.error(e);
  if (e.kind === "key") askKey(true);
  if (e.kind !== "loading" && e.kind !== "network") return;
  if (!run.first) state.unanswered = run.message;
  watchHealth();
}

function finish(run) {
  const c = run.conversation;
  if (run.forgotten) return;
  state.runs.delete(c.id);
  c.changed = Date.now();
  keep(c);
  drawList();
  running();
  $("say").textContent = run.message.fault ?? (run.message.finish === "stopped" ? "Stopped." : "The answer is complete.");
  if (state.here !== c) return;
  const low = atBottom();
  run.view.finish(true);
  drawMeter();
  if (low) follow(true);
}

// Ends an answer whose conversation is gone, or has become another.
function forget(id) {
  const run = state.runs.get(id);
  if (!run) return;
  run.forgotten = true;
  run.abort.abort();
  state.runs.delete(id);
}

function stop() {
  runHere()?.abort.abort();
}

function running() {
  const on = runHere() !== undefined;
  $("stop").hidden = !on;
  $("send").hidden = on;
  $("send").disabled = $("input").value.trim() === "";
}

function send() {
  const text = $("input").value;
  if (!text.trim() || !mayAsk()) return;
  $("input").value = "";
  grow();
  ask(text);
}

// ---- Figures, scrolling, messages to the user

function drawMeter() {
  const last = state.here.messages.findLast((m) => m.stats)?.stats;
  const live = runHere()?.message.stats;
  $("figures").textContent = live ? figures(live) : "\u00a0";
  const depth = last ? last.prompt + (last.completion ?? 0) : 0;
  $("depth").hidden = !depth || !state.context;
  if ($("depth").hidden) return;
  $("depth-text").textContent = `${count(depth)} of ${count(state.context)}`;
  $("depth-bar").value = depth / state.context;
}

function atBottom() {
  const s = $("scroll");
  return s.scrollHeight - s.scrollTop - s.clientHeight < 60;
}

function follow(go) {
  const s = $("scroll");
  if (go) s.scrollTop = s.scrollHeight;
  $("down").hidden = atBottom();
}

let toastTimer = 0;
function toast(text, act, call) {
  $("toast-text").textContent = text;
  $("toast-act").hidden = !act;
  $("toast-act").textContent = act ?? "";
  $("toast-act").onclick = () => {
    $("toast").hidden = true;
    call();
  };
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { $("toast").hidden = true; }, act ? 8000 : 3500);
}

function tell(text, bad = false) {
  $("banner").hidden = !text;
  $("banner").textContent = text;
  $("banner").classList.toggle("bad", bad);
}

// navigator.clipboard is there on https and on this machine only.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = element("textarea", { class: "hidden" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  toast("Copied.");
}

function copyLast() {
  const m = state.here.messages.findLast((x) => x.role === "assistant");
  if (m) copy(m.content);
}

// ---- Server, key, settings

async function hail() {
  try {
    const list = await server.models(state.key);
    state.model = list[0]?.id ?? "";
    state.context = Number(list[0]?.max_model_len) || 0;
    $("model").textContent = state.model;
    tell("");
    drawMeter();
  } catch (e) {
    if (e.kind === "key") askKey(state.key !== "");
    else watchHealth();
  }
}

let watching = false;
async function watchHealth() {
  if (watching) return;
  watching = true;
  for (;;) {
    const h = await server.health();
    if (h.status === "ok") break;
    if (h.status === "loading") tell("The model is being loaded. What you send is answered when it is ready.");
    else if (h.status === "draining") tell("The server is shutting down and takes no new messages.", true);
    else if (h.status === "away") tell("The server cannot be reached. Start it again, or check the network; this page keeps trying.", true);
    else tell(`The server has failed and must be started again. ${h.reason ?? ""}`, true);
    await new Promise((done) => setTimeout(done, 2000));
  }
  watching = false;
  tell("");
  hail();
  const last = state.here.messages.at(-1);
  if (last && last === state.unanswered && !runHere()) retry();
}

function askKey(wrong) {
  if ($("key-ask").open) return;
  $("key-new").value = "";
  $("key-new-keep").checked = store.keyIsKept();
  $("key-title").textContent = wrong && state.key ? "The server does not know this key" : "The server asks for a key";
  $("key-ask").showModal();
}

function useKey(value, keepIt) {
  state.key = value.trim();
  store.saveKey(state.key, keepIt);
  hail();
}

function openSettings() {
  const s = state.settings;
  $("system").value = state.here.system;
  $("tools").value = state.here.tools;
  $("tools-wrong").hidden = true;
  $("temperature").value = s.temperature;
  $("most").value = s.most;
  $("key").value = state.key;
  $("key-keep").checked = store.keyIsKept();
  $("settings").showModal();
}

// False, with the reason shown, where something cannot be.
function takeSettings() {
  try {
    toolsOf($("tools").value);
  } catch (e) {
    $("tools-wrong").textContent = `This is no list of tools: ${e.message}`;
    $("tools-wrong").hidden = false;
    $("tools").focus();
    return false;
  }
  state.here.system = $("system").value;
  state.here.tools = $("tools").value;
  if (state.here.messages.length > 0) keep(state.here);
  Object.assign(state.settings, { temperature: $("temperature").value, most: $("most").value });
  store.saveSettings(state.settings);
  if ($("key").value.trim() !== state.key || $("key-keep").checked !== store.keyIsKept()) useKey($("key").value, $("key-keep").checked);
  return true;
}

function setEffort(value) {
  state.settings.effort = value;
  $("effort").value = value;
  store.saveSettings(state.settings);
}

function setTheme(name) {
  store.saveTheme(name);
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  $("theme-name").textContent = `Theme: ${name || "as the system"}`;
}

function nextOf(list, x) {
  return list[(list.indexOf(x) + 1) % list.length];
}

// ---- Keys and the rest of the wiring

function otherConversation(step) {
  const ids = store.index().map((c) => c.id);
  const at = ids.indexOf(state.here.id);
  const next = ids[at < 0 ? 0 : at + step];
  if (next) show(next);
}

function openSide() {
  document.body.classList.add("side-open");
  $("side").querySelector(".open, #new").focus();
}

function closeSide() {
  document.body.classList.remove("side-open");
}

function grow() {
  const field = $("input");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
  running();
}

const kAlt = {
  KeyN: () => show(null), KeyR: retry, KeyC: copyLast, KeyS: openSettings,
  KeyT: () => setTheme(nextOf(["", "light", "dark"], store.theme())),
  KeyE: () => {
    setEffort(nextOf(["none", "low", "high", "max"], state.settings.effort));
    toast(`Thinking: ${$("effort").selectedOptions[0].textContent}`);
  },
  ArrowUp: () => otherConversation(-1), ArrowDown: () => otherConversation(1),
};

function onKey(e) {
  if (e.isComposing || document.querySelector("dialog[open]")) return;
  const writing = /^(TEXTAREA|INPUT|SELECT)$/.test(e.target.tagName);
  if (e.altKey && !e.ctrlKey && !e.metaKey && kAlt[e.code]) {
    e.preventDefault();
    kAlt[e.code]();
  } else if (e.key === "Escape") {
    if (document.body.classList.contains("side-open")) closeSide();
    else stop();
  } else if (e.key === "Enter" && e.target === $("input") && !e.shiftKey) {
    e.preventDefault();
    send();
  } else if (e.key === "ArrowUp" && e.target === $("input") && !$("input").value) {
    const at = state.here.messages.findLastIndex((m) => m.role === "user");
    if (at < 0 || runHere()) return;
    e.preventDefault();
    state.views[at].edit();
  } else if (!writing && !e.ctrlKey && !e.metaKey && e.key === "/") {
    e.preventDefault();
    $("input").focus();
  } else if (!e.ctrlKey && !e.metaKey && e.key === "?" && (!writing || (e.target === $("input") && !$("input").value))) {
    e.preventDefault();
    $("help").showModal();
  }
}

function wire() {
  document.addEventListener("keydown", onKey);
  $("form").addEventListener("submit", (e) => {
    e.preventDefault();
    send();
  });
  $("input").addEventListener("input", grow);
  $("stop").addEventListener("click", stop);
  $("new").addEventListener("click", () => show(null));
  $("scroll").addEventListener("scroll", () => follow(false), { passive: true });
  $("down").addEventListener("click", () => follow(true));
  $("log").addEventListener("click", (e) => {
    const code = e.target.closest(".copy-code")?.closest(".code");
    if (code) copy(code.querySelector("code").textContent);
  });
  $("theme").addEventListener("click", kAlt.KeyT);
  $("keys").addEventListener("click", () => $("help").showModal());
  $("side-open").addEventListener("click", openSide);
  $("side-close").addEventListener("click", closeSide);
  $("veil").addEventListener("click", closeSide);
  $("effort").addEventListener("change", () => setEffort($("effort").value));
  $("settings-open").addEventListener("click", openSettings);
  $("settings").querySelector("form").addEventListener("submit", (e) => {
    if (!takeSettings()) e.preventDefault();
  });
  $("tools-example").addEventListener("click", () => { $("tools").value = JSON.stringify(kExampleTools, null, 1); });
  $("erase").addEventListener("click", () => {
    if (!confirm("Delete all conversations in this browser? They cannot be brought back.")) return;
    for (const id of [...state.runs.keys()]) forget(id);
    store.removeAll();
    $("settings").close();
    show(null);
  });
  $("key-ask").querySelector("form").addEventListener("submit", () => {
    useKey($("key-new").value, $("key-new-keep").checked);
    if (state.here.messages.at(-1)?.fault) retry();
  });
  $("key-later").addEventListener("click", () => $("key-ask").close());
  addEventListener("storage", (e) => {
    if (e.key === "fathom.index") drawList();
  });
  addEventListener("pagehide", () => {
    for (const run of state.runs.values()) keep(run.conversation);
  });
}

function begin() {
  wire();
  setTheme(store.theme());
  setEffort(state.settings.effort);
  $("where").textContent = location.host;
  $("starters").append(...kStarters.map((text) => element("button", { type: "button", onclick: () => mayAsk() && ask(text) }, text)));
  const latest = store.index()[0];
  show(latest && Date.now() - latest.changed < 12 * 3600e3 ? latest.id : null);
  hail();
}

begin();
