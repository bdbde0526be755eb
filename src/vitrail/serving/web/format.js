// Numbers as text, and the titles of the maps.

/** @param {number} share 0..1 */
export const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %";

/** One decimal always, as `vitrail predict` prints probabilities. @param {number} share */
export const probability = (share) => (100 * share).toFixed(1) + " %";

/** @param {number} value */
export const shortNumber = (value) => String(Number(value.toPrecision(6))).replace("-", "−");

/** @param {number} number @param {string} what */
export const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

/** The explanations by name: title, what it shows, and whether it also tells what speaks against the answer. */
export const METHODS = {
  attention: { title: "Attention", text: "What a token looks at. Point at a patch, or move with the arrow keys." },
  relevance: {
    title: "Relevance", signed: true,
    text: "What each patch adds to the answer (red) or takes from it (blue), all decisions held still.",
  },
  weighted_attention: {
    title: "Weighted attention",
    text: "Attention, as far as it helps the answer, followed through all blocks (Chefer et al.).",
  },
  rollout: {
    title: "Rollout", always: true,
    text: "Attention followed through all blocks, whatever the answer (Abnar and Zuidema).",
  },
  occlusion: {
    title: "Occlusion", signed: true,
    text: "How far the answer falls when the place is hidden (red), or rises (blue).",
  },
  picture: { title: "Picture", text: "The picture as the model sees it, with nothing over it." },
};

/** @param {string} method @returns {{title: string, text: string, signed?: boolean, always?: boolean}} */
export const methodWords = (method) =>
  METHODS[method] ?? { title: method.replaceAll("_", " "), text: "" };
