"use strict";
const $ = (id) => document.getElementById(id);
let models = {}, history = [], running = null;

const headers = () => {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
};

async function failure(response) {
  try { return (await response.json()).error.message; } catch { return `HTTP ${response.status}`; }
}

async function loadModels() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) { $("speed").textContent = await failure(response); return; }
  models = {};
  $("model").replaceChildren(...(await response.json()).data.map((m) => {
    models[m.id] = m;
    const option = document.createElement("option");
    option.value = option.textContent = m.id;
    return option;
  }));
  $("speed").textContent = "";
  showContext(0);
}

function showContext(used) {
  const size = models[$("model").value]?.context;
  $("context").textContent = size ? `context ${used} of ${size} tokens` : "";
}

// Markdown as DOM nodes; no HTML of the model's ever becomes markup.
function inline(parent, text) {
  for (const part of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\n]+\*)/)) {
    let node = document.createTextNode(part);
    const mark = part.startsWith("`") ? "code" : part.startsWith("**") ? "strong" : part.startsWith("*") ? "em" : null;
    const width = mark === "strong" ? 2 : 1;
    if (mark && part.length > 2 * width) {
      node = document.createElement(mark);
      node.textContent = part.slice(width, -width);
    }
    parent.append(node);
  }
}

function markdown(text) {
  const out = document.createDocumentFragment();
  text.split(/^```/m).forEach((part, i) => {
    if (i % 2) {
      const pre = document.createElement("pre"), code = document.createElement("code");
      code.textContent = part.slice(part.indexOf("\n") + 1).trimEnd();
      pre.append(code);
      out.append(pre);
      return;
    }
    let list = null, paragraph = null;
    for (const line of part.split("\n")) {
      const item = line.match(/^\s*(?:([-*+])|\d+[.)])\s+(.*)/), head = line.match(/^#{1,6}\s+(.*)/);
      if (!line.trim()) { list = paragraph = null; continue; }
      if (item) {
        const kind = item[1] ? "ul" : "ol";
        if (list?.localName !== kind) { list = document.createElement(kind); out.append(list); }
        const li = document.createElement("li");
        inline(li, item[2]);
        list.append(li);
        paragraph = null;
      } else if (head) {
        const h = document.createElement("h3");
        inline(h, head[1]);
        out.append(h);
        list = paragraph = null;
      } else {
        list = null;
        if (paragraph) paragraph.append(document.createElement("br"));
        else { paragraph = document.createElement("p"); out.append(paragraph); }
        inline(paragraph, line);
      }
    }
  });
  return out;
}

function addMessage(role, text) {
  const box = document.createElement("div"), body = document.createElement("div");
  box.className = `message ${role}`;
  body.className = "body";
  body.append(markdown(text));
  box.append(body);
  $("messages").append(box);
  box.scrollIntoView({ block: "end" });
  return { box, body };
}

function settings() {
  const out = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    if ($(name).value !== "") out[name] = Number($(name).value);
  }
  return out;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function showReasoning(view, text) {
  if (!view.reasoning) {
    const details = document.createElement("details"), summary = document.createElement("summary");
    summary.textContent = "Reasoning";
    view.reasoning = document.createElement("div");
    details.append(summary, view.reasoning);
    view.box.prepend(details);
  }
  view.reasoning.replaceChildren(markdown(text));
}

async function answer() {
  running = new AbortController();
  $("send").hidden = true;
  $("stop").hidden = false;
  const view = addMessage("assistant", "");
  view.box.classList.add("busy");
  let text = "", reasoning = "", first = 0, tokens = 0, error = "";
  const began = performance.now();
  try {
    const system = $("system").value.trim();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...history];
    const body = { model: $("model").value, messages, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, ...settings() };
    const response = await fetch("v1/chat/completions",
      { method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal });
    if (!response.ok) throw new Error(await failure(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) { tokens = event.usage.completion_tokens; showContext(event.usage.total_tokens); }
      const delta = event.choices[0]?.delta;
      if (!delta || !(delta.content || delta.reasoning_content)) continue;
      first ||= performance.now();
      if (!event.usage) tokens += 1;
      const log = $("messages"), follow = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      if (delta.reasoning_content) showReasoning(view, reasoning += delta.reasoning_content);
      if (delta.content) view.body.replaceChildren(markdown(text += delta.content));
      if (follow) log.scrollTop = log.scrollHeight;
      const seconds = (performance.now() - first) / 1000;
      if (seconds > 0.2) $("speed").textContent = `${(tokens / seconds).toFixed(1)} tokens/s`;
    }
  } catch (problem) {
    if (problem.name !== "AbortError") error = problem.message;
  }
  if (first) {
    const seconds = (performance.now() - first) / 1000;
    $("speed").textContent = `${tokens} tokens at ${(tokens / Math.max(seconds, 0.001)).toFixed(1)} tokens/s, first after ${((first - began) / 1000).toFixed(2)} s`;
  }
  view.box.classList.remove("busy");
  if (text) history.push({ role: "assistant", content: text });
  else if (!reasoning) view.box.remove();
  if (error) addMessage("error", error);
  running = null;
  $("send").hidden = false;
  $("stop").hidden = true;
  $("prompt").focus();
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("prompt").value = "";
  if (history.at(-1)?.role === "user") history.pop();
  history.push({ role: "user", content: text });
  addMessage("user", text);
  answer();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("form").requestSubmit(); }
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  running?.abort();
  history = [];
  $("messages").replaceChildren();
  $("speed").textContent = "";
  showContext(0);
});
$("toggle").addEventListener("click", () => {
  $("settings").hidden = !$("settings").hidden;
  $("toggle").setAttribute("aria-expanded", String(!$("settings").hidden));
});
$("key").addEventListener("change", loadModels);
$("model").addEventListener("change", () => showContext(0));
loadModels();
