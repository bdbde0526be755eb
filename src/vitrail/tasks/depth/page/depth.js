// How the page shows a depth for every pixel: near is light, far is dark.

import { shortNumber } from "../format.js";
import { heatPalette } from "../maps/colours.js";
import { pixelSurface } from "../picture/canvas.js";

export const explainsLabels = false;

export const layer = {
  name: "depth", title: "Depth", text: "How far each pixel is: near is light, far is dark.",
  /** @param {{data: Float32Array, shape: number[]}} depth (H, W) */
  surface({ data, shape }) {
    let near = Infinity, far = -Infinity;
    for (const value of data) {
      near = Math.min(near, value);
      far = Math.max(far, value);
    }
    const range = far - near || 1;
    return pixelSurface(shape, (index) => [...heatPalette[Math.round(255 * (far - data[index]) / range)], 255]);
  },
};

/** @param {{nearest: number, quartiles: number[], farthest: number, unit: string}} answer */
export function answerLines({ nearest, quartiles: [low, median, high], farthest, unit }) {
  const words = (/** @type {number} */ value) => `${shortNumber(Number(value.toPrecision(3)))}${unit ? ` ${unit}` : ""}`;
  const line = (/** @type {string} */ name, /** @type {number} */ value) =>
    ({ name, number: words(value), share: farthest > 0 ? value / farthest : 0 });
  return {
    title: "Median depth", number: words(median),
    lines: [line("nearest", nearest), line("a quarter is nearer", low), line("half is nearer", median),
      line("three quarters are nearer", high), line("farthest", farthest)],
  };
}
