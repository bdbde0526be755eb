// One picture on the page: the stage, the answer beside it, and in words what is drawn.

import { answerElement } from "./answer.js";
import { asked, chosenObject } from "./asked.js";
import { classColours } from "./colours.js";
import { el } from "./dom.js";
import { createShares } from "./shares.js";
import { createStage } from "./stage.js";
import { methodWords, percent } from "./words.js";

/**
 * What lies over a picture, and in words. `row` is there for attention: its shares are shown as bars.
 * @param {import("./pane.js").Pane} pane @param {import("./state.js").State} state @param {number} number of the pane
 * @param {import("./state.js").Model} model
 */
export function overlay(pane, state, number, model) {
  const object = chosenObject(pane, state, number);
  const bare = pane.header.boxes?.length ? "The picture as the model sees it. Choose a box to see what finds it." : null;
  if (state.method === "picture") return { object, words: bare ?? methodWords("picture").text };
  if (state.method === "mask" && pane.mask) return maskOverlay(pane, state, model);
  if (state.method === "attention" || state.method === "mask") return attentionOverlay(pane, state, number);
  return explanationOverlay(pane, state, object);
}

function maskOverlay(pane, state, model) {
  const only = state.label === null ? null : model.labels?.indexOf(state.label) ?? null;
  return { object: null, mask: pane.maskOf(() => classColours(model), only), words: methodWords("mask").text };
}

function attentionOverlay(pane, state, number) {
  const object = chosenObject(pane, state, number), found = asked(pane, state, number);
  const none = pane.busy ? "Asking for the maps …" : "There are no maps of this block.";
  if (!found) return { object, waiting: pane.busy, words: none };
  const { maps, who, patch, where, waiting } = found;
  const head = state.head < maps.heads ? state.head : "mean"; // a decoder may have fewer heads
  const row = maps.row(head, found.row), whose = head === "mean" ? "mean of the heads" : `head ${head}`;
  const untold = object !== null && state.peek === null && !found.finds;
  return {
    object, row, waiting, patch,
    heat: { values: row.patches, grid: pane.header.grid, signed: false, spread: state.spread },
    words: `${untold ? `Which query found object ${object + 1} is not told. ` : ""}` +
      `${who[0].toUpperCase()}${who.slice(1)}, ${where}, ${whose}: the brightest patch gets ` +
      `${percent(row.most)}, ${(row.most * maps.tokens).toFixed(1)} times an even share.`,
  };
}

function explanationOverlay(pane, state, object) {
  const { title, text, signed = false, always } = methodWords(state.method);
  const label = explained(pane, state), told = pane.explanation(state.method, label);
  const words = `${title}${label === null || always ? "" : ` for ${label}`}. ${text}`;
  if (told?.trouble) return { object, words: told.trouble };
  const heat = told && { values: told.values, grid: told.grid, signed, spread: state.spread };
  return { object, words, waiting: !told, heat };
}

/** The class that is explained: the chosen one, or what the model answers; null for answers about places. */
function explained(pane, state) {
  const { top, values } = pane.header.answer ?? {};
  if (!top && !values) return null;
  return state.label ?? top?.[0]?.label ?? Object.keys(values ?? {})[0] ?? null;
}

/**
 * @param {import("./pane.js").Pane} pane @param {number} number
 * @param {{peek: any, pin: any, query: any, home: any, object: (object: number) => void, line: (line: any) => void,
 *          choose: () => void, remove: () => void}} to
 */
export function createPaneView(pane, number, to) {
  const stage = createStage(() => pane, to), shares = createShares();
  const name = el("h2", { class: "filename" }), said = el("p", { class: "said soft small" });
  const answer = el("div"), timing = el("p", { class: "soft tiny timing" });
  const trouble = el("p", { class: "aside", role: "alert" });
  const toWhom = el("h3", { class: "minor", text: "Its attention goes to" });
  const filled = el("div", { class: "filled" }, el("div", { class: "stage-box" }, stage.node),
    el("div", { class: "beside" }, answer, el("div", { class: "reading" }, said, toWhom, shares.node), timing));
  const empty = el("div", { class: "empty" }, el("p", { text: "Drop, paste or choose a picture" }),
    el("button", { type: "button", text: "Choose …", on: { click: to.choose } }));
  const remove = number ? el("button", {
    type: "button", class: "quiet", text: "✕", "aria-label": "Remove the second picture", on: { click: to.remove },
  }) : null;
  const title = number ? "Second picture" : "First picture";
  const node = el("article", { class: "pane card", "data-pane": number, "aria-label": title },
    el("div", { class: "panehead" }, name, remove), trouble, empty, filled);
  let made = -1;

  /** @param {any} header @param {import("./state.js").Model} model */
  function build({ answer: given, milliseconds }, model) {
    answer.replaceChildren(answerElement(given, pane.mask, model, to.line));
    const { decode = 0, forward = 0, maps = 0 } = milliseconds ?? {}, whole = Math.round(decode + forward + maps);
    timing.textContent = `Answered in ${whole} ms, the forward pass in ${Math.round(forward)} ms.`;
    timing.hidden = !milliseconds;
  }

  return {
    node,
    words: () => said.textContent,
    /** @param {import("./state.js").State} state @param {import("./state.js").Model} model */
    update(state, model) {
      name.textContent = pane.source?.name ?? "";
      trouble.textContent = pane.trouble;
      trouble.hidden = !pane.trouble;
      filled.hidden = !pane.picture;
      empty.hidden = Boolean(pane.picture);
      empty.classList.toggle("busy", pane.busy);
      empty.firstChild.textContent = pane.busy ? "Looking …" : "Drop, paste or choose a picture";
      if (!pane.picture) return;
      if (made !== pane.version) build(pane.header, model);
      made = pane.version;
      const { object, row = null, words, waiting = false, ...over } = overlay(pane, state, number, model);
      const { strength, smooth } = state;
      stage.update({ ...over, grid: pane.header.grid, strength: strength / 100, smooth }, object, model);
      stage.node.classList.toggle("busy", Boolean(waiting) || pane.busy);
      said.textContent = words;
      shares.node.hidden = toWhom.hidden = !row;
      if (row) shares.update(pane.header.prefix, row);
      const target = explained(pane, state);
      for (const line of answer.querySelectorAll(".line")) {
        line.setAttribute("aria-pressed", String(pressed(line.dataset, state, target, object)));
      }
    },
  };
}

/** @param {DOMStringMap} line @returns {boolean} whether what is drawn is about this line of the answer */
function pressed(line, state, target, object) {
  if (line.object !== undefined) return Number(line.object) === object;
  if (state.method === "mask") return state.label === line.label;
  return !["attention", "picture", "rollout"].includes(state.method) && target === line.label;
}
