// How pictures come in: dropped, pasted, chosen from disk, or one of the model's samples.

import * as api from "../api.js";
import { byId, el } from "../dom.js";

/**
 * @param {import("../state.js").Model} model
 * @param {{files: (files: File[], pane?: number) => void, sample: (number: number) => void,
 *          refused: (sentence: string) => void}} to
 */
export function setUpImageInput(model, { files, sample, refused }) {
  const input = byId("file");
  byId("choose").addEventListener("click", () => openFileDialog());
  input.addEventListener("change", () => {
    if (input.files.length) files([...input.files], input.dataset.pane ? Number(input.dataset.pane) : undefined);
    input.value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length) files(pasted);
  });
  setUpDrop(files, refused);
  byId("samples").append(...model.samples.map((item, number) => sampleButton(item.name, number, sample)));
}

/** Opens the dialog for files. @param {number} [pane] where the picture goes */
export function openFileDialog(pane) {
  const input = byId("file");
  if (pane === undefined) delete input.dataset.pane;
  else input.dataset.pane = String(pane);
  input.click();
}

/** A picture may be dropped anywhere; over one of two, it goes there. */
function setUpDrop(files, refused) {
  let inside = 0; // dragenter and dragleave come for every element that is crossed
  const mark = (/** @type {number} */ change) => {
    inside = Math.max(0, inside + change);
    document.body.classList.toggle("dropping", inside > 0);
  };
  document.addEventListener("dragenter", () => mark(1));
  document.addEventListener("dragleave", () => mark(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-inside);
    const dropped = [...(event.dataTransfer?.files ?? [])];
    const over = event.target instanceof Element ? event.target.closest("[data-pane]") : null;
    if (dropped.length) files(dropped, over instanceof HTMLElement ? Number(over.dataset.pane) : undefined);
    else refused("That was no file: save the picture first, then drop the file here.");
  });
}

/** @param {string} name @param {number} number @param {(number: number) => void} chosen */
function sampleButton(name, number, chosen) {
  const picture = el("img", { alt: "" });
  api.sample(number).then((blob) => (picture.src = URL.createObjectURL(blob)), () => picture.remove());
  return el("button", { type: "button", "data-sample": number, title: name, on: { click: () => chosen(number) } },
    picture, el("span", { text: name }));
}
