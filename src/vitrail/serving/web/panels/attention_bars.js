// Where a row of attention goes, as small bars: each prefix token, and all patches together. They sum to 1.

import { el } from "../dom.js";
import { isQuery } from "../maps/tokens.js";
import { percent } from "../format.js";

export function createAttentionBars() {
  const node = el("div", { class: "bars shares" });
  let names = null, rows = [];

  /** @param {string[]} prefix */
  function build(prefix) {
    const queries = prefix.filter(isQuery).length;
    const shown = [...prefix.filter((name) => !isQuery(name)), ...(queries ? [`all ${queries} queries`] : [])];
    rows = [...shown, "all patches"].map((name) => ({ name, bar: el("i"), number: el("span", { class: "number" }) }));
    node.replaceChildren(...rows.flatMap(({ name, bar, number }) =>
      [el("span", { class: "name", text: name, title: name }), el("span", { class: "bar" }, bar), number]));
  }

  return {
    node,
    /** @param {string[]} prefix names @param {{prefix: number[], patches: Float32Array}} row */
    update(prefix, row) {
      if (names !== prefix.join()) build(prefix);
      names = prefix.join();
      const sum = (/** @type {Iterable<number>} */ shares) => [...shares].reduce((all, share) => all + share, 0);
      const single = row.prefix.filter((_, i) => !isQuery(prefix[i]));
      const queries = prefix.some(isQuery) ? [sum(row.prefix) - sum(single)] : [];
      [...single, ...queries, sum(row.patches)].forEach((share, i) => {
        rows[i].bar.style.width = `${100 * Math.min(1, share)}%`;
        rows[i].number.textContent = percent(share);
      });
    },
  };
}
