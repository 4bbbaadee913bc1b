"use strict";
// Tries each model of the server: drop an image, type a text, watch tokens stream.

const $ = (id) => document.getElementById(id);
const state = { models: [], model: null, image: null, abort: null, key: sessionStorage.getItem("key") };
const LABELS = {
  text: "Text", prompt: "Prompt", inputs: "Inputs, as JSON", pair: "Second text", question: "Question",
  choices: "Choices, one per line", top_k: "At most", adapter: "Adapter", max_tokens: "New tokens",
  temperature: "Temperature", seed: "Seed",
};
const EXAMPLES = { text: "Type a text.", prompt: "Once upon a time" };

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (state.key) headers.authorization = `Bearer ${state.key}`;
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const error = new Error(body?.error?.message ?? body?.error ?? `The server answered with ${response.status}.`);
  error.status = response.status;
  throw error;
}

async function loadModels() {
  try {
    state.models = (await (await send("models")).json()).models;
  } catch (error) {
    $("access").hidden = error.status !== 401;
    $("status").textContent = error.status === 401 ? "This server has keys." : error.message;
    if (error.status === 401) $("key").focus();
    return;
  }
  $("access").hidden = true;
  if (!state.models.length) {
    $("status").textContent = "Loading models …";
    setTimeout(loadModels, 500);
    return;
  }
  $("status").hidden = true;
  $("models").hidden = $("work").hidden = false;
  $("models").replaceChildren(element("legend", { textContent: "Model" }), ...state.models.map(modelChoice));
  const wanted = decodeURIComponent(location.hash.slice(1));
  select(state.models.find((one) => one.name === wanted) ?? state.models[0]);
}

function modelChoice(model) {
  const input = element("input", { type: "radio", name: "model", value: model.name });
  input.addEventListener("change", () => select(model));
  const task = model.task ? model.task.replaceAll("-", " ") : "arrays";
  return element("label", { className: "model" }, input,
    element("span", {}, model.name, element("small", { textContent: task })));
}

function select(model) {
  state.abort?.abort();
  state.model = model;
  state.image = null;
  history.replaceState(null, "", `#${encodeURIComponent(model.name)}`);
  for (const input of document.querySelectorAll("input[name=model]")) input.checked = input.value === model.name;
  const precision = model.precision === "fp32" ? "" : `, ${model.precision}`;
  const labels = model.labels ? `, ${model.labels.length} labels` : "";
  $("about").textContent = `Runs on ${model.provider}${precision}${labels}.`;
  $("fields").replaceChildren(...fieldsOf(model));
  $("run").textContent = model.input === "prompt" ? "Generate" : "Run";
  $("answer").replaceChildren(element("p", { className: "hint", textContent: "The answer appears here." }));
  $("time").textContent = "";
  $("command").hidden = true;
}

function fieldsOf(model) {
  const fields = [];
  if (model.input === "image") fields.push(dropZone());
  else fields.push(area(model.input, EXAMPLES[model.input] ?? "", "area"));
  const properties = model.request.properties;
  for (const name of ["pair", "question"]) if (properties[name]) fields.push(area(name, "", "area short"));
  if (properties.choices) fields.push(area("choices", "", "area short"));
  const numbers = element("div", { className: "numbers" });
  if (model.input === "prompt") {
    numbers.append(number("max_tokens", 64, 1, 1), number("temperature", 0.8, 0, 0.1), number("seed", "", 0, 1));
    if (model.chat) {
      const box = element("input", { type: "checkbox", id: "chat", checked: true });
      fields.push(element("div", { className: "field" },
        element("label", { className: "inline" }, box, "As a message of a chat")));
    }
  } else if (properties.top_k && model.task) {
    numbers.append(number("top_k", Math.min(5, model.labels?.length ?? 5), 1, 1));
  }
  if (numbers.childNodes.length) fields.push(numbers);
  if (model.adapters.length) fields.push(adapters(model.adapters));
  return fields;
}

function field(name, control) {
  control.id = `field-${name}`;
  return element("div", { className: "field" }, element("label", { htmlFor: control.id, textContent: LABELS[name] }), control);
}

function area(name, placeholder, kind) {
  return field(name, element("textarea", { placeholder, className: kind.replace("area", "").trim(), spellcheck: false }));
}

function number(name, value, min, step) {
  return field(name, element("input", { type: "number", value, min, step: name === "temperature" ? "any" : step, inputMode: "decimal" }));
}

function adapters(names) {
  const options = ["", ...names].map((name) => element("option", { value: name, textContent: name || "none" }));
  return field("adapter", element("select", {}, ...options));
}

function dropZone() {
  const input = element("input", { type: "file", accept: "image/*", id: "field-image" });
  const content = element("span", { className: "hint", textContent: "Drop an image, paste one, or press to choose a file." });
  const zone = element("label", { className: "drop", htmlFor: "field-image" }, input, content);
  input.addEventListener("change", () => input.files[0] && useImage(input.files[0]));
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files[0]) useImage(event.dataTransfer.files[0]);
  });
  return element("div", { className: "field" }, zone);
}

function useImage(file) {
  state.image = file;
  const picture = element("img", { alt: `The image ${file.name}` });
  picture.addEventListener("load", () => {
    picture.classList.toggle("small", picture.naturalWidth < 160);
    URL.revokeObjectURL(picture.src);
  });
  picture.src = URL.createObjectURL(file);
  document.querySelector(".drop").querySelectorAll("span, img").forEach((old) => old.remove());
  document.querySelector(".drop").append(picture);
  run();
}

const value = (name) => $(`field-${name}`)?.value ?? "";

function request() {
  const model = state.model;
  const adapter = value("adapter");
  if (model.input === "image") {
    if (!state.image) throw new Error("Choose an image first.");
    const query = new URLSearchParams();
    if (value("top_k")) query.set("top_k", value("top_k"));
    if (adapter) query.set("adapter", adapter);
    const path = `models/${model.name}${query.size ? `?${query}` : ""}`;
    const kind = state.image.type || "application/octet-stream";
    return { path, body: state.image, kind, shown: `--data-binary @${state.image.name}` };
  }
  if (model.input === "prompt") return generation(model, adapter);
  const body = {};
  body[model.input] = model.input === "inputs" ? JSON.parse(value("inputs")) : value("text");
  for (const name of ["pair", "question"]) {
    const required = model.request.required.includes(name);
    if ($(`field-${name}`) && (value(name) || required)) body[name] = value(name);
  }
  if ($("field-choices")) body.choices = value("choices").split("\n").filter((line) => line.trim());
  if (value("top_k")) body.top_k = Number(value("top_k"));
  if (adapter) body.adapter = adapter;
  return json(`models/${model.name}`, body);
}

function generation(model, adapter) {
  const body = { model: adapter ? `${model.name}:${adapter}` : model.name, stream: true };
  for (const name of ["max_tokens", "temperature", "seed"]) if (value(name) !== "") body[name] = Number(value(name));
  if ($("chat")?.checked) return json("v1/chat/completions", { ...body, messages: [{ role: "user", content: value("prompt") }] });
  return json("v1/completions", { ...body, prompt: value("prompt") });
}

function json(path, body) {
  const text = JSON.stringify(body);
  return { path, body: text, kind: "application/json", shown: `-d '${text.replaceAll("'", "'\\''")}'`, stream: body.stream };
}

async function run() {
  if ($("run").disabled) return;
  const began = performance.now();
  const model = state.model;
  state.abort = new AbortController();
  const { signal } = state.abort;
  $("run").disabled = true;
  $("stop").hidden = model.input !== "prompt";
  $("time").textContent = "";
  try {
    const sent = request();
    showCommand(sent);
    const response = await send(sent.path, { method: "POST", body: sent.body, headers: { "content-type": sent.kind }, signal });
    if (sent.stream) await showStream(response, began);
    else {
      show(await response.json());
      $("time").textContent = `${Math.round(performance.now() - began)} ms`;
    }
  } catch (error) {
    if (signal.aborted) return;
    const shown = element("p", { className: "error", textContent: error.message });
    if (model.input === "prompt" && $("answer").querySelector(".text")) $("answer").append(shown);
    else $("answer").replaceChildren(shown);
  } finally {
    if (state.abort.signal === signal) {
      $("run").disabled = false;
      $("stop").hidden = true;
    }
  }
}

function showCommand(sent) {
  const key = state.key ? " -H 'authorization: Bearer KEY'" : "";
  const address = new URL(sent.path, location.href).href;
  $("command").querySelector("pre").textContent =
    `curl '${address}' \\\n  -H 'content-type: ${sent.kind}'${key} \\\n  ${sent.shown}`;
  $("command").hidden = false;
}

async function showStream(response, began) {
  const text = element("p", { className: "text" });
  const prompt = $("chat")?.checked ? "" : value("prompt");
  const made = element("span");
  text.append(element("span", { className: "prompt", textContent: prompt }), made);
  $("answer").replaceChildren(text);
  let pending = "", tokens = 0;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value: piece } = await reader.read();
    if (done) return;
    const events = (pending + piece).split("\n\n");
    pending = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      const choice = part.choices[0];
      const added = choice.text ?? choice.delta.content ?? "";
      made.append(added);
      tokens += choice.finish_reason === null && choice.delta?.role === undefined;
      const seconds = (performance.now() - began) / 1000;
      $("time").textContent = `${tokens} tokens, ${(tokens / seconds).toFixed(0)} per second`;
    }
  }
}

function show(answer) {
  const parts = [];
  if (answer.predictions) parts.push(bars(answer.predictions.map((row) => [row.label, row.score])));
  if (answer.choices) parts.push(bars(answer.choices.map((row) => [row.choice, row.score])));
  if (answer.numbers) parts.push(bars(answer.numbers.map((row) => [row.label, row.score]), true));
  if (answer.answers) parts.push(bars(answer.answers.map((row) => [row.answer || "(no answer)", row.score])));
  if (answer.tokens) {
    const masks = Array.isArray(answer.tokens[0]) ? answer.tokens : [answer.tokens];
    for (const mask of masks) parts.push(bars(mask.map((row) => [row.token, row.score])));
  }
  if (answer.entities) parts.push(entities(value("text"), answer.entities));
  if (answer.embedding) parts.push(...embedding(answer));
  for (const [name, text] of Object.entries(answer))
    if (name.endsWith("_text")) parts.push(element("p", { className: "text", textContent: text || "(empty)" }));
  if (!parts.length) parts.push(element("pre", { textContent: JSON.stringify(answer, null, 1) }));
  $("answer").replaceChildren(...parts);
}

function bars(rows, plain = false) {
  return element("ul", { className: "bars" }, ...rows.map(([label, score]) => {
    const name = element("span", { className: "name" }, element("span", { textContent: label }));
    if (!plain) name.style.setProperty("--share", `${Math.max(0, Math.min(1, score)) * 100}%`);
    const shown = plain ? score.toPrecision(4) : `${(score * 100).toFixed(1)} %`;
    return element("li", {}, name, element("span", { className: "score", textContent: shown }));
  }));
}

function entities(text, found) {
  if (!found.length) return element("p", { className: "hint", textContent: "No entities." });
  const shown = element("p", { className: "text" });
  const characters = Array.from(text);  // positions count characters, not UTF-16 units
  let place = 0;
  for (const one of found) {
    shown.append(characters.slice(place, one.start).join(""));
    shown.append(element("mark", {}, characters.slice(one.start, one.end).join(""), element("small", { textContent: one.label })));
    place = one.end;
  }
  shown.append(characters.slice(place).join(""));
  return shown;
}

function embedding(answer) {
  const numbers = answer.embedding.flat(Infinity);
  const canvas = element("canvas", { width: Math.min(numbers.length, 1024), height: 1 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `An embedding of shape ${answer.shape.join(" x ")} as colors`);
  const context = canvas.getContext("2d");
  const largest = Math.max(...numbers.map(Math.abs)) || 1;
  for (let index = 0; index < canvas.width; index++) {
    const strength = numbers[index] / largest;
    context.fillStyle = strength < 0 ? `rgba(196, 78, 40, ${-strength})` : `rgba(31, 87, 166, ${strength})`;
    context.fillRect(index, 0, 1, 1);
  }
  const first = numbers.slice(0, 8).map((one) => one.toFixed(4)).join(", ");
  return [
    element("p", { textContent: `A vector of shape ${answer.shape.join(" × ")}.` }), canvas,
    element("pre", { className: "wrapped", textContent: `${first}${numbers.length > 8 ? ", …" : ""}` }),
  ];
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
$("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
});
$("stop").addEventListener("click", () => {
  state.abort?.abort();
  $("run").disabled = false;
  $("stop").hidden = true;
});
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = $("key").value;
  sessionStorage.setItem("key", state.key);
  loadModels();
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (file && state.model?.input === "image") useImage(file);
});
addEventListener("dragover", (event) => event.preventDefault());  // a file beside the zone does not leave the page
addEventListener("drop", (event) => event.preventDefault());
loadModels();
