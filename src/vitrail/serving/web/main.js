// The page, put together: the state, the pictures, and what shows them. One frame draws what changed.

import * as api from "./api.js";
import { eachFrame } from "./canvas.js";
import { createControls } from "./controls.js";
import { byId, check, el } from "./dom.js";
import { createHeads } from "./heads.js";
import { Pane } from "./pane.js";
import { createPaneView } from "./paneview.js";
import { choose, setUpPictures } from "./pictures.js";
import { createStore, fromLink, settled, toLink } from "./state.js";
import { firstQuery } from "./tokens.js";
import { createWalk } from "./walk.js";
import { counted } from "./words.js";

const trouble = (/** @type {string} */ sentence) => (byId("trouble").textContent = sentence);

/** Asks for a token until the server takes it. */
async function openModel() {
  for (;;) {
    try {
      return await api.model();
    } catch (error) {
      if (error.status !== 401 && error.status !== 403) throw error;
      byId("facts").textContent = error.message;
      await new Promise((entered) => {
        const form = byId("token-form");
        form.hidden = false;
        byId("token").focus();
        form.onsubmit = (/** @type {Event} */ event) => {
          event.preventDefault();
          api.keepToken(byId("token").value.trim());
          entered(null);
        };
        window.onhashchange = () => api.takeTokenFromAddress() && entered(null);
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
    `${model.prefix.length ? ` + ${model.prefix.length} in front` : ""}; ${counted(model.depth, "block")} of ` +
    `${counted(model.heads, "head")}, width ${model.width}; ${counted(model.parameters, "parameter")}`;
  byId("notes").append(...(model.notes ?? []).map((note) => el("p", { class: "aside", text: note })));
  byId("footer").textContent = `vitrail ${model.version}. Pictures go to this server only, and it keeps none.`;
}

async function main() {
  api.takeTokenFromAddress();
  const model = await openModel();
  describe(model);
  const store = createStore(settled(fromLink(location.hash), model));
  const frame = eachFrame(() => update());
  const panes = [new Pane(frame), new Pane(frame)];
  const shown = () => panes.slice(0, store.get().sources.length);

  // ---- pictures

  /** @param {number} number of the pane @param {import("./pane.js").Source} source */
  function open(number, source) {
    trouble("");
    performance.clearMarks();
    performance.mark("picture given");
    const sources = [...store.get().sources];
    sources[number] = source.sample ?? "own";
    store.set(panes[number].source ? { sources, object: null } : { sources }); // a link may name an object
    const most = model.limits?.bytes ?? Infinity, { size } = source.blob;
    const long = `This file has ${counted(size, "byte")}, and the server takes at most ${counted(most, "byte")}.`;
    if (size < most) panes[number].open(source, store.get().block);
    else panes[number].refuse(source, long);
  }

  /** @param {number} number of the pane @param {number} sample */
  async function openSample(number, sample) {
    try {
      open(number, { blob: await api.sample(sample), name: model.samples[sample].name, sample });
    } catch (error) {
      trouble(error.message);
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

  setUpPictures(model, { files: openFiles, sample: (number) => openSample(side(), number), refused: trouble });
  byId("compare").addEventListener("click", () => setTwo(shown().length < 2));

  // ---- what is shown

  const stageTo = {
    peek: (/** @type {string|null} */ peek) => store.set({ peek }),
    pin: (/** @type {string} */ query) => store.set({ query, object: null, method: "attention" }),
    query: () => store.get().query,
    home: () => store.set({ query: firstQuery(model.prefix, model.grid), object: null, peek: null }),
  };
  const chooseObject = (/** @type {number} */ pane, /** @type {number} */ object) => {
    const name = `${pane}-${object}`;
    store.set({ object: store.get().object === name ? null : name, method: "attention", peek: null });
  };
  /** @param {number} pane @param {import("./answer.js").Line} line */
  const chooseLine = (pane, line) => {
    const { method, label } = store.get();
    if (line.object !== undefined) chooseObject(pane, line.object);
    else if (panes[pane].mask && method !== "mask") store.set({ label: line.label, method: "mask" });
    else if (method === "mask") store.set({ label: label === line.label ? null : line.label });
    else store.set({ label: line.label, method: speaking.includes(method) ? method : speaking[0] ?? method });
  };
  const speaking = ["relevance", "weighted_attention", "occlusion"].filter((one) => model.methods.includes(one));
  const views = panes.map((pane, number) => createPaneView(pane, number, {
    ...stageTo,
    object: (object) => chooseObject(number, object),
    line: (line) => chooseLine(number, line),
    choose: () => choose(number),
    remove: () => setTwo(false),
  }));
  byId("panes").append(...views.map((view) => view.node));
  const controls = createControls(byId("controls"), model, store);
  const heads = createHeads(byId("heads"), (head) => store.set({ head }));
  const walk = createWalk(byId("walk"), model, store);
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
      const drawn = performance.getEntriesByName("map drawn").length > 0;
      if (!drawn && panes.some((pane) => pane.picture)) performance.mark("map drawn");
    }
    walk.update(state, shown());
  }

  // ---- the link, and the voice

  let writing = 0, saying = 0;
  store.listen((state, before) => {
    frame();
    const chosen = Object.keys(state).some((name) => name !== "peek" && state[name] !== before[name]);
    if (!chosen) return; // pointing is not choosing
    clearTimeout(writing);
    writing = setTimeout(() => {
      history.replaceState(null, "", toLink(store.get(), model) || location.pathname + location.search);
    }, 150);
    if (["query", "block", "head", "method", "label", "object"].some((name) => state[name] !== before[name])) {
      clearTimeout(saying);
      saying = setTimeout(() => (byId("live").textContent = views[0].words()), 400);
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
    api.takeTokenFromAddress();
    clearTimeout(writing); // it may have written just now, so the event is asked and not the address
    const { strength, smooth, spread } = store.get(), state = settled(fromLink(new URL(event.newURL).hash), model);
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
  trouble(error.message);
});
