// Similar pictures of the served index: of the picture that was dropped, or of one of those that were found.

import * as api from "../api.js";
import { count } from "../format.js";
import { el } from "../dom.js";

/** @typedef {{id: number, name: string, score: number}} Found */

/**
 * @param {HTMLElement} node
 * @param {import("../state.js").Model} model
 * @param {{get: () => import("../state.js").State, set: (change: Object) => void}} store
 */
export function createSimilarView(node, model, store) {
  /** @type {Map<number, Promise<string>>} the picture of an id, as the address of a blob */
  const pictures = new Map();
  /** @type {Map<number, {results?: Found[], error?: string}|null>} what is like a picture of the index; null: on its way */
  const known = new Map();
  let builtKey = "";
  const hint = el("p", { class: "card empty", text: "Choose a picture first: the most similar ones of " +
    `${count(model.index ?? 0, "picture")} are shown here.` });
  const about = el("div", { class: "card row", hidden: true });
  const list = el("ol", { class: "found", "aria-label": "The most similar pictures, the best first" });
  node.append(hint, about, list);

  /** @param {number} id */
  function pictureOf(id) {
    if (!pictures.has(id)) pictures.set(id, api.indexPicture(id).then((blob) => URL.createObjectURL(blob)));
    return pictures.get(id);
  }

  /** What is like a picture of the index, or null while it is on its way. @param {number} id @param {() => void} changed */
  function similarTo(id, changed) {
    if (!known.has(id)) {
      known.set(id, null);
      api.similar(id).then((answer) => known.set(id, answer), (error) => {
        known.set(id, { error: error.message });
        setTimeout(() => known.delete(id), 2000);
      }).finally(changed);
    }
    return known.get(id);
  }

  /** @param {number} id @param {string} name */
  function image(id, name) {
    const picture = el("img", { alt: name });
    pictureOf(id).then((address) => (picture.src = address), (error) => {
      pictures.delete(id); // to be asked for again when it is shown again
      const text = error.status === 404 ? "not there any more" : error.message;
      picture.replaceWith(el("span", { class: "none", text }));
    });
    return picture;
  }

  /** @param {Found} one @param {number|null} from */
  const card = ({ id, name, score }, from) => el("li", {},
    el("button", {
      type: "button", class: "hit", title: name, "aria-pressed": id === from ? "true" : "false",
      on: { click: () => store.set({ similar: id }) },
    }, image(id, name), el("span", { class: "small score", text: score.toFixed(3) }),
    el("span", { class: "soft tiny filename", text: name })));

  return {
    /** @param {import("../state.js").State} state @param {import("../picture/pane.js").Pane[]} panes */
    update(state, panes) {
      node.hidden = state.view !== "similar";
      if (node.hidden) return;
      const pane = panes.find((one) => one.source) ?? null, from = state.similar;
      hint.hidden = from !== null || pane !== null;
      const answer = from !== null ? similarTo(from, panes[0].changed) : pane?.similar() ?? null;
      const key = [from, pane?.version, pane?.source?.name, answer?.results?.length, answer?.error, Boolean(answer)].join();
      if (key === builtKey) return;
      builtKey = key;
      about.hidden = hint.hidden === false;
      const back = pane === null ? null : el("button", {
        type: "button", text: "← Back to your picture", on: { click: () => store.set({ similar: null }) },
      });
      const own = answer?.results?.find((one) => one.id === from)?.name ?? `number ${from}`;
      const what = `Pictures like ${from !== null ? own : pane?.source?.name ?? ""}`;
      const text = answer?.error ?? (answer ? `${what}, of ${count(model.index ?? 0, "picture")}` : "Searching …");
      const line = el("p", { class: "filename", role: "status", text });
      about.replaceChildren(...[from !== null ? back : null, line].filter(Boolean));
      list.classList.toggle("waits", !answer); // what was found before stays until there is something new
      if (answer || !hint.hidden) list.replaceChildren(...(answer?.results ?? []).map((one) => card(one, from)));
    },
  };
}
