// What is laid over the picture: the kind of map, whose attention, which block and head, how strong.

import { check, el, segments } from "../dom.js";
import { methodsOf } from "../state.js";
import { isQuery, patchOf, plain, tokenName } from "../maps/tokens.js";
import { methodWords } from "../format.js";

/**
 * @param {HTMLElement} node
 * @param {import("../state.js").Model} model
 * @param {{set: (change: Object) => void}} store
 */
export function createControls(node, model, store) {
  const method = segments("method", "Over the picture",
    methodsOf(model).map((name) => ({ value: name, text: methodWords(name).title, title: methodWords(name).text })),
    (value) => store.set({ method: value }));
  const block = slider("Block", 0, model.depth - 1, (value) => store.set({ block: value }));
  const head = slider("Head", -1, model.heads - 1, (value) => store.set({ head: value < 0 ? "mean" : value }));
  const strength = slider("Strength", 0, 100, (value) => store.set({ strength: value }), 5);
  const smooth = el("input", { type: "checkbox", on: { change: () => store.set({ smooth: smooth.checked }) } });
  const spread = el("input", { type: "checkbox", on: { change: () => store.set({ spread: spread.checked }) } });
  const tokens = tokenButtons(model, (query) => store.set({ query, object: null, peek: null }));
  const label = labelInput(model.labels, (value) => store.set({ label: value }));
  const attention = el("div", { class: "sliders" }, block.node, head.node);
  const drawing = el("div", { class: "sliders" }, strength.node, el("div", { class: "checks" },
    el("label", { class: "check" }, smooth, "smooth between patches"),
    el("label", { class: "check" }, spread, "colours from the least, not from 0")));
  node.append(method, tokens.node, attention, label.node, drawing);

  return {
    /** @param {import("../state.js").State} state */
    update(state) {
      check(method, state.method);
      const isAttention = state.method === "attention", isPicture = state.method === "picture";
      tokens.node.hidden = attention.hidden = !isAttention;
      const isLayer = state.method === model.drawing.layer?.name;
      const hasNoClass = isAttention || isPicture || isLayer || Boolean(methodWords(state.method).always);
      label.node.hidden = hasNoClass || !model.labels || model.drawing.explainsLabels === false;
      block.show(state.block, String(state.block));
      head.show(state.head === "mean" ? -1 : state.head, state.head === "mean" ? "mean of all" : String(state.head));
      strength.show(state.strength, `${state.strength} %`);
      drawing.hidden = isPicture;
      smooth.checked = state.smooth;
      spread.checked = state.spread;
      smooth.parentElement.hidden = isLayer;
      spread.parentElement.hidden = smooth.parentElement.hidden || Boolean(methodWords(state.method).signed);
      tokens.update(state);
      label.update(state);
    },
  };
}

/**
 * @param {string} name @param {number} low @param {number} high
 * @param {(value: number) => void} moved @param {number} [step]
 */
export function slider(name, low, high, moved, step = 1) {
  const input = el("input", {
    type: "range", "aria-label": name, min: low, max: high, step, on: { input: () => moved(Number(input.value)) },
  });
  const output = el("span", { class: "value" }); // an <output> would take the label from the input
  return {
    node: el("label", {}, `${name} `, output, input),
    /** @param {number} value @param {string} words */
    show(value, words) {
      input.value = String(value);
      input.setAttribute("aria-valuetext", words);
      input.disabled = low >= high;
      output.textContent = words;
    },
  };
}

/** A button for each prefix token and one for the patch: whose attention is shown. */
function tokenButtons(model, chosen) {
  const [rows, columns] = model.grid;
  let patch = `${Math.floor(rows / 2)},${Math.floor(columns / 2)}`;
  const button = (/** @type {string} */ text, /** @type {() => string} */ query) =>
    el("button", { type: "button", text, "aria-pressed": "false", on: { click: () => chosen(query()) } });
  const prefix = model.prefix.filter((name) => !isQuery(name))
    .map((name) => ({ query: plain(name), node: button(name, () => plain(name)) }));
  const own = button("", () => patch);
  const queries = el("select", { "aria-label": "A query", on: { change: () => queries.value && chosen(queries.value) } },
    el("option", { value: "", text: "a query …" }),
    ...model.prefix.filter(isQuery).map((name) => el("option", { value: name, text: name })));
  queries.hidden = queries.length < 2;
  return {
    node: el("div", { class: "tokens", role: "group", "aria-label": "Whose attention" },
      el("span", { class: "legend", text: "Whose attention" }), ...prefix.map((item) => item.node), own, queries),
    /** @param {import("../state.js").State} state */
    update(state) {
      if (patchOf(state.query)) patch = state.query;
      own.textContent = tokenName(patch, []);
      queries.value = isQuery(state.query) && !state.object ? state.query : "";
      for (const { query, node } of [...prefix, { query: patch, node: own }]) {
        node.setAttribute("aria-pressed", String(plain(state.query) === query && !state.object));
      }
    },
  };
}

/** Any class can be explained, not only those of the answer. */
function labelInput(labels, chosen) {
  const list = el("datalist", { id: "labels" }, ...(labels ?? []).map((name) => el("option", { value: name })));
  const input = el("input", {
    type: "text", list: "labels", placeholder: "what the model answers", autocomplete: "off",
    on: { change: () => chosen((labels ?? []).includes(input.value) ? input.value : null) },
  });
  return {
    node: el("label", { class: "labelled" }, "Explain the class ", input, list),
    /** @param {import("../state.js").State} state */
    update(state) {
      if (document.activeElement !== input) input.value = state.label ?? "";
    },
  };
}
