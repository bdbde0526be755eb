// Tokens by name, as `vitrail explain --query` calls them: "cls", "register 0", and a patch as "row,column" from 0.

/** @param {string} name "[CLS]" @returns {string} "cls" */
export const plain = (name) => name.toLowerCase().replace(/[[\]]/g, "").trim();

/**
 * The index of a token in the sequence; null where there is no such token.
 * @param {string} query @param {string[]} prefix @param {[number, number]} grid
 */
export function tokenOf(query, prefix, grid) {
  const patch = patchOf(query);
  if (!patch) {
    const number = prefix.findIndex((name) => plain(name) === plain(query));
    return number < 0 ? null : number;
  }
  const [row, column] = patch;
  return row < grid[0] && column < grid[1] ? prefix.length + row * grid[1] + column : null;
}

/** @param {string} query @returns {[number, number] | null} row and column, of a patch */
export function patchOf(query) {
  const pair = /^(\d+),(\d+)$/.exec(query);
  return pair ? [Number(pair[1]), Number(pair[2])] : null;
}

/**
 * How many patches, down and across, a token of a block holds: 1, or more where patches were merged.
 * @param {[number, number]} grid of the block @param {[number, number]} patches of the picture
 * @returns {[number, number]}
 */
export const cellOf = (grid, patches) => [Math.ceil(patches[0] / grid[0]), Math.ceil(patches[1] / grid[1])];

/** @param {string} query @param {string[]} prefix */
export function tokenName(query, prefix) {
  const patch = patchOf(query);
  return patch ? `patch ${patch[0]},${patch[1]}` : prefix.find((name) => plain(name) === plain(query)) ?? query;
}

/** Learned queries that detect or segment stand before the patches too; there may be a hundred. @param {string} name */
export const isQuery = (name) => /^query \d+$/.test(name);

/** Where a page begins: the first prefix token, or the patch in the middle. */
export function firstQuery(prefix, grid) {
  return prefix.length ? plain(prefix[0]) : `${Math.floor(grid[0] / 2)},${Math.floor(grid[1] / 2)}`;
}
