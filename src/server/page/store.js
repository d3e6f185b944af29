// What this browser keeps: conversations, each under its own name, and settings. What is read back is not trusted.
const kIndex = "fathom.index";
const kSettings = "fathom.settings";
const kKey = "fathom.key";

function read(store, name) {
  try {
    return JSON.parse(store.getItem(name) ?? "null");
  } catch {
    return null;
  }
}

function write(store, name, value) {
  try {
    store.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;  // full, or forbidden
  }
}

const text = (x) => (typeof x === "string" ? x : "");

function message(m) {
  if (m?.role === "user") return { role: "user", content: text(m.content) };
  if (m?.role !== "assistant") return null;
  const calls = (Array.isArray(m.calls) ? m.calls : []).map((c) => ({
    id: text(c?.id), name: text(c?.name), arguments: text(c?.arguments), result: typeof c?.result === "string" ? c.result : null,
  }));
  return { role: "assistant", reasoning: text(m.reasoning), content: text(m.content), calls, finish: text(m.finish) || null,
    fault: text(m.fault) || null, stats: m.stats && typeof m.stats === "object" ? m.stats : null };
}

// [{id, title, changed}], the newest first.
export function index() {
  const list = read(localStorage, kIndex);
  return (Array.isArray(list) ? list : [])
    .filter((e) => e && typeof e.id === "string")
    .map((e) => ({ id: e.id, title: text(e.title), changed: Number(e.changed) || 0 }))
    .sort((a, b) => b.changed - a.changed);
}

export function fresh() {
  return { id: Array.from(crypto.getRandomValues(new Uint8Array(9)), (b) => b.toString(36)).join(""), title: "", changed: Date.now(),
    system: "", tools: "", messages: [] };
}

export function load(id) {
  const c = read(localStorage, `fathom.c.${id}`);
  if (!c || typeof c !== "object") return null;
  const messages = (Array.isArray(c.messages) ? c.messages : []).map(message).filter(Boolean);
  return { id, title: text(c.title), changed: Number(c.changed) || 0, system: text(c.system), tools: text(c.tools), messages };
}

// False where the browser has no room.
export function save(c) {
  if (!write(localStorage, `fathom.c.${c.id}`, c)) return false;
  const list = index().filter((e) => e.id !== c.id);
  list.push({ id: c.id, title: c.title, changed: c.changed });
  return write(localStorage, kIndex, list);
}

export function remove(id) {
  localStorage.removeItem(`fathom.c.${id}`);
  write(localStorage, kIndex, index().filter((e) => e.id !== id));
}

export function removeAll() {
  for (const { id } of index()) localStorage.removeItem(`fathom.c.${id}`);
  localStorage.removeItem(kIndex);
}

export function settings() {
  const s = read(localStorage, kSettings) ?? {};
  return { effort: ["none", "low", "high", "max"].includes(s.effort) ? s.effort : "high",
    temperature: text(s.temperature), most: text(s.most) };
}

export function saveSettings(s) {
  write(localStorage, kSettings, s);
}

export function theme() {
  try {
    return localStorage.getItem("fathom.theme") ?? "";
  } catch {
    return "";
  }
}

export function saveTheme(name) {
  try {
    if (name) localStorage.setItem("fathom.theme", name);
    else localStorage.removeItem("fathom.theme");
  } catch {
    // The theme lasts as long as the page.
  }
}

// The key lasts as long as the tab unless it is to be kept.
export function key() {
  return text(read(sessionStorage, kKey)) || text(read(localStorage, kKey));
}

export function keyIsKept() {
  return text(read(localStorage, kKey)) !== "";
}

export function saveKey(value, keep) {
  sessionStorage.removeItem(kKey);
  localStorage.removeItem(kKey);
  if (value) write(keep ? localStorage : sessionStorage, kKey, value);
}
