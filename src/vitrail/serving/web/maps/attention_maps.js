// The binary answer of /v1/look and /v1/attention, and the attention maps in it.
//
//   4 bytes   length of the header, little-endian
//   header    JSON, padded with spaces to a multiple of 4
//   parts     one after the other, as header.parts lists them: name, dtype, shape, offset, bytes

const VIEWS = { uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array };

/**
 * @typedef {Object} Part
 * @property {string} dtype
 * @property {number[]} shape
 * @property {any} data numbers; for a picture a Blob
 */

/**
 * @param {ArrayBuffer} buffer
 * @returns {{header: any, parts: Object<string, Part>}}
 */
export function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = 4 + Math.ceil(length / 4) * 4;
  /** @type {Object<string, Part>} */
  const parts = {};
  for (const { name, dtype, shape, offset, bytes } of header.parts) {
    const from = start + offset, View = VIEWS[dtype];
    const data = !View ? new Blob([new Uint8Array(buffer, from, bytes)], { type: `image/${dtype}` })
      : from % View.BYTES_PER_ELEMENT === 0 ? new View(buffer, from, bytes / View.BYTES_PER_ELEMENT)
      : new View(buffer.slice(from, from + bytes));
    parts[name] = { dtype, shape, data };
  }
  return { header, parts };
}

/**
 * What tokens attend to in one block. Row `query` of head `head` has `tokens` levels; a level times the row's scale,
 * over the largest level there is, is a share of the attention, and shares of a row sum to 1.
 */
export class Maps {
  /**
   * @param {Object<string, Part>} parts
   * @param {string} name "maps", or "queries" for the tokens that detect
   * @param {number} prefix tokens before the patches
   * @param {[number, number]} grid
   */
  constructor(parts, name, prefix, grid) {
    const { data, shape, dtype } = parts[name];
    [this.heads, this.queries, this.tokens] = shape;
    this.levels = data;
    this.scale = parts[name === "maps" ? "scale" : `${name}_scale`].data; // (heads, queries)
    this.exact = parts[name === "maps" ? "prefix" : `${name}_prefix`]?.data; // (heads, queries, prefix), where given
    this.largest = { uint8: 255, uint16: 65535 }[dtype] ?? 1;
    this.prefix = prefix;
    this.grid = grid;
    this.patches = grid[0] * grid[1];
  }

  /**
   * One row: shares of the patches (row by row), and of the tokens before them.
   * @param {number|"mean"} head @param {number} query
   * @returns {{patches: Float32Array, prefix: number[], most: number}} most: the share of the brightest patch
   */
  row(head, query) {
    const heads = head === "mean" ? [...Array(this.heads).keys()] : [head];
    const patches = new Float32Array(this.patches), prefix = new Array(this.prefix).fill(0);
    for (const each of heads) {
      const index = each * this.queries + query, start = index * this.tokens;
      const unit = this.scale[index] / this.largest / heads.length;
      for (let i = 0; i < this.patches; i++) patches[i] += unit * this.levels[start + this.prefix + i];
      for (let i = 0; i < this.prefix; i++) {
        prefix[i] += this.exact ? this.exact[index * this.prefix + i] / heads.length : unit * this.levels[start + i];
      }
    }
    let most = 0;
    for (const share of patches) if (share > most) most = share;
    return { patches, prefix, most };
  }
}
