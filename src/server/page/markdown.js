// Markdown to elements. Text becomes text nodes and nothing else: no HTML of a model is ever parsed. Time is linear in the
// text: whoever looks for a closing mark looks no further than kFar, and nesting ends at kDeep.
const kFar = 4000;
const kDeep = 12;

export function element(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name === "onclick") e.addEventListener("click", value);
    else e.setAttribute(name, value === true ? "" : value);
  }
  add(e, children);
  return e;
}

// Lists of any length: as arguments of one call they would overflow the stack.
export function add(parent, nodes) {
  for (const node of nodes) {
    if (Array.isArray(node)) add(parent, node);
    else parent.append(node);
  }
}

// Only where a reader would expect to go; never javascript:, data: or a path on this server.
function safeLink(url) {
  return /^(https?:\/\/|mailto:)[^\s<>"]+$/i.test(url) ? url : null;
}

function link(url, children) {
  return element("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

function closing(text, mark, from) {
  const at = text.slice(from, from + kFar).indexOf(mark);
  return at < 0 ? -1 : from + at;
}

const kEmphasis = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

// One construct at `i`: [nodes, where it ends], or null.
function inlineAt(text, i, depth) {
  const c = text[i];
  if (c === "\\" && i + 1 < text.length && /[!-/:-@[-`{-~]/.test(text[i + 1])) return [[text[i + 1]], i + 2];
  if (c === "`") {
    let ticks = 1;
    while (text[i + ticks] === "`") ticks++;
    const mark = "`".repeat(ticks);
    const end = closing(text, mark, i + ticks);
    if (end < 0) return [[mark], i + ticks];
    return [[element("code", {}, text.slice(i + ticks, end).replace(/^ (.+) $/s, "$1"))], end + ticks];
  }
  if (c === "[" || (c === "!" && text[i + 1] === "[")) {
    const open = c === "!" ? i + 1 : i;
    const label = closing(text, "](", open + 1);
    const end = label < 0 ? -1 : closing(text, ")", label + 2);
    const url = end < 0 ? null : safeLink(text.slice(label + 2, end).trim().split(/\s+/)[0]);
    // A picture would be a request to someone else's machine: its link is shown.
    return url ? [[link(url, inline(text.slice(open + 1, label), depth + 1))], end + 1] : null;
  }
  if (c === "h" && /^https?:\/\//.test(text.slice(i, i + 8)) && !/\w/.test(text[i - 1] ?? " ")) {
    let url = /^[^\s<>"'`]+/.exec(text.slice(i, i + kFar))[0];
    while (/[.,;:!?*_]/.test(url.at(-1))) url = url.slice(0, -1);
    if (url.endsWith(")") && !url.includes("(")) url = url.slice(0, -1);
    return safeLink(url) && url.length > 10 ? [[link(url, [url])], i + url.length] : null;
  }
  for (const [mark, tag] of kEmphasis) {
    if (!text.startsWith(mark, i)) continue;
    const word = mark[0] === "_" && /\w/.test(text[i - 1] ?? " ");
    if (word || /\s/.test(text[i + mark.length] ?? " ")) continue;
    let end = closing(text, mark, i + mark.length);
    while (end > 0 && end < i + kFar && mark.length === 1 && text[end + 1] === mark) end = closing(text, mark, end + 2);
    if (end <= i + mark.length || /\s/.test(text[end - 1])) continue;
    if (mark[0] === "_" && /\w/.test(text[end + mark.length] ?? " ")) continue;
    return [[element(tag, {}, inline(text.slice(i + mark.length, end), depth + 1))], end + mark.length];
  }
  return null;
}

function inline(text, depth = 0) {
  if (depth > kDeep) return [text];
  const out = [];
  let plain = 0;
  for (let i = 0; i < text.length; ) {
    if (text[i] === "\n") {
      out.push(text.slice(plain, i).trimEnd(), element("br"));
      plain = ++i;
      continue;
    }
    const found = "\\`[!h*_~".includes(text[i]) ? inlineAt(text, i, depth) : null;
    if (!found) {
      i++;
      continue;
    }
    if (i > plain) out.push(text.slice(plain, i));
    out.push(found[0]);
    plain = i = found[1];
  }
  if (plain < text.length) out.push(text.slice(plain));
  return out;
}

// Colours: comments, strings, numbers and the words that most languages share. A glance, not a grammar.
const kWords = new Set(("and as assert async await bool break case catch char class const continue def default delete do double else enum " +
  "export extends false final finally float fn for from func function if impl import in int interface is lambda let long match " +
  "module mut new nil None not null or package pass private public pub raise return self static struct super switch this throw " +
  "trait True False true try type typeof use using val var void where while with yield select insert update create table join " +
  "SELECT FROM WHERE INSERT UPDATE CREATE TABLE JOIN AND OR NOT echo then fi done elif").split(" "));

function coloured(code, language) {
  if (code.length > 40000 || /^(text|txt|plain|markdown|md|)$/.test(language)) return [code];
  const hash = !/^(c|cc|cpp|c\+\+|h|cs|csharp|java|js|javascript|jsx|ts|typescript|tsx|go|rust|rs|swift|kotlin|php|css|json)$/.test(language);
  const comment = hash ? "#[^\\n]*" : "//[^\\n]*|/\\*[^]*?(?:\\*/|$)";
  const parts = new RegExp(
    `(${comment})|("(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.){0,300}'|\`[^\`]*\`?)|\\b(\\d[\\w.]*)\\b|([A-Za-z_]\\w*)`, "g");
  const out = [];
  let last = 0;
  for (const m of code.matchAll(parts)) {
    const kind = m[1] ? "c" : m[2] ? "s" : m[3] ? "n" : kWords.has(m[4]) ? "k" : null;
    if (!kind) continue;
    out.push(code.slice(last, m.index), element("span", { class: kind }, m[0]));
    last = m.index + m[0].length;
  }
  out.push(code.slice(last));
  return out;
}

function codeBlock(code, language) {
  const copy = element("button", { class: "quiet copy-code", type: "button" }, "Copy");
  return element("div", { class: "code" },
    element("header", {}, element("span", {}, language || "text"), copy),
    element("pre", { tabindex: "0" }, element("code", {}, coloured(code, language.toLowerCase()))));
}

const kFence = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const kItem = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const kRule = /^ {0,3}([-*_])( *\1){2,} *$/;
const kTableRule = /^ *\|?( *:?-+:? *\|)+( *:?-+:? *)?$/;
const kHeading = /^ {0,3}(#{1,6}) +(.{1,500})$/;

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((c) => c.trim().replaceAll("\\|", "|"));
}

function table(lines) {
  const sides = cells(lines[1]).map((c) => (!c.endsWith(":") ? undefined : c.startsWith(":") ? "middle" : "right"));
  const row = (line, tag) => element("tr", {}, cells(line).map((c, i) => element(tag, { class: sides[i] }, inline(c))));
  return element("div", { class: "table", tabindex: "0" }, element("table", {},
    element("thead", {}, row(lines[0], "th")),
    element("tbody", {}, lines.slice(2).map((l) => row(l, "td")))));
}

// A list from line `i`: [element, the line behind it].
function list(lines, i, depth) {
  const [, indent, bullet] = kItem.exec(lines[i]);
  const ordered = /\d/.test(bullet);
  const out = element(ordered ? "ol" : "ul", ordered ? { start: parseInt(bullet, 10) } : {});
  while (i < lines.length) {
    const m = kItem.exec(lines[i]);
    if (!m || m[1].length > indent.length + 1 || m[1].length < indent.length || /\d/.test(m[2]) !== ordered) break;
    const width = m[0].length - (m[3].length > 4 ? m[3].length - 1 : 0);
    const body = [lines[i].slice(width)];
    for (i++; i < lines.length; i++) {
      const own = /^ */.exec(lines[i])[0].length;
      if (lines[i].trim() === "") {
        const next = lines[i + 1] ?? "";
        if (next.trim() === "" || (/^ */.exec(next)[0].length < 2 + indent.length && !kItem.test(next))) break;
      } else if (own < indent.length + 2 && (kItem.test(lines[i]) || lines[i - 1].trim() === "" || kFence.test(lines[i]) || kHeading.test(lines[i]))) {
        break;
      }
      body.push(lines[i].slice(Math.min(own, width)));
    }
    const nodes = blocks(body, depth + 1);
    // One paragraph in an item is its text.
    if (nodes[0]?.tagName === "P") nodes[0] = [...nodes[0].childNodes];
    out.append(element("li", {}, nodes));
    while (i < lines.length && lines[i].trim() === "" && kItem.test(lines[i + 1] ?? "")) i++;
  }
  return [out, i];
}

function blocks(lines, depth = 0) {
  if (depth > kDeep) return [lines.join("\n")];
  const out = [];
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    const fence = kFence.exec(line);
    if (line.trim() === "") {
      i++;
    } else if (fence) {
      const body = [];
      const end = new RegExp(`^ {0,3}\\${fence[1][0]}{${fence[1].length},} *$`);
      for (i++; i < lines.length && !end.test(lines[i]); i++) body.push(lines[i]);
      i++;
      out.push(codeBlock(body.join("\n"), fence[2]));
    } else if (kHeading.test(line)) {
      const [, marks, words] = kHeading.exec(line);
      out.push(element(`h${marks.length}`, {}, inline(words.trimEnd().replace(/ #{1,6}$/, ""))));
      i++;
    } else if (kRule.test(line)) {
      out.push(element("hr"));
      i++;
    } else if (line.startsWith(">")) {
      const body = [];
      for (; i < lines.length && lines[i].startsWith(">"); i++) body.push(lines[i].replace(/^> ?/, ""));
      out.push(element("blockquote", {}, blocks(body, depth + 1)));
    } else if (kItem.test(line)) {
      const [made, next] = list(lines, i, depth);
      out.push(made);
      i = next;
    } else if (line.includes("|") && kTableRule.test(lines[i + 1] ?? "")) {
      const body = [];
      for (; i < lines.length && lines[i].includes("|"); i++) body.push(lines[i]);
      out.push(table(body));
    } else {
      const body = [];
      const other = (l) => l.trim() === "" || kFence.test(l) || kHeading.test(l) || kRule.test(l) || l.startsWith(">") || kItem.test(l);
      for (; i < lines.length && (body.length === 0 || !other(lines[i])); i++) body.push(lines[i].trimStart());
      out.push(element("p", {}, inline(body.join("\n"))));
    }
  }
  return out;
}

export function markdown(text) {
  let fence = null;
  const lines = text.replace(/\r\n?/g, "\n").split("\n").map((line) => {
    const m = kFence.exec(line);
    if (fence ? line.trim().startsWith(fence) : m) fence = fence ? null : m[1];
    return fence ? line : line.replace(/^[ \t]+/, (space) => space.replaceAll("\t", "    "));
  });
  return blocks(lines);
}

// Text that grows: what lies before the last blank line outside a code block is made once and left alone.
export class Growing {
  constructor(box) {
    this.box = box;
    this.done = 0;     // of the text, as elements before `tail`
    this.scanned = 0;
    this.fence = null;
    this.tail = [];
  }

  set(text) {
    let cut = this.done;
    for (let end = text.indexOf("\n", this.scanned); end >= 0; end = text.indexOf("\n", this.scanned)) {
      const line = text.slice(this.scanned, end);
      const fence = kFence.exec(line);
      if (this.fence) {
        if (line.trim().startsWith(this.fence) && !line.trim().replaceAll(this.fence[0], "")) this.fence = null;
      } else if (fence) {
        this.fence = fence[1];
      } else if (line.trim() === "" && !/^( |[-*+] |\d+[.)] )/.test(text.slice(end + 1, end + 4)) && end + 4 <= text.length) {
        cut = end + 1;
      }
      this.scanned = end + 1;
    }
    for (const node of this.tail) node.remove();
    if (cut > this.done) add(this.box, markdown(text.slice(this.done, cut)));
    this.done = cut;
    this.tail = markdown(text.slice(cut));
    add(this.box, this.tail);
  }
}
