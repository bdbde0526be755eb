// The page, put together: the state, the pictures, and what shows them. One frame draws what changed.

import * as api from "./api.js";
import { oncePerFrame } from "./picture/canvas.js";
import { createControls } from "./panels/controls.js";
import { byId, check, el } from "./dom.js";
import { createHeadTiles } from "./panels/head_tiles.js";
import { Pane } from "./picture/pane.js";
import { createPaneView } from "./picture/pane_view.js";
import { openFileDialog, setUpImageInput } from "./picture/image_input.js";
import { createStore, fromLink, fitToModel, hasIndex, toLink } from "./state.js";
import { firstQuery } from "./maps/tokens.js";
import { createSimilarView } from "./panels/similar_view.js";
import { createWalkView } from "./panels/walk_view.js";
import { count, METHODS } from "./format.js";

const showError = (/** @type {string} */ sentence) => (byId("trouble").textContent = sentence);

/** Asks for a token until the server takes it. */
async function openModel() {
  for (;;) {
    try {
      return await api.model();
    } catch (error) {
      if (error.status !== 401 && error.status !== 403) throw error;
      byId("facts").textContent = error.message;
      await new Promise((resolve) => {
        const form = byId("token-form");
        form.hidden = false;
        byId("token").focus();
        form.onsubmit = (/** @type {Event} */ event) => {
          event.preventDefault();
          api.storeToken(byId("token").value.trim());
          resolve(null);
        };
        window.onhashchange = () => api.readTokenFromAddress() && resolve(null);
      });
      byId("token-form").hidden = true;
      window.onhashchange = null;
    }
  }
}

/** @param {import("./state.js").Model} model */
function describe(model) {
  const [height, width] = model.image_size, [rows, columns] = model.grid;
  document.title = `${model.name} · Vitrail`;
  byId("name").textContent = model.name;
  byId("facts").textContent = `${model.task}: ${height} × ${width} px, ${rows} × ${columns} patches` +
    `${model.prefix.length ? ` + ${model.prefix.length} in front` : ""}; ${count(model.depth, "block")} of ` +
    `${count(model.heads, "head")}, width ${model.width}; ${count(model.parameters, "parameter")}` +
    (model.engine === "torch" ? "" : `; answers by ${model.engine} in ${model.precision}`);
  byId("notes").append(...(model.notes ?? []).map((note) => el("p", { class: "aside", text: note })));
  byId("footer").textContent = `vitrail ${model.version}. Pictures go to this server only, and it keeps none.`;
}

async function main() {
  api.readTokenFromAddress();
  const model = await openModel();
  model.drawing = model.task === "embed" ? {} : await import(`./tasks/${model.task}.js`);
  if (model.drawing.layer) METHODS[model.drawing.layer.name] = model.drawing.layer;
  describe(model);
  const store = createStore(fitToModel(fromLink(location.hash), model));
  const frame = oncePerFrame(() => update());
  const panes = [new Pane(frame), new Pane(frame)];
  const shown = () => panes.slice(0, store.get().sources.length);

  // ---- pictures

  /** @param {number} number of the pane @param {import("./picture/pane.js").Source} source */
  function open(number, source) {
    showError("");
    performance.clearMarks();
    performance.mark("picture given");
    const sources = [...store.get().sources];
    sources[number] = source.sample ?? "own";
    store.set(panes[number].source ? { sources, object: null, similar: null } : { sources }); // a link may name an object
    const limit = model.limits?.bytes ?? Infinity, { size } = source.blob;
    const tooLarge = `This file has ${count(size, "byte")}, and the server takes at most ${count(limit, "byte")}.`;
    if (size < limit) panes[number].open(source, store.get().block);
    else panes[number].showError(source, tooLarge);
  }

  /** @param {number} number of the pane @param {number} sample */
  async function openSample(number, sample) {
    try {
      open(number, { blob: await api.sample(sample), name: model.samples[sample].name, sample });
    } catch (error) {
      showError(error.message);
    }
  }

  const side = () => (shown().length > 1 ? Number(byId("side").querySelector("input:checked").value) : 0);

  /** Two files at once go side by side. @param {File[]} files @param {number} [number] of the pane */
  function openFiles(files, number = side()) {
    const sourceOf = (/** @type {File} */ file) => ({ blob: file, name: file.name || "pasted picture", sample: null });
    if (files.length > 1) {
      setTwo(true);
      files.slice(0, 2).forEach((file, i) => open(i, sourceOf(file)));
    } else open(number, sourceOf(files[0]));
  }

  /** @param {boolean} two */
  function setTwo(two) {
    const [first, second = null] = store.get().sources;
    if (!two) panes[1].clear();
    store.set({ sources: two ? [first, second] : [first], object: null });
    check(byId("side"), two && panes[0].source ? "1" : "0");
  }

  setUpImageInput(model, { files: openFiles, sample: (number) => openSample(side(), number), refused: showError });
  byId("compare").addEventListener("click", () => setTwo(shown().length < 2));

  // ---- what is shown

  const stageActions = {
    peek: (/** @type {string|null} */ peek) => store.set({ peek }),
    pin: (/** @type {string} */ query) => store.set({ query, object: null, method: "attention" }),
    query: () => store.get().query,
    home: () => store.set({ query: firstQuery(model.prefix, model.grid), object: null, peek: null }),
  };
  const chooseObject = (/** @type {number} */ pane, /** @type {number} */ object) => {
    const name = `${pane}-${object}`;
    store.set({ object: store.get().object === name ? null : name, method: "attention", peek: null });
  };
  /** @param {number} pane @param {import("./picture/answer_list.js").Line} line */
  const chooseLine = (pane, line) => {
    const { method, label } = store.get(), layer = model.drawing.layer?.name;
    if (line.object !== undefined) chooseObject(pane, line.object);
    else if (panes[pane].layerPart(model) && method !== layer) store.set({ label: line.label, method: layer });
    else if (method === layer) store.set({ label: label === line.label ? null : line.label });
    else store.set({ label: line.label, method: classMethods.includes(method) ? method : classMethods[0] ?? method });
  };
  const classMethods = ["relevance", "weighted_attention", "occlusion"].filter((one) => model.methods.includes(one));
  const views = panes.map((pane, number) => createPaneView(pane, number, {
    ...stageActions,
    object: (object) => chooseObject(number, object),
    line: (line) => chooseLine(number, line),
    choose: () => openFileDialog(number),
    remove: () => setTwo(false),
  }));
  byId("panes").append(...views.map((view) => view.node));
  const controls = createControls(byId("controls"), model, store);
  const heads = createHeadTiles(byId("heads"), (head) => store.set({ head }));
  const walk = createWalkView(byId("walk"), model, store);
  const similar = createSimilarView(byId("similar"), model, store);
  byId("finds").hidden = !hasIndex(model);
  byId("view").addEventListener("change", (/** @type {any} */ event) => store.set({ view: event.target.value }));

  function update() {
    const state = store.get(), two = state.sources.length > 1;
    check(byId("view"), state.view);
    byId("look").hidden = state.view !== "look";
    byId("compare").setAttribute("aria-pressed", String(two));
    byId("side").hidden = !two;
    views[1].node.hidden = !two;
    byId("panes").classList.toggle("two", two);
    byId("controls").hidden = !shown().some((pane) => pane.picture);
    const missing = shown().some((pane, i) => state.sources[i] === "own" && !pane.source);
    byId("asks").hidden = !missing;
    byId("asks").textContent =
      "This link was made with a picture that is not in it. Choose that picture (or another): the rest is kept.";
    for (const button of byId("samples").children) {
      button.setAttribute("aria-pressed", String(state.sources.includes(Number(button.dataset.sample))));
    }
    if (state.view === "look") {
      shown().forEach((_, i) => views[i].update(state, model));
      controls.update(state);
      heads.update(state, shown());
      const marked = performance.getEntriesByName("map drawn").length > 0;
      if (!marked && panes.some((pane) => pane.picture)) performance.mark("map drawn");
    }
    walk.update(state, shown());
    similar.update(state, shown());
  }

  // ---- the link, and the voice

  let linkTimer = 0, liveTimer = 0;
  store.listen((state, before) => {
    frame();
    const changed = Object.keys(state).some((name) => name !== "peek" && state[name] !== before[name]);
    if (!changed) return; // pointing is not choosing
    clearTimeout(linkTimer);
    linkTimer = setTimeout(() => {
      history.replaceState(null, "", toLink(store.get(), model) || location.pathname + location.search);
    }, 150);
    if (["query", "block", "head", "method", "label", "object"].some((name) => state[name] !== before[name])) {
      clearTimeout(liveTimer);
      liveTimer = setTimeout(() => (byId("live").textContent = views[0].words()), 400);
    }
  });

  /** Opens what the state names and no pane shows yet. */
  function openSources() {
    shown().forEach((pane, i) => {
      const source = store.get().sources[i];
      if (typeof source === "number" && pane.source?.sample !== source) openSample(i, source);
    });
  }
  window.addEventListener("hashchange", (event) => {
    api.readTokenFromAddress();
    clearTimeout(linkTimer); // it may have written just now, so the event is asked and not the address
    const { strength, smooth, spread } = store.get(), state = fitToModel(fromLink(new URL(event.newURL).hash), model);
    const sources = state.sources.map((source, i) => source ?? (panes[i].source ? panes[i].source.sample ?? "own" : null));
    store.set({ ...state, sources, strength, smooth, spread });
    openSources();
  });

  byId("pictures").hidden = byId("view").hidden = false;
  openSources();
  frame();
}

main().catch((error) => {
  byId("facts").textContent = "";
  showError(error.message);
});
