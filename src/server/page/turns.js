// Turns of a conversation as elements. Text from model and user only ever becomes text nodes (markdown.js).
import { Growing, add, element, markdown } from "./markdown.js";

export function count(n) {
  return n.toLocaleString("en").replaceAll(",", "\u202f");
}

function seconds(s) {
  return s < 10 ? `${s.toFixed(1)} s` : `${Math.round(s)} s`;
}

// {prompt, cached, completion, speed, first} in words.
export function figures(s) {
  const words = [];
  if (s.completion) words.push(`${count(s.completion)} tokens`);
  if (s.speed) words.push(`${s.speed < 100 ? s.speed.toFixed(1) : Math.round(s.speed)} tokens/s`);
  if (s.first !== undefined) words.push(`first after ${seconds(s.first)}`);
  if (s.prompt) {
    words.push(s.cached === undefined ? `prompt ${count(s.prompt)}`
      : `prompt ${count(s.prompt)}, ${Math.round((100 * s.cached) / s.prompt)} % from cache`);
  }
  return words.join(" · ");
}

function button(label, title, onclick) {
  return element("button", { type: "button", class: "quiet", title, onclick }, label);
}

// The arguments of a call: name and value, or the text where it is no JSON object (yet).
function callArguments(text) {
  try {
    const values = Object.entries(JSON.parse(text));
    if (values.length === 0) return element("div", { class: "raw note" }, "no arguments");
    return element("dl", { class: "args" }, ...values.flatMap(([name, value]) => [
      element("dt", {}, name), element("dd", {}, typeof value === "string" ? value : JSON.stringify(value, null, 2))]));
  } catch {
    return element("div", { class: "raw" }, text || "…");
  }
}

// One answer, while it grows and after. `on` has retry(), copy(), results(list), more().
export class AnswerView {
  constructor(message, on) {
    this.message = message;
    this.on = on;
    this.depth = element("span", { class: "depth", title: "Depth of the conversation here, in tokens" });
    this.thinkText = element("div", { class: "text" });
    this.thinkTitle = element("summary", {}, "Thinking");
    this.think = element("details", { class: "think", hidden: true }, this.thinkTitle, this.thinkText);
    this.wait = element("p", { class: "wait", hidden: true });
    this.body = element("div", { class: "md" });
    this.calls = element("div");
    this.tail = element("div");
    this.acts = element("div", { class: "acts" });
    this.root = element("article", { class: "turn bot", "aria-label": "Answer" },
      this.depth, this.think, this.wait, this.body, this.calls, this.tail, this.acts);
    this.growing = new Growing(this.body);
    this.drawn = { reasoning: 0, calls: "" };
  }

  // As much as has come. progress: [done, total] of the prompt, or null.
  grow(progress) {
    const m = this.message;
    this.root.classList.add("live");
    const begun = m.reasoning || m.content || m.calls.length > 0;
    this.wait.hidden = Boolean(begun);
    if (!begun) this.drawWait(progress);
    this.drawThinking(!m.content && m.calls.length === 0);
    if (m.content) this.growing.set(m.content);
    this.drawCalls(false);
  }

  // The whole of it, and what can be done with it. last: it is the last turn.
  finish(last) {
    const m = this.message;
    this.root.classList.remove("live");
    this.wait.hidden = true;
    this.drawThinking(false);
    this.body.replaceChildren();
    add(this.body, markdown(m.content));
    this.drawCalls(last);
    this.tail.replaceChildren(...this.ending(last));
    const acts = [button("Copy", "Copy the answer (Alt C)", () => this.on.copy())];
    if (last) acts.push(button("Again", "Answer again (Alt R)", () => this.on.retry()));
    if (m.stats) acts.push(element("span", { class: "stat" }, figures(m.stats)));
    this.acts.replaceChildren(...acts);
    if (m.stats?.prompt) this.depth.textContent = count(m.stats.prompt + (m.stats.completion ?? 0));
  }

  ending(last) {
    const m = this.message;
    const go = (label, call) => element("button", { type: "button", class: "small", onclick: call }, label);
    if (m.fault) {
      return [element("div", { class: "fault", role: "alert" }, m.fault,
        element("div", { class: "actions" }, last ? go("Try again", () => this.on.retry()) : ""))];
    }
    if (m.finish === "length") return [element("p", { class: "cut" }, "Cut off: the limit of tokens was reached.")];
    if (m.finish === "stopped") return [element("p", { class: "cut" }, "Stopped.")];
    if (m.finish && !m.content && m.calls.length === 0) return [element("p", { class: "cut" }, "The model ended its turn without an answer.")];
    return [];
  }

  drawWait(progress) {
    if (progress === null) {
      this.wait.textContent = "Reading …";
      return;
    }
    const [done, total] = progress;
    this.wait.replaceChildren(`Reading the prompt, ${count(done)} of ${count(total)} tokens`,
      element("progress", { max: total, value: done, "aria-label": "Part of the prompt that has been read" }));
  }

  drawThinking(growing) {
    const text = this.message.reasoning;
    this.think.hidden = !text;
    if (!text) return;
    this.thinkText.append(text.slice(this.drawn.reasoning));
    this.drawn.reasoning = text.length;
    if (growing) {
      this.thinkTitle.textContent = "Thinking …";
      return;
    }
    const words = text.trim().split(/\s+/).length;
    this.thinkTitle.textContent = `Thought, ${count(words)} word${words === 1 ? "" : "s"}`;
  }

  drawCalls(asks) {
    const state = JSON.stringify([this.message.calls, asks]);
    if (state === this.drawn.calls) return;
    this.drawn.calls = state;
    const fields = [];
    const open = asks && !this.message.fault && this.message.finish === "tool_calls";
    this.calls.replaceChildren(...this.message.calls.map((call) => {
      const box = element("section", { class: "call", "aria-label": `Call of ${call.name}` },
        element("div", { class: "name" }, call.name, element("span", { class: "note" }, "tool call")), callArguments(call.arguments));
      if (call.result !== null) {
        box.append(element("div", { class: "result" }, element("span", { class: "note" }, "result"), element("pre", {}, call.result)));
      } else if (open) {
        const field = element("textarea", { rows: "2", spellcheck: "false", class: "mono", "aria-label": `Result of ${call.name}`,
          placeholder: "What the tool answers" });
        fields.push(field);
        box.append(element("div", { class: "result" }, field));
      }
      return box;
    }));
    if (fields.length === 0) return;
    const give = () => this.on.results(fields.map((f) => f.value));
    for (const field of fields) {
      field.addEventListener("keydown", (e) => {
        if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
        e.preventDefault();
        give();
      });
    }
    this.calls.append(element("button", { type: "button", class: "primary give", onclick: give }, fields.length > 1 ? "Give the results" : "Give the result"));
  }
}

// A message of the user. `on` has edit(text), copy().
export function userTurn(message, on) {
  const bubble = element("div", { class: "bubble" }, message.content);
  const acts = element("div", { class: "acts" });
  const root = element("article", { class: "turn user", "aria-label": "You" }, bubble, acts);
  const edit = () => {
    const field = element("textarea", { rows: String(Math.min(12, message.content.split("\n").length + 1)), "aria-label": "Edit the message" });
    field.value = message.content;
    const back = () => {
      root.replaceChildren(bubble, acts);
      acts.querySelector("button").focus();
    };
    const done = () => (field.value.trim() ? on.edit(field.value) : back());
    field.addEventListener("keydown", (e) => {
      if (e.key === "Escape") {
        e.stopPropagation();
        back();
      } else if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
        e.preventDefault();
        done();
      }
    });
    root.replaceChildren(element("div", { class: "edit" }, field, element("div", { class: "actions" },
      element("span", { class: "note" }, "What follows is answered anew."),
      element("button", { type: "button", class: "small", onclick: back }, "Cancel"),
      element("button", { type: "button", class: "small primary", onclick: done }, "Send"))));
    field.focus();
  };
  acts.append(button("Edit", "Edit and send again", edit), button("Copy", "Copy the message", on.copy));
  return { root, edit };
}
