// The walk: every step from pixels to the answer, with the real numbers of this picture. One step at a time.

import { el } from "../dom.js";
import { colourRamp } from "./colour_ramp.js";
import { slider } from "./controls.js";

/**
 * @param {HTMLElement} node
 * @param {import("../state.js").Model} model
 * @param {{get: () => import("../state.js").State, set: (change: Object) => void}} store
 */
export function createWalkView(node, model, store) {
  let count = 1, builtKey = "";
  const go = (/** @type {number} */ step) => store.set({ step: Math.min(count, Math.max(1, step)) });
  const previous = el("button", { type: "button", text: "← Previous", on: { click: () => go(store.get().step - 1) } });
  const next = el("button", { type: "button", text: "Next →", on: { click: () => go(store.get().step + 1) } });
  next.classList.add("primary");
  const list = el("select", { "aria-label": "Step", on: { change: () => go(Number(list.value)) } });
  const block = slider("Through block", 0, model.depth - 1, (value) => store.set({ block: value }));
  const cards = el("div", { class: "panes walked", "aria-live": "polite" });
  const bar = el("div", { class: "card walkbar" }, el("div", { class: "row stepper" }, previous, list, next), block.node);
  const hint = el("p", { class: "card empty", text: "Choose a picture first: the walk follows it through the model." });
  node.append(bar, cards, hint);
  node.addEventListener("keydown", (event) => {
    if (event.target instanceof Element && event.target.closest("input, select")) return;
    if (event.key === "ArrowRight") go(store.get().step + 1);
    if (event.key === "ArrowLeft") go(store.get().step - 1);
  });

  return {
    /** @param {import("../state.js").State} state @param {import("../picture/pane.js").Pane[]} panes */
    update(state, panes) {
      node.hidden = state.view !== "walk";
      if (node.hidden) return;
      const open = panes.filter((pane) => pane.picture);
      hint.hidden = open.length > 0;
      bar.hidden = cards.hidden = !open.length;
      block.show(state.block, String(state.block));
      const walks = open.map((pane) => pane.walk(state.block));
      const steps = walks.find(Array.isArray);
      const key = [state.step, state.block, ...open.map((pane) => pane.version), ...walks.map(Boolean)].join();
      if (key === builtKey) return;
      builtKey = key;
      cards.classList.toggle("two", open.length > 1);
      if (steps) {
        count = steps.length;
        const title = (step, i) => `${i + 1} of ${count}: ${step.title}`;
        list.replaceChildren(...steps.map((step, i) => el("option", { value: i + 1, text: title(step, i) })));
      }
      const step = Math.min(count, state.step);
      list.value = String(step);
      previous.disabled = step <= 1;
      next.disabled = step >= count;
      cards.replaceChildren(...open.map((pane, i) =>
        walkCard(walks[i], step, open.length > 1 ? pane.source.name : "")));
    },
  };
}

/** @param {any} steps @param {number} number @param {string} name of the picture, where there are two */
function walkCard(steps, number, name) {
  if (!steps) return el("div", { class: "card empty busy" }, el("p", { text: "Walking through the model …" }));
  if (steps.error) return el("p", { class: "aside", text: steps.error });
  const step = steps[number - 1];
  return el("article", { class: "card step" },
    name ? el("p", { class: "soft small filename", text: name }) : null,
    el("h2", {}, el("span", { class: "count", text: String(number) }), el("span", { text: step.title })),
    el("p", { class: "formula" }, el("code", { text: step.formula }), el("span", { class: "shape", text: step.shape })),
    el("p", { text: step.text }),
    el("div", { class: "figures" }, ...step.figures.map(figure)),
    step.numbers ? firstNumbers(...step.numbers) : null);
}

/** @param {string} what @param {string} values */
const firstNumbers = (what, values) =>
  el("p", { class: "soft small first" }, `${what[0].toUpperCase()}${what.slice(1)}: `, el("span", { text: values }));

function figure({ kind, caption, picture, rows, range, signed }) {
  return el("figure", { class: kind === "bars" ? "numbers" : `numbers ${kind}` },
    kind === "bars" ? bars(rows) : el("img", { src: picture, alt: caption }),
    el("figcaption", {}, `${caption} `, range ? colourRamp(range, signed) : null));
}

function bars(rows) {
  return el("div", { class: "bars" }, ...rows.flatMap(({ name, number, width, negative }) => {
    const bar = el("i", { class: negative ? "negative" : "" });
    bar.style.width = `${width}%`;
    return [el("span", { class: "name", text: name, title: name }), el("span", { class: "bar" }, bar),
      el("span", { class: "number", text: number })];
  }));
}
