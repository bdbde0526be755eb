"use strict";
// Attention under sliders. The maps come as bytes, each to its own largest; colours are those of the PNG files.
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %";

function palette(stops) {
  const rgb = stops.map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (rgb.length - 1), below = Math.min(Math.floor(place), rgb.length - 2);
    return rgb[below].map((low, c) => Math.round(low + (place - below) * (rgb[below + 1][c] - low)));
  });
}

function setUp(look) {
  const data = JSON.parse(look.querySelector("script").textContent);
  const find = (name) => look.querySelector("." + name);
  const [rows, columns] = data.grid, patches = rows * columns;
  const maps = data.queryMaps ? bytesOf(data.queryMaps.maps) : null, every = data.every ? bytesOf(data.every) : null;
  const tokens = patches + data.names.length, colours = palette(look.dataset.heat.split(","));
  const stage = find("stage"), canvas = look.querySelector("canvas"), frame = find("frame"), whose = find("whose");
  const block = find("block"), head = find("head"), strength = find("strength"), smooth = find("smooth");
  const alike = String(data.everyBlocks) === String(data.blocks);  // else other tokens are kept for the last block
  const paper = canvas.getContext("2d");
  let patch = [Math.floor(rows / 2), Math.floor(columns / 2)];
  canvas.width = columns;
  canvas.height = rows;

  const ofQuery = () => !whose || whose.value === "query";
  const token = () => (whose.value === "patch" ? data.names.length + patch[0] * columns + patch[1] : Number(whose.value));

  function levels() {  // the bytes of the map to draw
    if (ofQuery()) {
      const chosen = Number(head.value) < 0 ? data.heads.length : Number(head.value);
      const start = (Number(block.value) * (data.heads.length + 1) + chosen) * patches;
      return maps.subarray(start, start + patches);
    }
    const place = alike ? Number(block.value) : data.everyBlocks.length - 1;
    const start = (place * tokens + token()) * tokens;
    return every.subarray(start + data.names.length, start + tokens);
  }

  function words() {
    if (!ofQuery()) {
      const name = whose.value === "patch" ? "the patch in row " + patch[0] + ", column " + patch[1] : data.names[token()];
      return "Mean of the heads for " + name + ", to its own brightest.";
    }
    const chosen = Number(head.value) < 0 ? data.heads.length : Number(head.value);
    const most = data.queryMaps.most[Number(block.value)][chosen], prefix = data.queryMaps.prefix[Number(block.value)][chosen];
    const parts = data.names.map((name, i) => percent(prefix[i]) + " to " + name);
    const rest = 1 - prefix.reduce((sum, share) => sum + share, 0);
    return ["The brightest patch gets " + percent(most) + ". All patches: " + percent(rest), ...parts].join(", ") + ".";
  }

  function draw() {
    const bytes = levels(), picture = paper.createImageData(columns, rows), most = Number(strength.value) / 100;
    const top = bytes.reduce((a, b) => Math.max(a, b), 1);
    bytes.forEach((level, i) => {
      const share = level / top, [r, g, b] = colours[Math.round(255 * share)];
      picture.data.set([r, g, b, Math.round(255 * most * Math.min(1, 0.25 + share))], 4 * i);
    });
    paper.putImageData(picture, 0, 0);
    canvas.style.imageRendering = smooth.checked ? "auto" : "pixelated";
    head.disabled = !ofQuery();
    const fixed = !ofQuery() && !alike;
    block.disabled = data.blocks.length === 1 || fixed;
    find("block-said").textContent = fixed ? data.everyBlocks.at(-1) : data.blocks[Number(block.value)];
    find("head-said").textContent = !ofQuery() || Number(head.value) < 0 ? "mean of all" : data.heads[Number(head.value)];
    find("said").textContent = words();
    frame.hidden = ofQuery() || whose.value !== "patch";
    frame.style.left = (100 * patch[1]) / columns + "%";
    frame.style.top = (100 * patch[0]) / rows + "%";
    frame.style.width = 100 / columns + "%";
    frame.style.height = 100 / rows + "%";
  }

  function choose(row, column) {
    patch = [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
    whose.value = "patch";
    draw();
  }

  for (const control of [whose, block, head, strength, smooth]) control?.addEventListener("input", draw);
  if (every) {
    stage.addEventListener("click", (event) => {
      const box = stage.getBoundingClientRect();
      choose(Math.floor(((event.clientY - box.top) / box.height) * rows),
             Math.floor(((event.clientX - box.left) / box.width) * columns));
    });
    stage.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(patch[0] + step[0], patch[1] + step[1]);
    });
  }
  draw();
}

document.querySelectorAll(".look").forEach(setUp);
