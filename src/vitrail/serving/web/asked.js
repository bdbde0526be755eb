// Whose attention is shown in a picture: the token that is asked, by name and by its row in the maps.

import { patchOf, tokenName, tokenOf } from "./tokens.js";

/**
 * @typedef {Object} Asked
 * @property {import("./maps.js").Maps} maps
 * @property {number} row of the maps
 * @property {string} who in words
 * @property {[number, number]|null} patch
 * @property {boolean} finds whether it is the query of the chosen object
 * @property {string} where of which block the maps are
 * @property {boolean} waiting for the maps of the chosen block; until then these of the last one are shown
 */

/**
 * The patch under the pointer, the chosen object, or the chosen token; null where no maps are known.
 * @param {import("./pane.js").Pane} pane @param {import("./state.js").State} state @param {number} number of the pane
 * @returns {Asked|null}
 */
export function asked(pane, state, number) {
  const now = pane.block(state.block), known = now ?? pane.lastBlock;
  if (now) pane.lastBlock = now;
  if (!known?.maps) return null;
  const where = `block ${known.block}`;
  const { prefix, grid, answer } = pane.header, object = chosenObject(pane, state, number), waiting = !now;
  if (state.peek === null && object !== null) {
    const { label, query = object } = answer.objects[object], who = `what finds object ${object + 1}, ${label}`;
    const token = answer.objects[object].query === undefined ? -1 : prefix.indexOf(`query ${query}`);
    const found = { who, patch: null, finds: true };
    if (pane.queries) return { maps: pane.queries, row: query, where: "the decoder", waiting: false, ...found };
    if (token >= 0) return { maps: known.maps, row: token, where, waiting, ...found };
  }
  const wanted = state.peek ?? state.query, last = `${grid[0] - 1},${grid[1] - 1}`; // of a grid that is smaller
  const query = tokenOf(wanted, prefix, grid) === null ? last : wanted;
  const row = tokenOf(query, prefix, grid) ?? 0;
  return { maps: known.maps, row, who: tokenName(query, prefix), patch: patchOf(query), finds: false, where, waiting };
}

/**
 * The number of the chosen box, if it is one of this picture.
 * @param {import("./pane.js").Pane} pane @param {import("./state.js").State} state @param {number} number of the pane
 */
export function chosenObject(pane, state, number) {
  const [whose, object] = (state.object ?? "").split("-").map(Number);
  return state.object !== null && whose === number && pane.header.boxes?.[object] ? object : null;
}
