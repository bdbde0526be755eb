// All heads of a block as small multiples, and their mean. A click chooses one.

import { attentionQuery } from "../maps/attention_query.js";
import { draw } from "../picture/canvas.js";
import { el } from "../dom.js";

/** @param {HTMLElement} node @param {(head: number|"mean") => void} chosen */
export function createHeadTiles(node, chosen) {
  const title = el("h2", {}), groups = el("div", {});
  node.append(title, groups);
  let builtKey = "", /** @type {{head: number|"mean", button: HTMLElement, canvas: HTMLCanvasElement}[][]} */ tiles = [];

  /** @param {import("../picture/pane.js").Pane[]} panes @param {number} heads */
  function build(panes, heads) {
    tiles = panes.map(() => ["mean", ...Array(heads).keys()].map((head) => tile(head, chosen)));
    groups.replaceChildren(...panes.flatMap((pane, i) => [
      panes.length > 1 ? el("p", { class: "soft small filename", text: pane.source.name }) : null,
      el("div", { class: "heads", role: "group", "aria-label": `Heads, ${pane.source.name}` },
        ...tiles[i].map((item) => item.button)),
    ]).filter((part) => part !== null));
  }

  return {
    /** @param {import("../state.js").State} state @param {import("../picture/pane.js").Pane[]} panes */
    update(state, panes) {
      const shown = panes.map((pane, number) => ({ pane, query: pane.picture && attentionQuery(pane, state, number) }))
        .filter(({ query }) => query);
      node.hidden = state.method !== "attention" || !shown.length;
      if (node.hidden) return;
      const count = shown[0].query.maps.heads;
      const key = shown.map(({ pane }) => `${pane.version} ${pane.source.name}`).join() + count;
      if (builtKey !== key) build(shown.map(({ pane }) => pane), count);
      builtKey = key;
      title.textContent = `All heads of ${shown[0].query.layer}, ${shown[0].query.name}`;
      shown.forEach(({ pane, query }, i) => {
        const { grid } = query, { patches } = pane, { smooth, spread } = state, strength = state.strength / 100;
        for (const { head, button, canvas } of tiles[i]) {
          button.setAttribute("aria-pressed", String(state.head === head));
          const heat = { values: query.maps.row(head, query.row).patches, grid, signed: false, spread };
          draw(canvas, pane.picture, { heat, grid, patches, patch: query.patch, strength, smooth, small: true });
        }
      });
    },
  };
}

/** @param {number|"mean"} head @param {(head: number|"mean") => void} chosen */
function tile(head, chosen) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const button = el("button", { type: "button", class: "tile", "aria-pressed": "false", on: { click: () => chosen(head) } },
    canvas, el("span", { text: head === "mean" ? "mean" : `head ${head}` }));
  return { head, button, canvas };
}
