// What the model answers: classes with probabilities, numbers, areas of a mask, or objects with their scores.

import { classColours, css } from "./colours.js";
import { el } from "./dom.js";
import { probability, short } from "./words.js";

/**
 * One line of an answer. `label`: the class that a click explains. `object`: the box that a click chooses.
 * @typedef {{name: string, number: string, share: number, label?: string, object?: number, colour?: string,
 *            mark?: string}} Line
 */

/**
 * @param {any} answer as /v1/predict gives it, or null for a model of embeddings
 * @param {{data: Uint8Array}|null} mask
 * @param {import("./state.js").Model} model
 * @returns {{title: string, number: string, lines: Line[]}}
 */
export function inLines(answer, mask, model) {
  if (mask) return areas(answer?.areas?.length ? answer.areas : counted(mask.data, model), model);
  if (answer?.objects) return objects(answer, model);
  if (answer?.values) return numbers(answer.values);
  if (!answer?.top) return { title: "An embedding", number: "", lines: [] };
  const lines = answer.top.map((guess) => ({
    name: guess.label, number: probability(guess.probability), share: guess.probability, label: guess.label,
    mark: answer.labels?.includes(guess.label) ? "given" : undefined,
  }));
  if (answer.labels && !answer.labels.length) return { title: "No label", number: "", lines };
  return { title: lines[0].name, number: lines[0].number, lines };
}

/** @param {Object<string, number>} values */
function numbers(values) {
  const lines = Object.entries(values).map(([name, value]) => ({ name, number: short(value), share: 0, label: name }));
  return { title: lines[0].name, number: lines[0].number, lines: lines.length > 1 ? lines : [] };
}

/** The classes of a mask with their shares of it, the largest first. */
function counted(data, { labels }) {
  const counts = new Map();
  for (const index of data) counts.set(index, (counts.get(index) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])
    .map(([index, count]) => ({ label: labels?.[index] ?? "no class", share: count / data.length }));
}

/** @param {{label: string, share: number}[]} found @param {import("./state.js").Model} model */
function areas(found, model) {
  const lines = found.map(({ label, share }) =>
    ({ name: label, number: probability(share), share, label, colour: objectColour(label, model) }));
  if (lines.length === 1) return { title: lines[0].name, number: lines[0].number, lines };
  return { title: `${lines.length} classes`, number: "", lines };
}

/** What was found; objects below the threshold of the model are told as doubtful. */
function objects({ objects: found, threshold = 0 }, model) {
  const lines = found.map(({ label, score }, object) => ({
    name: label, number: probability(score), share: score, object, colour: objectColour(label, model),
    mark: score < threshold ? "doubtful" : undefined,
  }));
  const sure = lines.filter((line) => !line.mark).length;
  return { title: `${sure || "No"} object${sure === 1 ? "" : "s"}`, number: "", lines };
}

/** @param {string} label @param {import("./state.js").Model} model */
export const objectColour = (label, model) =>
  css(classColours(model)[model.labels?.indexOf(label) ?? -1] ?? [110, 110, 110]);

/**
 * The answer's elements; made once for each answer. A line is a button: a click explains its class or chooses its box.
 * @param {any} answer @param {{data: Uint8Array}|null} mask @param {import("./state.js").Model} model
 * @param {(line: Line) => void} chosen
 * @returns {HTMLElement}
 */
export function answerElement(answer, mask, model, chosen) {
  const { title, number, lines } = inLines(answer, mask, model);
  const doubtful = lines.filter((line) => line.mark === "doubtful");
  const list = (/** @type {Line[]} */ some) =>
    el("div", { class: "lines" }, ...some.map((line) => lineButton(line, chosen)));
  return el("div", {},
    el("p", { class: "headline" }, el("b", { text: title }), " ", el("span", { text: number })),
    list(lines.filter((line) => line.mark !== "doubtful")),
    doubtful.length ? el("details", {}, el("summary", { text: `${doubtful.length} more below the threshold, ` +
      probability(answer.threshold) }), list(doubtful)) : null);
}

/** @param {Line} line @param {(line: Line) => void} chosen */
function lineButton(line, chosen) {
  const bar = el("i");
  bar.style.width = `${100 * line.share}%`;
  if (line.colour) bar.style.background = line.colour;
  const number = line.object === undefined ? "" : String(line.object + 1);
  const swatch = line.colour ? el("i", { class: "swatch", text: number }) : null;
  if (swatch) swatch.style.background = line.colour;
  const what = line.object === undefined ? "show what speaks for it" : "show what finds it";
  return el("button", {
    type: "button", class: `line ${line.mark ?? ""}`, "aria-pressed": "false", title: `${line.name}: ${what}`,
    "data-label": line.label, "data-object": line.object, on: { click: () => chosen(line) },
  }, el("span", { class: "name" }, swatch, el("span", { text: line.name })), el("span", { class: "bar" }, bar),
  el("span", { class: "number", text: line.number }));
}
