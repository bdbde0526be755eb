// The picture that is pointed at: which patch is under the pointer, arrow keys, and the boxes of detected objects.

import { draw } from "./canvas.js";
import { objectColour } from "./answer_list.js";
import { el } from "../dom.js";
import { cellOf, patchOf } from "../maps/tokens.js";
import { probability } from "../format.js";

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @param {() => import("./pane.js").Pane} pane
 * @param {{peek: (query: string|null) => void, pin: (query: string) => void, query: () => string, home: () => void,
 *          object: (number: number) => void}} actions
 */
export function createStage(pane, actions) {
  const canvas = el("canvas", { "aria-hidden": "true" }), boxes = el("div", { class: "boxes" });
  const node = el("div", {
    class: "stage", tabindex: "0", role: "application", "aria-roledescription": "picture of patches",
    "aria-label": "The picture. Arrow keys move from patch to patch and tell what it attends to; Escape goes back.",
  }, canvas, boxes);

  const patchAt = (/** @type {PointerEvent|MouseEvent} */ event) => {
    const box = node.getBoundingClientRect(), [rows, columns] = pane().patches;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return `${clamp(row, rows)},${clamp(column, columns)}`;
  };
  node.addEventListener("pointermove", (event) => pane().header && actions.peek(patchAt(event)));
  node.addEventListener("pointerleave", () => actions.peek(null));
  node.addEventListener("pointercancel", () => actions.peek(null));
  node.addEventListener("click", (event) => {
    if (!pane().header || (event.target instanceof Element && event.target.closest("button"))) return;
    actions.pin(patchAt(event));
  });
  node.addEventListener("keydown", (event) => {
    if (!pane().header || event.target !== node || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = STEPS[event.key], { patches } = pane(), [rows, columns] = patches;
    const [down, across] = cellOf(pane().lastBlock?.grid ?? patches, patches); // from token to token
    if (event.key === "Escape") actions.home();
    if (!step) return;
    event.preventDefault();
    const from = patchOf(actions.query()), middle = [Math.floor(rows / 2), Math.floor(columns / 2)];
    const [row, column] = from ? [from[0] + step[0] * down, from[1] + step[1] * across] : middle;
    actions.pin(`${clamp(row, rows)},${clamp(column, columns)}`);
  });

  let shownVersion = -1;
  return {
    node,
    /**
     * @param {Parameters<typeof draw>[2]} over
     * @param {number|null} object the chosen box
     * @param {import("../state.js").Model} model
     */
    update(over, object, model) {
      const { picture, header, version } = pane();
      if (shownVersion !== version) {
        node.style.aspectRatio = `${picture.size[0]} / ${picture.size[1]}`;
        node.style.maxWidth = `calc(80vh * ${picture.size[0] / picture.size[1]})`; // a tall picture fits on the screen
        boxes.replaceChildren(...(header.boxes ?? []).map((box, number) =>
          boxElement(box, header.answer, number, model, actions.object)));
        shownVersion = version;
      }
      for (const [number, box] of [...boxes.children].entries()) box.classList.toggle("chosen", number === object);
      draw(canvas, picture, over);
    },
  };
}

const clamp = (/** @type {number} */ index, /** @type {number} */ length) => Math.min(length - 1, Math.max(0, index));

/** A box lets the pointer through to the patches; its name can be clicked. */
function boxElement([left, top, right, bottom], { objects, threshold = 0 }, number, model, chosen) {
  const { label, score } = objects[number], colour = objectColour(label, model), doubtful = score < threshold;
  const name = el("button", {
    type: "button", text: `${number + 1} ${label} ${probability(score)}`, on: { click: () => chosen(number) },
  });
  name.style.background = colour;
  const box = el("div", { class: `box${top < 0.06 ? " low" : ""}${doubtful ? " doubtful" : ""}` }, name);
  Object.assign(box.style, {
    left: `${100 * left}%`, top: `${100 * top}%`, width: `${100 * (right - left)}%`, height: `${100 * (bottom - top)}%`,
    borderColor: colour, zIndex: String(objects.length - number), // the best on top
  });
  return box;
}
