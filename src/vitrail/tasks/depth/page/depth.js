// How the page shows a depth for every pixel: near is light, far is dark.

import { shortNumber } from "../format.js";
import { heatPalette } from "../maps/colours.js";
import { pixelSurface } from "../picture/canvas.js";

/** @typedef {{data: Float32Array, shape: number[]}} DepthMap (H, W) */
/** @typedef {{nearest: number, quartiles: number[], farthest: number, unit: string}} Answer */

export const explainsLabels = false;

/** @param {number} value @param {string} unit @returns {string} "6.63 m" */
const depthWords = (value, unit) => `${shortNumber(Number(value.toPrecision(3)))}${unit ? ` ${unit}` : ""}`;

/** @param {Float32Array} data @returns {[number, number]} the nearest and the farthest */
function rangeOf(data) {
  let near = Infinity, far = -Infinity;
  for (const value of data) {
    near = Math.min(near, value);
    far = Math.max(far, value);
  }
  return [near, far];
}

export const layer = {
  name: "depth", title: "Depth", grey: true,
  text: "How far each pixel is: near is light, far is dark. Point at a patch to read its depth.",
  /** @param {DepthMap} depth */
  surface({ data, shape }) {
    const [near, far] = rangeOf(data), range = far - near || 1;
    return pixelSurface(shape, (index) => [...heatPalette[Math.round(255 * (far - data[index]) / range)], 255]);
  },
  /** @param {DepthMap} depth @param {Answer} answer */
  scale: ({ data }, { unit }) => rangeOf(data).reverse().map((value) => depthWords(value, unit)),
  /** @param {DepthMap} depth @param {number} index @param {Answer} answer */
  valueAt: ({ data }, index, { unit }) => depthWords(data[index], unit),
};

/** @param {Answer} answer */
export function answerLines({ nearest, quartiles: [low, median, high], farthest, unit }) {
  const line = (/** @type {string} */ name, /** @type {number} */ value) =>
    ({ name, number: depthWords(value, unit), share: farthest > 0 ? value / farthest : 0 });
  return {
    title: "Median depth", number: depthWords(median, unit),
    lines: [line("nearest", nearest), line("25 % below", low), line("median", median), line("75 % below", high),
      line("farthest", farthest)],
  };
}
