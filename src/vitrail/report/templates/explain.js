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

// The row of each token of a block: the tokens that it sees, and how much. Tokens of a group see the same ones.
function rowsOf({ groups, levels }) {
  const bytes = bytesOf(levels), rows = new Map();
  let start = 0;
  for (const [queries, keys] of groups) {
    for (const query of queries) {
      rows.set(query, { keys, values: bytes.subarray(start, start + keys.length) });
      start += keys.length;
    }
  }
  return rows;
}

function setUp(look) {
  const data = JSON.parse(look.querySelector("script").textContent);
  const find = (name) => look.querySelector("." + name);
  const [rows, columns] = data.grid, colours = palette(look.dataset.heat.split(","));
  const maps = data.queryMaps ? bytesOf(data.queryMaps.maps) : null;
  const every = data.every ? data.every.map(rowsOf) : null;
  const stage = find("stage"), canvas = look.querySelector("canvas"), frame = find("frame"), whose = find("whose");
  const lines = find("lines"), showWindows = find("windows");
  const block = find("block"), head = find("head"), strength = find("strength"), smooth = find("smooth");
  const alike = String(data.everyBlocks) === String(data.blocks);  // else other tokens are kept for the last block
  const paper = canvas.getContext("2d");
  let patch = [Math.floor(rows / 2), Math.floor(columns / 2)];
  canvas.width = columns;
  canvas.height = rows;
  const unit = Math.ceil(896 / Math.max(rows, columns)); // pixels of a patch, for lines of one width on every grid
  lines.width = columns * unit;
  lines.height = rows * unit;

  // A token of a block holds 1, 2 x 2, 4 x 4 ... patches of the picture.
  const shownBlock = () => (!ofQuery() && !alike ? data.everyBlocks.at(-1) : data.blocks[Number(block.value)]);
  const blockGrid = () => data.blockGrids[shownBlock()];
  const cell = () => blockGrid().map((side, axis) => Math.ceil(data.grid[axis] / side));
  const tokenAt = (row, column) => Math.floor(row / cell()[0]) * blockGrid()[1] + Math.floor(column / cell()[1]);

  const ofQuery = () => !whose || whose.value === "query";
  const token = () => (whose.value === "patch" ? data.names.length + tokenAt(...patch) : Number(whose.value));
  const headsIn = (place) => (data.queryMaps ? data.queryMaps.most[place].length - 1 : 0);
  const chosenHead = () => (Number(head.value) < 0 ? headsIn(Number(block.value)) : Math.min(Number(head.value), headsIn(Number(block.value)) - 1));

  function levels() {  // the bytes of the map to draw, a token each
    const size = (name) => data.blockGrids[name][0] * data.blockGrids[name][1], place = Number(block.value);
    if (ofQuery()) {
      let start = chosenHead() * size(shownBlock());
      for (let before = 0; before < place; before++) start += (headsIn(before) + 1) * size(data.blocks[before]);
      return maps.subarray(start, start + size(shownBlock()));
    }
    const { keys, values } = every[data.everyBlocks.indexOf(shownBlock())].get(token()), found = new Uint8Array(size(shownBlock()));
    keys.forEach((key, i) => { if (key >= data.names.length) found[key - data.names.length] = values[i]; });
    return found;
  }

  function words() {
    if (!ofQuery()) {
      const name = whose.value === "patch" ? "the patch in row " + patch[0] + ", column " + patch[1] : data.names[token()];
      return "Mean of the heads for " + name + ", to its own brightest.";
    }
    const most = data.queryMaps.most[Number(block.value)][chosenHead()], prefix = data.queryMaps.prefix[Number(block.value)][chosenHead()];
    const parts = data.names.map((name, i) => percent(prefix[i]) + " to " + name);
    const rest = 1 - prefix.reduce((sum, share) => sum + share, 0);
    const all = data.names.length ? " All patches: " + [percent(rest), ...parts].join(", ") + "." : "";
    return "The brightest " + (cell()[0] > 1 ? "token" : "patch") + " gets " + percent(most) + "." + all;
  }

  function draw() {
    const bytes = levels(), picture = paper.createImageData(columns, rows), most = Number(strength.value) / 100;
    const top = Math.max(1, ...new Set(bytes));
    for (let i = 0; i < rows * columns; i++) {
      const share = bytes[tokenAt(Math.floor(i / columns), i % columns)] / top, [r, g, b] = colours[Math.round(255 * share)];
      picture.data.set([r, g, b, Math.round(255 * most * Math.min(1, 0.25 + share))], 4 * i);
    }
    paper.putImageData(picture, 0, 0);
    canvas.style.imageRendering = smooth.checked ? "auto" : "pixelated";
    head.disabled = !ofQuery();
    const fixed = !ofQuery() && !alike;
    block.disabled = data.blocks.length === 1 || fixed;
    find("block-said").textContent = fixed ? data.everyBlocks.at(-1) : data.blocks[Number(block.value)];
    find("head-said").textContent = !ofQuery() || Number(head.value) < 0 ? "mean of all" : data.heads[chosenHead()];
    find("said").textContent = words();
    drawWindows();
    const queried = ofQuery() ? data.queryPatch : whose.value === "patch" ? patch : null;
    frame.hidden = !queried;
    if (queried) placeFrame(...queried);
  }

  function placeFrame(row, column) {  // around the token that holds the patch
    const [down, across] = cell(), top = row - (row % down), left = column - (column % across);
    frame.style.left = (100 * left) / columns + "%";
    frame.style.top = (100 * top) / rows + "%";
    frame.style.width = (100 * Math.min(across, columns - left)) / columns + "%";
    frame.style.height = (100 * Math.min(down, rows - top)) / rows + "%";
  }

  function drawWindows() {  // a line wherever two neighbours cannot attend to one another
    const ink = lines.getContext("2d"), numbers = data.windows[shownBlock()];
    ink.clearRect(0, 0, lines.width, lines.height);
    if (!numbers || !showWindows?.checked) return;
    ink.fillStyle = "#fff";
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const own = numbers[tokenAt(row, column)];
        if (column + 1 < columns && numbers[tokenAt(row, column + 1)] !== own) ink.fillRect(unit * (column + 1) - 1, unit * row, 2, unit);
        if (row + 1 < rows && numbers[tokenAt(row + 1, column)] !== own) ink.fillRect(unit * column, unit * (row + 1) - 1, unit, 2);
      }
    }
  }

  function choose(row, column) {
    patch = [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
    whose.value = "patch";
    draw();
  }

  for (const control of [whose, block, head, strength, smooth, showWindows]) control?.addEventListener("input", draw);
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
      const [down, across] = cell();
      choose(patch[0] + step[0] * down, patch[1] + step[1] * across);
    });
  }
  draw();
}

document.querySelectorAll(".look").forEach(setUp);
