// Whose attention is shown: the token that is queried, by name and by its row in the maps.

import { cellOf, patchOf, tokenName, tokenOf } from "./tokens.js";

/**
 * @typedef {Object} AttentionQuery
 * @property {import("./attention_maps.js").Maps} maps
 * @property {number} row of the maps
 * @property {string} name of the token, for people
 * @property {[number, number]|null} patch the queried token, on the block's grid
 * @property {[number, number]} grid of the block
 * @property {number[]|null} windows tokens with the same number attend to one another; null: all do
 * @property {boolean} findsObject whether it is the query of the chosen object
 * @property {string} layer of which block the maps are
 * @property {boolean} loading the maps of the chosen block are on their way; until then those of the last one are shown
 */

/**
 * The patch under the pointer, the chosen object, or the chosen token; null while there are no maps.
 * @param {import("../picture/pane.js").Pane} pane @param {import("../state.js").State} state
 * @param {number} number of the pane
 * @returns {AttentionQuery|null}
 */
export function attentionQuery(pane, state, number) {
  const current = pane.block(state.block), shown = current ?? pane.lastBlock;
  if (current) pane.lastBlock = current;
  if (!shown?.maps) return null;
  const layer = `block ${shown.block}`, loading = !current;
  const { grid, windows } = shown, { prefix, answer } = pane.header, object = chosenObject(pane, state, number);
  if (state.peek === null && object !== null) {
    const { label, query = object } = answer.objects[object], name = `what finds object ${object + 1}, ${label}`;
    const token = answer.objects[object].query === undefined ? -1 : prefix.indexOf(`query ${query}`);
    const objectQuery = { name, patch: null, findsObject: true };
    if (pane.queries) {
      return { maps: pane.queries, row: query, grid, windows: null, layer: "the decoder", loading: false, ...objectQuery };
    }
    if (token >= 0) return { maps: shown.maps, row: token, grid, windows, layer, loading, ...objectQuery };
  }
  const { patches } = pane, [down, across] = cellOf(grid, patches);
  const requested = state.peek ?? state.query, last = `${patches[0] - 1},${patches[1] - 1}`; // of a smaller grid
  const query = tokenOf(requested, prefix, patches) === null ? last : requested, chosen = patchOf(query);
  /** @type {[number, number]|null} */
  const patch = chosen && [Math.floor(chosen[0] / down), Math.floor(chosen[1] / across)];
  const row = tokenOf(patch ? patch.join() : query, prefix, grid) ?? 0;
  const name = tokenName(query, prefix) + (patch && down * across > 1 ? ` in token ${patch.join()}` : "");
  return { maps: shown.maps, row, name, patch, grid, windows, findsObject: false, layer, loading };
}

/**
 * The number of the chosen box, if it is one of this picture.
 * @param {import("../picture/pane.js").Pane} pane @param {import("../state.js").State} state
 * @param {number} number of the pane
 */
export function chosenObject(pane, state, number) {
  const [paneNumber, object] = (state.object ?? "").split("-").map(Number);
  return state.object !== null && paneNumber === number && pane.header.boxes?.[object] ? object : null;
}
