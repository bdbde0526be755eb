// One picture on the page: the stage, the answer beside it, and in words what is drawn.

import { answerElement } from "./answer_list.js";
import { attentionQuery, chosenObject } from "../maps/attention_query.js";
import { el } from "../dom.js";
import { createAttentionBars } from "../panels/attention_bars.js";
import { createStage } from "./stage.js";
import { methodWords, percent } from "../format.js";
import { patchOf, tokenName } from "../maps/tokens.js";
import { colourRamp } from "../panels/colour_ramp.js";

/**
 * What lies over a picture, and in words. `row` is there for attention: its shares are shown as bars.
 * @param {import("./pane.js").Pane} pane @param {import("../state.js").State} state @param {number} number of the pane
 * @param {import("../state.js").Model} model
 */
export function overlay(pane, state, number, model) {
  const object = chosenObject(pane, state, number);
  const boxHint = pane.header.boxes?.length ? "The picture as the model sees it. Choose a box to see what finds it." : null;
  if (state.method === "picture") return { object, words: boxHint ?? methodWords("picture").text };
  const ownLayer = state.method === model.drawing.layer?.name;
  if (ownLayer && pane.layerPart(model)) return layerOverlay(pane, state, model);
  if (state.method === "attention" || ownLayer) return attentionOverlay(pane, state, number);
  return explanationOverlay(pane, state, object);
}

function layerOverlay(pane, state, model) {
  const only = state.label === null ? null : model.labels?.indexOf(state.label) ?? null;
  const layer = pane.layerOf(model, only), peeked = state.peek === null ? null : patchOf(state.peek);
  const value = peeked && pane.layerValue(model, peeked);
  const words = value === null ? model.drawing.layer.text : `In the middle of ${tokenName(state.peek, [])}: ${value}.`;
  return { object: null, layer, scale: layer.scale, patch: value === null ? null : peeked, words };
}

function attentionOverlay(pane, state, number) {
  const object = chosenObject(pane, state, number), query = attentionQuery(pane, state, number);
  const none = pane.busy ? "Asking for the maps …" : "There are no maps of this block.";
  if (!query) return { object, loading: pane.busy, words: none };
  const { maps, name, patch, grid, windows, layer, loading } = query;
  const even = windows && patch ? windows.filter((own) => own === windows[query.row]).length : maps.tokens;
  const head = state.head < maps.heads ? state.head : "mean"; // a decoder may have fewer heads
  const row = maps.row(head, query.row), headName = head === "mean" ? "mean of the heads" : `head ${head}`;
  const unknown = object !== null && state.peek === null && !query.findsObject;
  return {
    object, row, loading, patch, grid, windows,
    heat: { values: row.patches, grid, signed: false, spread: state.spread },
    words: `${unknown ? `Which query found object ${object + 1} is not told. ` : ""}` +
      `${name[0].toUpperCase()}${name.slice(1)}, ${layer}, ${headName}: the brightest patch gets ` +
      `${percent(row.most)}, ${(row.most * even).toFixed(1)} times an even share` +
      `${windows && patch ? ` among the ${even} of its window` : ""}.`,
  };
}

function explanationOverlay(pane, state, object) {
  const { title, text, signed = false, always } = methodWords(state.method);
  const label = explainedLabel(pane, state), explanation = pane.explanation(state.method, label);
  const words = `${title}${label === null || always ? "" : ` for ${label}`}. ${text}`;
  if (explanation?.error) return { object, words: explanation.error };
  const heat = explanation && { values: explanation.values, grid: explanation.grid, signed, spread: state.spread };
  return { object, words, loading: !explanation, heat };
}

/** The class that is explained: the chosen one, or what the model answers; null for answers about places. */
function explainedLabel(pane, state) {
  const { top, values } = pane.header.answer ?? {};
  if (!top && !values) return null;
  return state.label ?? top?.[0]?.label ?? Object.keys(values ?? {})[0] ?? null;
}

/**
 * @param {import("./pane.js").Pane} pane @param {number} number
 * @param {{peek: any, pin: any, query: any, home: any, object: (object: number) => void, line: (line: any) => void,
 *          choose: () => void, remove: () => void}} actions
 */
export function createPaneView(pane, number, actions) {
  const stage = createStage(() => pane, actions), bars = createAttentionBars();
  const name = el("h2", { class: "filename" }), said = el("p", { class: "said soft small" });
  const scale = el("p", { class: "soft small scale" });
  const answer = el("div"), timing = el("p", { class: "soft tiny timing" });
  const alert = el("p", { class: "aside", role: "alert" });
  const barsTitle = el("h3", { class: "minor", text: "Its attention goes to" });
  const filled = el("div", { class: "filled" }, el("div", { class: "stage-box" }, stage.node),
    el("div", { class: "beside" }, answer, el("div", { class: "reading" }, scale, said, barsTitle, bars.node), timing));
  const empty = el("div", { class: "empty" }, el("p", { text: "Drop, paste or choose a picture" }),
    el("button", { type: "button", text: "Choose …", on: { click: actions.choose } }));
  const remove = number ? el("button", {
    type: "button", class: "quiet", text: "✕", "aria-label": "Remove the second picture", on: { click: actions.remove },
  }) : null;
  const title = number ? "Second picture" : "First picture";
  const node = el("article", { class: "pane card", "data-pane": number, "aria-label": title },
    el("div", { class: "panehead" }, name, remove), alert, empty, filled);
  let builtVersion = -1;

  /** @param {any} header @param {import("../state.js").Model} model */
  function build({ answer: result, milliseconds }, model) {
    answer.replaceChildren(answerElement(result, pane.layerPart(model), model, actions.line));
    const { decode = 0, forward = 0, maps = 0 } = milliseconds ?? {}, whole = Math.round(decode + forward + maps);
    timing.textContent = `Answered in ${whole} ms, the forward pass in ${Math.round(forward)} ms.`;
    timing.hidden = !milliseconds;
  }

  return {
    node,
    words: () => said.textContent,
    /** @param {import("../state.js").State} state @param {import("../state.js").Model} model */
    update(state, model) {
      name.textContent = pane.source?.name ?? "";
      alert.textContent = pane.error;
      alert.hidden = !pane.error;
      filled.hidden = !pane.picture;
      empty.hidden = Boolean(pane.picture);
      empty.classList.toggle("busy", pane.busy);
      empty.firstChild.textContent = pane.busy ? "Looking …" : "Drop, paste or choose a picture";
      if (!pane.picture) return;
      if (builtVersion !== pane.version) build(pane.header, model);
      builtVersion = pane.version;
      const shown = overlay(pane, state, number, model);
      const { object, row = null, words, loading = false, scale: ends = null, ...over } = shown;
      const { strength, smooth } = state;
      stage.update({ grid: pane.patches, ...over, patches: pane.patches, strength: strength / 100, smooth }, object, model);
      stage.node.classList.toggle("busy", Boolean(loading) || pane.busy);
      said.textContent = words;
      scale.replaceChildren(...(ends ? [colourRamp(ends)] : []));
      bars.node.hidden = barsTitle.hidden = !row;
      if (row) bars.update(pane.header.prefix, row);
      const target = explainedLabel(pane, state);
      for (const line of answer.querySelectorAll("button.line")) {
        line.setAttribute("aria-pressed", String(pressed(line.dataset, state, target, object, model)));
      }
    },
  };
}

/** @param {DOMStringMap} line @returns {boolean} whether what is drawn is about this line of the answer */
function pressed(line, state, target, object, { drawing }) {
  if (line.object !== undefined) return Number(line.object) === object;
  if (state.method === drawing.layer?.name) return state.label === line.label;
  return !["attention", "picture", "rollout"].includes(state.method) && target === line.label;
}
