"use strict";
// Lists the operations of openapi.json.

const $ = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

async function load() {
  const key = sessionStorage.getItem("key");
  const response = await fetch("openapi.json", { headers: key ? { authorization: `Bearer ${key}` } : {} });
  const body = await response.json();
  $("access").hidden = response.status !== 401;
  if (!response.ok) {
    $("status").textContent = response.status === 401 ? "This server has keys." : body.error.message;
    return;
  }
  $("status").textContent = body.info.description;
  $("operations").replaceChildren(...Object.entries(body.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => described(path, method, operation))));
}

function described(path, method, operation) {
  const title = element("summary", {}, element("span", { className: "method", textContent: method.toUpperCase() }),
    element("code", { textContent: path }), ` ${operation.summary}`);
  const parts = [title];
  for (const [kind, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
    parts.push(element("p", { className: "hint", textContent: `Body: ${kind}` }));
    parts.push(element("pre", { textContent: JSON.stringify(schema, null, 2) }));
  }
  const statuses = Object.entries(operation.responses).map(([status, one]) => `${status} ${one.description}`);
  parts.push(element("p", { className: "hint", textContent: `Answers: ${statuses.join(", ")}.` }));
  return element("details", { className: "operation" }, ...parts);
}

$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value);
  load();
});
load();
