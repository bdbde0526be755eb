// What colours stand for: the two ends of their scale, and the colours between.

import { el } from "../dom.js";

/** @param {string[]} ends what the first and the last colour stand for @param {boolean} [signed] from blue to red */
export const colourRamp = ([first, last], signed = false) =>
  el("span", { class: "ramp" }, el("span", { text: first }), el("i", { class: signed ? "both" : "one" }),
    el("span", { text: last }));
