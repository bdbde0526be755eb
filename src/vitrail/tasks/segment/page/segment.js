// How the page shows a class for every pixel: the mask over the picture, and the area of each class.

import { probability } from "../format.js";
import { classColours } from "../maps/colours.js";
import { objectColour } from "../picture/answer_list.js";
import { pixelSurface } from "../picture/canvas.js";

export const explainsLabels = false;

export const layer = {
  name: "mask", title: "Mask", text: "Each pixel in the colour of its class. Choose a class to see it alone.",
  /** A number without a colour stays clear. @param {{data: Uint8Array, shape: number[]}} mask (H, W) */
  surface({ data, shape }, /** @type {any} */ model, /** @type {number|null} */ only) {
    const colours = classColours(model).map((colour) => [...colour, 255]);
    const faint = colours.map(([red, green, blue]) => [red, green, blue, 30]);
    return pixelSurface(shape, (index) => (only === null || only === data[index] ? colours : faint)[data[index]] ?? null);
  },
};

/** @param {any} answer @param {{data: Uint8Array}|null} mask @param {import("../state.js").Model} model */
export function answerLines(answer, mask, model) {
  const areas = answer?.areas?.length || !mask ? answer.areas : classAreas(mask.data, model);
  const lines = areas.map(({ label, share }) =>
    ({ name: label, number: probability(share), share, label, colour: objectColour(label, model) }));
  if (lines.length === 1) return { title: lines[0].name, number: lines[0].number, lines };
  return { title: `${lines.length} classes`, number: "", lines };
}

/** The classes of a mask with their shares of it, the largest first. */
function classAreas(data, { labels }) {
  const counts = new Map();
  for (const index of data) counts.set(index, (counts.get(index) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])
    .map(([index, count]) => ({ label: labels?.[index] ?? "no class", share: count / data.length }));
}
