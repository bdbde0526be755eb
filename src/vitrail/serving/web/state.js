// The state of the page, and its form as a link. The page is a function of this state, the model and the pictures.

import { firstQuery, tokenOf } from "./maps/tokens.js";

/**
 * @typedef {Object} State
 * @property {"look"|"walk"|"similar"} view
 * @property {string|null} method "attention", "picture", the task's layer or one of the model's methods; null: the first
 * @property {number} block from 0; -1 until the model is known: the last
 * @property {number|"mean"} head
 * @property {string} query whose attention: see tokens.js; "" until the model is known
 * @property {string|null} peek the patch under the pointer, not part of the link
 * @property {string|null} label the class that is explained; null: what the model answers
 * @property {string|null} object a chosen box, "picture-number"
 * @property {number} step of the walk, from 1
 * @property {number|null} similar the picture of the index whose neighbours are shown; null: those of the own picture
 * @property {(number|"own"|null)[]} sources for each picture: the number of a sample, or a picture of one's own
 * @property {number} strength of the colours, 0 to 100
 * @property {boolean} smooth between patches
 * @property {boolean} spread the colours from the least to the most, instead of from 0
 */

/** @type {State} */
export const DEFAULTS = {
  view: "look", method: null, block: -1, head: "mean", query: "", peek: null, label: null, object: null, step: 1,
  similar: null,
  sources: [null], strength: 65, smooth: true, spread: false,
};

const VIEWS = ["look", "walk", "similar"];

/** @param {string} hash @returns {State} what a link holds; what makes no sense in it is left at its start */
export function fromLink(hash) {
  const link = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (/** @type {string} */ name) => (/^\d{1,6}$/.test(link.get(name) ?? "") ? Number(link.get(name)) : null);
  const source = (/** @type {string} */ name) => number(name) ?? (link.get(name) === "own" ? "own" : null);
  return {
    ...DEFAULTS,
    view: VIEWS.includes(link.get("view") ?? "") ? link.get("view") : "look",
    method: link.get("method"),
    block: number("block") ?? -1,
    head: number("head") ?? "mean",
    query: link.get("query") ?? "",
    label: link.get("label"),
    object: /^[01]-\d{1,4}$/.test(link.get("object") ?? "") ? link.get("object") : null,
    step: number("step") ?? 1,
    similar: number("similar"),
    sources: link.has("second") ? [source("sample"), source("second")] : [source("sample")],
  };
}

/** @param {State} state @param {Model} model @returns {string} what differs from the start, as "#block=3&query=2,5" */
export function toLink(state, model) {
  const defaults = fitToModel(DEFAULTS, model), link = new URLSearchParams();
  if (state.sources[0] !== null) link.set("sample", String(state.sources[0]));
  if (state.sources.length > 1) link.set("second", String(state.sources[1] ?? "none"));
  for (const name of ["view", "method", "block", "head", "query", "label", "object", "step", "similar"]) {
    if (state[name] !== defaults[name] && state[name] !== null) link.set(name, String(state[name]));
  }
  const text = link.toString().replaceAll("%2C", ",");
  return text ? "#" + text : "";
}

/**
 * The state as this model can show it: blocks, heads, tokens, methods and labels that it has.
 * @param {State} state @param {Model} model @returns {State}
 */
export function fitToModel(state, model) {
  const [first, ...others] = methodsOf(model);
  const hasToken = state.query !== "" && tokenOf(state.query, model.prefix, model.grid) !== null;
  return {
    ...state,
    view: state.view === "similar" && !hasIndex(model) ? "look" : state.view,
    similar: hasIndex(model) ? state.similar : null,
    method: [first, ...others].includes(state.method ?? "") ? state.method : first,
    block: state.block < 0 || state.block >= model.depth ? model.depth - 1 : state.block,
    head: state.head === "mean" || state.head >= model.heads ? "mean" : state.head,
    query: hasToken ? state.query : firstQuery(model.prefix, model.grid),
    label: state.label !== null && (model.labels ?? []).includes(state.label) ? state.label : null,
    sources: state.sources.map((source) => (typeof source === "number" && source >= model.samples.length ? null : source)),
  };
}

/** @param {Model} model */
export const hasIndex = (model) => (model.index ?? null) !== null;

/** The maps that can be laid over a picture, the first of them to begin with. @param {Model} model @returns {string[]} */
export function methodsOf(model) {
  const explanations = (model.methods ?? []).filter((name) => name !== "attention" && name !== "random");
  const overlays = ["attention", ...explanations], { layer, pictureFirst } = model.drawing;
  if (layer) return [layer.name, ...overlays, "picture"];
  return pictureFirst ? ["picture", ...overlays] : [...overlays, "picture"];
}

/**
 * Holds the state and tells who listens, once a change.
 * @param {State} state
 */
export function createStore(state) {
  /** @type {((state: State, before: State) => void)[]} */
  const listeners = [];
  return {
    get: () => state,
    /** @param {Partial<State>} change */
    set(change) {
      const before = state;
      if (Object.entries(change).every(([name, value]) => before[name] === value)) return;
      state = { ...state, ...change };
      for (const listener of listeners) listener(state, before);
    },
    /** @param {(state: State, before: State) => void} listener */
    listen: (listener) => listeners.push(listener),
  };
}

/**
 * @typedef {Object} Model the answer of /v1/model
 * @property {string} name
 * @property {string} task
 * @property {string[]|null} labels
 * @property {string[]|null} colours of the classes of masks and boxes, "#rrggbb"
 * @property {[number, number]} image_size
 * @property {[number, number]} patch_size
 * @property {[number, number]} grid
 * @property {number} width
 * @property {number} depth
 * @property {number} heads
 * @property {string[]} prefix
 * @property {number} parameters
 * @property {string} engine what runs the network
 * @property {string} precision what it computes in
 * @property {string[]} methods
 * @property {{name: string, url: string}[]} samples
 * @property {number|null} [index] pictures to search in; null: there are none
 * @property {{bytes: number}} limits
 * @property {string} version
 * @property {Drawing} drawing how answers of its task are shown; not of the server
 */

/**
 * Where colours stand for numbers, and not for classes, `grey`, `scale` and `valueAt` are there too.
 * @typedef {Object} Layer
 * @property {string} name of the array
 * @property {string} title
 * @property {string} text
 * @property {(part: any, model: Model, only: number|null) => HTMLCanvasElement} surface `only`: one class alone
 * @property {boolean} [grey] the picture below is grey, so that its own colours are not taken for numbers
 * @property {(part: any, answer: any) => string[]} [scale] what the darkest and the lightest colour stand for
 * @property {(part: any, index: number, answer: any) => string} [valueAt] the number of a pixel, with its unit
 */

/**
 * What the script of a task, /web/tasks/TASK.js, exports. The first is needed, the others where the task has it.
 * @typedef {Object} Drawing
 * @property {(answer: any, part: any, model: Model) => {title: string, number: string, lines: any[]}} answerLines
 * @property {Layer} [layer] an array of the answer that is drawn over the picture
 * @property {boolean} [pictureFirst] the page begins with the bare picture
 * @property {boolean} [explainsLabels] false: no class can be chosen to be explained
 */
