"use strict";
// The map of `vitrail explore`: dots and small pictures on a canvas, zoom, lasso, lists of files.
const data = JSON.parse(document.getElementById("data").textContent);
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const element = (name) => document.getElementById(name);
const X = new Uint16Array(bytesOf(data.x)), Y = new Uint16Array(bytesOf(data.y)), COUNT = X.length;
const folder = new Uint32Array(bytesOf(data.folder)), cluster = new Uint16Array(bytesOf(data.cluster));
const group = new Uint32Array(bytesOf(data.group)), lonely = new Uint8Array(bytesOf(data.lonely));
const picture = new Int32Array(bytesOf(data.picture)), sizes = new Uint8Array(bytesOf(data.sizes));
const classOf = data.class === null ? null : new Uint16Array(bytesOf(data.class));
const sheets = [...document.querySelectorAll(".sheet")];
const LONELY = ["#7d8fa8", "#5b9aa0", "#8fae5d", "#dba13a", "#d8553b"]; // from company to loneliness
// Pixels between pictures, their size, how near a pointer must be; pictures of a selection, and how many dots get rings.
const SHOWN = 26, TILE = 36, NEAR = 14, CONTACT = 96, RINGS = 150;

const canvas = element("map"), paper = canvas.getContext("2d"), tip = document.querySelector(".tip");
const view = { scale: 1, left: 0, top: 0 };  // pixel = place * scale + left
let width = 0, height = 0, fitted = 1, lassoing = false, loop = null, drag = null, waiting = false, hovered = -1;
let selected = new Uint8Array(COUNT), chosen = 0, matched = null, colours = [], kind = null, hidden = new Set(), order = null;

const pathOf = (i) => (data.folders[folder[i]] ? data.folders[folder[i]] + "/" : "") + data.names[i];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const visible = (i) => !hidden.has(kind[i]) && (matched === null || matched[i] === 1);
const said = (number) => number.toLocaleString("en") + (number === 1 ? " image" : " images");

// ---- colours

function colourBy(what) {
  const names = what === "class" ? data.classes : what === "cluster" ? data.clusterColours.map((_, i) => "Cluster " + (i + 1))
    : ["nearest to others", "", "", "", "farthest from others"];
  colours = what === "class" ? data.classColours : what === "cluster" ? data.clusterColours : LONELY;
  kind = what === "class" ? classOf : what === "cluster" ? cluster : lonely.map((rank) => Math.min(4, Math.floor(rank / 51.2)));
  hidden = new Set();
  const counts = new Uint32Array(colours.length);
  for (let i = 0; i < COUNT; i++) counts[kind[i]]++;
  const starts = new Uint32Array(colours.length + 1);
  for (let k = 0; k < colours.length; k++) starts[k + 1] = starts[k] + counts[k];
  order = new Uint32Array(COUNT);  // by colour: changing the colour is what drawing dots costs
  for (let i = 0; i < COUNT; i++) order[starts[kind[i]]++] = i;
  const legend = element("legend");
  legend.replaceChildren();
  colours.forEach((colour, k) => {
    if (!counts[k]) return;
    const button = document.createElement("button"), dot = document.createElement("i"), name = document.createElement("span"), number = document.createElement("b");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    dot.style.setProperty("--colour", colour);
    name.textContent = names[k];
    name.title = names[k];
    number.textContent = counts[k].toLocaleString("en");
    button.append(dot, name, number);
    button.addEventListener("click", () => {
      if (!hidden.delete(k)) hidden.add(k);
      button.setAttribute("aria-pressed", String(!hidden.has(k)));
      redraw();
    });
    legend.append(button);
  });
  redraw();
}

// ---- drawing

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function draw() {
  const sharp = window.devicePixelRatio || 1;
  paper.setTransform(sharp, 0, 0, sharp, 0, 0);
  paper.clearRect(0, 0, width, height);
  const radius = Math.min(7, Math.max(1.1, 150 / Math.sqrt(COUNT)) * Math.sqrt(view.scale / fitted));
  drawDots(radius, 0, chosen ? 0.2 : 0.85);  // what is selected stands out of what is not
  if (chosen) drawDots(radius, 1, 1);
  if (element("pictures").checked) drawPictures();
  drawRings(radius);
  if (loop) drawLoop();
  canvas.dataset.view = JSON.stringify(view);
}

function drawDots(radius, which, strength) {
  let last = -1;
  paper.globalAlpha = strength;
  for (const i of order) {
    if (selected[i] !== which || !visible(i)) continue;
    const x = X[i] * view.scale + view.left, y = Y[i] * view.scale + view.top;
    if (x < -radius || y < -radius || x > width + radius || y > height + radius) continue;
    if (kind[i] !== last) paper.fillStyle = colours[(last = kind[i])];
    if (radius < 2) paper.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
    else { paper.beginPath(); paper.arc(x, y, radius, 0, 7); paper.fill(); }
  }
  paper.globalAlpha = 1;
}

// Pictures in an order of chance, or those of the first class would hide all others.
const shuffled = Uint32Array.from({ length: COUNT }, (_, i) => i);
for (let i = COUNT - 1, seed = 1; i > 0; i--) {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  const other = Math.floor((seed / 4294967296) * (i + 1)), kept = shuffled[i];
  shuffled[i] = shuffled[other];
  shuffled[other] = kept;
}

function drawPictures() {  // none over another, so that their number is bounded
  const size = TILE * (view.scale > 4 * fitted ? 1.6 : 1), gap = size + SHOWN, across = Math.ceil(width / gap) + 3, taken = new Map();
  for (const i of shuffled) {
    if (picture[i] < 0 || !visible(i) || (chosen && !selected[i])) continue;
    const x = X[i] * view.scale + view.left, y = Y[i] * view.scale + view.top;
    if (x < 0 || y < 0 || x > width || y > height) continue;
    const row = Math.floor(y / gap) + 1, column = Math.floor(x / gap) + 1;
    const free = [-1, 0, 1].every((down) => [-1, 0, 1].every((right) => {
      const there = taken.get((row + down) * across + column + right);
      return !there || Math.max(Math.abs(there[0] - x), Math.abs(there[1] - y)) >= gap;
    }));
    if (!free) continue;
    taken.set(row * across + column, [x, y]);
    const [w, h] = fit(i, size);
    paper.fillStyle = colours[kind[i]];
    paper.fillRect(x - w / 2 - 2, y - h / 2 - 2, w + 4, h + 4);
    drawPicture(paper, i, x - w / 2, y - h / 2, w, h);
  }
}

function fit(i, side) {
  const w = sizes[2 * picture[i]], h = sizes[2 * picture[i] + 1], most = Math.max(w, h, 1);
  return [(side * w) / most, (side * h) / most];
}

function drawPicture(on, i, x, y, w, h) {
  const number = picture[i], each = data.columns * data.columns, sheet = sheets[Math.floor(number / each)], place = number % each;
  if (!sheet || !sheet.complete || !sheet.naturalWidth || !w || !h) return;
  const left = (place % data.columns) * data.side, top = Math.floor(place / data.columns) * data.side;
  on.drawImage(sheet, left, top, sizes[2 * number], sizes[2 * number + 1], x, y, w, h);
}

function drawRings(radius) {
  paper.strokeStyle = css("--ink");
  paper.lineWidth = 1.5;
  paper.beginPath();
  for (let i = 0; i < COUNT; i++) {
    if (i !== hovered && (!selected[i] || chosen > RINGS)) continue;
    const x = X[i] * view.scale + view.left, y = Y[i] * view.scale + view.top, r = Math.max(2.5, radius + 1.5) + (i === hovered ? 4 : 0);
    if (x < 0 || y < 0 || x > width || y > height) continue;
    paper.moveTo(x + r, y);
    paper.arc(x, y, r, 0, 7);
  }
  paper.stroke();
}

function drawLoop() {
  paper.strokeStyle = css("--note");
  paper.fillStyle = css("--note") + "22";
  paper.lineWidth = 2;
  paper.beginPath();
  loop.forEach(([x, y], n) => (n ? paper.lineTo(x, y) : paper.moveTo(x, y)));
  paper.closePath();
  paper.fill();
  paper.stroke();
}

// ---- moving about

function resize() {
  const box = canvas.getBoundingClientRect(), sharp = window.devicePixelRatio || 1, first = width === 0;
  width = box.width;
  height = box.height;
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  if (first) showAll();
  redraw();
}

function showAll() {
  let right = 1, bottom = 1;
  for (let i = 0; i < COUNT; i++) { right = Math.max(right, X[i]); bottom = Math.max(bottom, Y[i]); }
  fitted = Math.min((width - 60) / right, (height - 60) / bottom);
  view.scale = fitted;
  view.left = (width - right * fitted) / 2;
  view.top = (height - bottom * fitted) / 2;
  redraw();
}

function zoom(times, x = width / 2, y = height / 2) {
  const scale = Math.min(400 * fitted, Math.max(0.5 * fitted, view.scale * times)), real = scale / view.scale;
  view.left = x - (x - view.left) * real;
  view.top = y - (y - view.top) * real;
  view.scale = scale;
  redraw();
}

function moveBy(x, y) { view.left += x; view.top += y; redraw(); }

function showPlace(i) {
  view.scale = Math.max(view.scale, 5 * fitted);
  view.left = width / 2 - X[i] * view.scale;
  view.top = height / 2 - Y[i] * view.scale;
  hovered = i;
  canvas.scrollIntoView({ block: "center" });
  canvas.focus({ preventScroll: true });
  showTip(i);
  redraw();
}

// ---- what is under the pointer

const FIELDS = 256, fields = new Map();  // places by field of the map, so that few are looked at
for (let i = 0; i < COUNT; i++) {
  const field = (Y[i] >> 8) * FIELDS + (X[i] >> 8);
  if (fields.has(field)) fields.get(field).push(i); else fields.set(field, [i]);
}

function nearest(x, y) {
  const mx = (x - view.left) / view.scale, my = (y - view.top) / view.scale, reach = NEAR / view.scale;
  let best = -1, least = reach * reach;
  for (let row = Math.max(0, (my - reach) >> 8); row <= Math.min(FIELDS - 1, (my + reach) >> 8); row++) {
    for (let column = Math.max(0, (mx - reach) >> 8); column <= Math.min(FIELDS - 1, (mx + reach) >> 8); column++) {
      for (const i of fields.get(row * FIELDS + column) || []) {
        const far = (X[i] - mx) ** 2 + (Y[i] - my) ** 2;
        if (far < least && visible(i)) { least = far; best = i; }
      }
    }
  }
  return best;
}

function showTip(i) {
  tip.hidden = i < 0;
  if (i < 0) return;
  const small = tip.querySelector("canvas"), words = [pathOf(i)];
  small.hidden = picture[i] < 0;
  if (picture[i] >= 0) {
    const [w, h] = fit(i, 128);
    small.width = Math.max(1, w);
    small.height = Math.max(1, h);
    drawPicture(small.getContext("2d"), i, 0, 0, w, h);
  }
  if (classOf) words.push(data.classes[classOf[i]]);
  words.push("Cluster " + (cluster[i] + 1));
  if (group[i]) words.push("near-duplicate, group " + group[i]);
  words.push("farther from its neighbours than " + Math.round(lonely[i] / 2.55) + " % of all");
  tip.querySelector("p").textContent = words.join("\n");
  const x = X[i] * view.scale + view.left, y = Y[i] * view.scale + view.top;
  tip.style.left = (x + 16 + tip.offsetWidth > width ? Math.max(0, x - 16 - tip.offsetWidth) : x + 16) + "px";
  tip.style.top = Math.max(0, Math.min(y - 20, height - tip.offsetHeight)) + "px";
}

// ---- selecting

function inside(x, y, polygon) {
  let odd = false;
  for (let n = 0, before = polygon.length - 1; n < polygon.length; before = n++) {
    const [ax, ay] = polygon[n], [bx, by] = polygon[before];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) odd = !odd;
  }
  return odd;
}

function selectWhere(test, add = false) {
  if (!add) selected = new Uint8Array(COUNT);
  for (let i = 0; i < COUNT; i++) if (test(i)) selected[i] = 1;
  listSelected();
}

function selectLoop(add) {
  const polygon = loop.map(([x, y]) => [(x - view.left) / view.scale, (y - view.top) / view.scale]);
  selectWhere((i) => visible(i) && inside(X[i], Y[i], polygon), add);
}

const inView = (i) => {
  const x = X[i] * view.scale + view.left, y = Y[i] * view.scale + view.top;
  return x >= 0 && y >= 0 && x <= width && y <= height && visible(i);
};

function listSelected() {
  const places = [];
  for (let i = 0; i < COUNT; i++) if (selected[i]) places.push(i);
  chosen = places.length;
  element("said").textContent = places.length ? said(places.length) + " selected." : "Nothing is selected.";
  element("files").value = places.map(pathOf).join("\n");
  document.querySelector(".list").hidden = !places.length;
  for (const name of ["copy", "save", "clear"]) element(name).disabled = !places.length;
  const contact = element("contact");
  contact.replaceChildren();
  for (const i of places.filter((place) => picture[place] >= 0).slice(0, CONTACT)) {
    const small = document.createElement("canvas"), [w, h] = fit(i, 96);
    small.width = small.height = 96;
    small.title = pathOf(i);
    drawPicture(small.getContext("2d"), i, (96 - w) / 2, (96 - h) / 2, w, h);
    contact.append(small);
  }
  redraw();
}

async function copyList() {
  const files = element("files");
  try {
    await navigator.clipboard.writeText(files.value);
  } catch {  // a page from a disk may not use the clipboard in some browsers
    files.select();
    document.execCommand("copy");
  }
  element("said").textContent = "Copied " + said(files.value.split("\n").length) + ".";
}

function saveList() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([element("files").value + "\n"], { type: "text/plain" }));
  link.download = "selected.txt";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- hands

const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

const fingers = new Map();  // two of them zoom

function pinch(event) {
  const before = [...fingers.values()], middle = (axis) => (before[0][axis] + before[1][axis]) / 2;
  const apart = ([one, other]) => Math.max(1, Math.hypot(one[0] - other[0], one[1] - other[1]));
  fingers.set(event.pointerId, at(event));
  zoom(apart([...fingers.values()]) / apart(before), middle(0), middle(1));
}

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  const [x, y] = at(event);
  fingers.set(event.pointerId, [x, y]);
  if (fingers.size > 1) loop = drag = null;
  else if (lassoing || event.shiftKey) loop = [[x, y]];
  else drag = [x, y];
  showTip(-1);
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = at(event);
  if (fingers.size > 1) { if (fingers.has(event.pointerId)) pinch(event); return; }
  if (loop) { loop.push([x, y]); redraw(); return; }
  if (drag) { moveBy(x - drag[0], y - drag[1]); drag = [x, y]; return; }
  const found = nearest(x, y);
  if (found !== hovered) { hovered = found; showTip(found); redraw(); }
});
function release(event) {
  fingers.delete(event.pointerId);
  if (loop && event.type === "pointerup" && loop.length > 2) selectLoop(lassoing && event.shiftKey);
  loop = drag = null;
  redraw();
}
canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);
canvas.addEventListener("pointerleave", () => { if (!drag && !loop) { hovered = -1; showTip(-1); redraw(); } });
canvas.addEventListener("wheel", (event) => {  // the page scrolls past the map until this is clicked
  if (document.activeElement !== canvas && !event.ctrlKey) return;
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 400), ...at(event));
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const act = {
    ArrowLeft: () => moveBy(60, 0), ArrowRight: () => moveBy(-60, 0), ArrowUp: () => moveBy(0, 60), ArrowDown: () => moveBy(0, -60),
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: showAll, Enter: () => selectWhere(inView), Escape: () => selectWhere(() => false),
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});

function mode(lasso) {
  lassoing = lasso;
  canvas.classList.toggle("lasso", lasso);
  element("move").setAttribute("aria-pressed", String(!lasso));
  element("lasso").setAttribute("aria-pressed", String(lasso));
}

element("move").addEventListener("click", () => mode(false));
element("lasso").addEventListener("click", () => mode(true));
element("closer").addEventListener("click", () => zoom(1.5));
element("farther").addEventListener("click", () => zoom(1 / 1.5));
element("whole").addEventListener("click", showAll);
element("colour").addEventListener("change", (event) => colourBy(event.target.value));
element("pictures").addEventListener("change", redraw);
element("in-view").addEventListener("click", () => selectWhere(inView));
element("copy").addEventListener("click", copyList);
element("save").addEventListener("click", saveList);
element("clear").addEventListener("click", () => selectWhere(() => false));
element("find").addEventListener("input", (event) => {
  const text = event.target.value.toLowerCase();
  matched = text ? Uint8Array.from({ length: COUNT }, (_, i) => Number(pathOf(i).toLowerCase().includes(text))) : null;
  redraw();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const { place, cluster: cards, group: number, outliers } = button.dataset;
  if (place !== undefined) showPlace(Number(place));
  else if (cards !== undefined) selectWhere((i) => cluster[i] === Number(cards));
  else if (number !== undefined) selectWhere((i) => (number === "all" ? group[i] > 0 : group[i] === Number(number)));
  else if (outliers !== undefined) { const those = new Set(outliers.split(",").map(Number)); selectWhere((i) => those.has(i)); }
});
for (const sheet of sheets) if (!sheet.complete) sheet.addEventListener("load", redraw);
window.addEventListener("resize", resize);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
colourBy(element("colour").value);
resize();
