// What the model answers, line by line. Which lines, the script of its task says.

import { classColours, css } from "../maps/colours.js";
import { el } from "../dom.js";
import { probability } from "../format.js";

/**
 * One line of an answer. `label`: the class that a click explains. `object`: the box that a click chooses.
 * @typedef {{name: string, number: string, share: number, label?: string, object?: number, colour?: string,
 *            mark?: string}} Line
 */

/**
 * @param {any} answer as /v1/predict gives it, or null for a model of embeddings
 * @param {import("../maps/attention_maps.js").Part|null} part of the task's layer, such as a mask
 * @param {import("../state.js").Model} model
 * @returns {{title: string, number: string, lines: Line[]}}
 */
const answerLines = (answer, part, model) =>
  answer || part ? model.drawing.answerLines(answer, part, model) : { title: "An embedding", number: "", lines: [] };

/** @param {string} label @param {import("../state.js").Model} model */
export const objectColour = (label, model) =>
  css(classColours(model)[model.labels?.indexOf(label) ?? -1] ?? [110, 110, 110]);

/**
 * The answer's elements; made once for each answer. A line with a class or a box is a button: a click explains the class
 * or chooses the box.
 * @param {any} answer @param {import("../maps/attention_maps.js").Part|null} part @param {import("../state.js").Model} model
 * @param {(line: Line) => void} chosen
 * @returns {HTMLElement}
 */
export function answerElement(answer, part, model, chosen) {
  const { title, number, lines } = answerLines(answer, part, model);
  const doubtful = lines.filter((line) => line.mark === "doubtful");
  const list = (/** @type {Line[]} */ subset) =>
    el("div", { class: "lines" }, ...subset.map((line) => lineElement(line, chosen)));
  return el("div", {},
    el("p", { class: "headline" }, el("b", { text: title }), " ", el("span", { text: number })),
    familiarityElement(answer),
    list(lines.filter((line) => line.mark !== "doubtful")),
    doubtful.length ? el("details", {}, el("summary", { text: `${doubtful.length} more below the threshold, ` +
      probability(answer.threshold) }), list(doubtful)) : null);
}

/** How like the training pictures this one is; null where the model does not tell. @param {any} answer */
function familiarityElement(answer) {
  if (typeof answer?.familiarity !== "number") return null;
  const score = answer.familiarity.toPrecision(2);
  if (!answer.familiar) {
    const text = `Not like anything it learnt (familiarity ${score}): do not trust this answer.`;
    return el("p", { class: "aside stranger", text });
  }
  return el("p", { class: "soft small familiarity", text: `Familiarity ${score}`,
    title: "The share of held-out pictures of training that were at most as like those that it learnt from." });
}

/** @param {Line} line @param {(line: Line) => void} chosen */
function lineElement(line, chosen) {
  const bar = el("i");
  bar.style.width = `${100 * line.share}%`;
  if (line.colour) bar.style.background = line.colour;
  const number = line.object === undefined ? "" : String(line.object + 1);
  const swatch = line.colour ? el("i", { class: "swatch", text: number }) : null;
  if (swatch) swatch.style.background = line.colour;
  const cells = [el("span", { class: "name" }, swatch, el("span", { text: line.name })),
    el("span", { class: "bar" }, bar), el("span", { class: "number", text: line.number })];
  if (line.label === undefined && line.object === undefined) return el("div", { class: "line" }, ...cells);
  const what = line.object === undefined ? "show what speaks for it" : "show what finds it";
  return el("button", {
    type: "button", class: `line ${line.mark ?? ""}`, "aria-pressed": "false", title: `${line.name}: ${what}`,
    "data-label": line.label, "data-object": line.object, on: { click: () => chosen(line) },
  }, ...cells);
}
