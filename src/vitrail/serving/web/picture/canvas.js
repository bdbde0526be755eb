// Drawing: the picture in grey, colours over it, and a frame around the queried patch. Once a frame at most.

import { heatPalette, signedPalette } from "../maps/colours.js";
import { cellOf } from "../maps/tokens.js";

const SIDE = 448; // pixels that a picture's longer side is drawn with, at least
const SMALL = 112; // and that of a small one

/**
 * @typedef {Object} Heat
 * @property {Float32Array} values (h, w), row by row
 * @property {[number, number]} grid
 * @property {boolean} signed
 * @property {boolean} [spread] from the least value to the largest, instead of from 0
 */

/** A drawing surface outside of the page. @param {number} width @param {number} height */
function surface(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

/** Calls `draw` in the next frame, however often it is called. @param {() => void} draw */
export function oncePerFrame(draw) {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      draw();
    });
  };
}

/** A picture as the model sees it, ready to be drawn on: in colour and in grey, and small in grey. */
export class Picture {
  /** @param {ImageBitmap} bitmap */
  constructor(bitmap) {
    const { width, height } = bitmap, longer = Math.max(width, height);
    const times = Math.max(1, Math.ceil(SIDE / longer));
    this.size = [width, height];
    this.colour = surface(width * times, height * times);
    const context = this.colour.getContext("2d");
    context.imageSmoothingEnabled = times <= 4; // the pixels of a very small picture are to be seen
    context.drawImage(bitmap, 0, 0, this.colour.width, this.colour.height);
    this.grey = greyCopy(this.colour);
    const smaller = Math.min(1, SMALL / Math.max(this.grey.width, this.grey.height));
    this.small = surface(Math.round(this.grey.width * smaller), Math.round(this.grey.height * smaller));
    this.small.getContext("2d").drawImage(this.grey, 0, 0, this.small.width, this.small.height);
  }
}

/** @param {HTMLCanvasElement} picture */
function greyCopy(picture) {
  const grey = surface(picture.width, picture.height), context = grey.getContext("2d");
  const image = picture.getContext("2d").getImageData(0, 0, grey.width, grey.height), pixels = image.data;
  for (let i = 0; i < pixels.length; i += 4) {
    pixels[i] = pixels[i + 1] = pixels[i + 2] = ((pixels[i] + pixels[i + 1] + pixels[i + 2]) / 3) * 0.7 + 40;
  }
  context.putImageData(image, 0, 0);
  return grey;
}

/** @type {Map<string, {canvas: HTMLCanvasElement, context: CanvasRenderingContext2D, image: ImageData}>} by grid */
const heatSurfaces = new Map();

/**
 * A map as a surface with a pixel for each patch, to its own largest. It is used again by the next map of this grid.
 * @param {Heat} heat @param {number} strength 0..1
 */
function heatSurface({ values, grid, signed, spread }, strength) {
  const key = grid.join();
  if (!heatSurfaces.has(key)) {
    const canvas = surface(grid[1], grid[0]), context = canvas.getContext("2d");
    heatSurfaces.set(key, { canvas, context, image: context.createImageData(grid[1], grid[0]) });
  }
  const { canvas, context, image } = heatSurfaces.get(key);
  let most = 1e-12, least = spread && !signed ? Infinity : 0;
  for (const value of values) {
    most = Math.max(most, signed ? Math.abs(value) : value);
    if (spread && !signed) least = Math.min(least, value);
  }
  const range = most - least || 1;
  for (let i = 0; i < values.length; i++) {
    const share = signed ? values[i] / most : Math.max(0, (values[i] - least) / range);
    const colour = signed ? signedPalette[Math.round(127.5 + 127.5 * share)] : heatPalette[Math.round(255 * share)];
    const cover = signed ? Math.abs(share) : Math.min(1, 0.25 + share);
    image.data[4 * i] = colour[0];
    image.data[4 * i + 1] = colour[1];
    image.data[4 * i + 2] = colour[2];
    image.data[4 * i + 3] = Math.round(255 * strength * cover);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * A surface with a colour for each pixel: red, green, blue and cover, 0 to 255; null leaves it clear.
 * @param {number[]} shape (H, W) @param {(index: number) => number[]|null} colourAt
 */
export function pixelSurface(shape, colourAt) {
  const canvas = surface(shape[1], shape[0]), context = canvas.getContext("2d");
  const image = context.createImageData(shape[1], shape[0]);
  for (let i = 0; i < shape[0] * shape[1]; i++) {
    const colour = colourAt(i);
    if (colour) image.data.set(colour, 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Draws a picture and what lies over it.
 * @param {HTMLCanvasElement} canvas
 * @param {Picture} picture
 * @param {{heat?: Heat|null, layer?: {surface: HTMLCanvasElement, box: number[], grey: boolean}|null,
 *          patch?: [number, number]|null, grid: [number, number], patches: [number, number],
 *          windows?: number[]|null, strength: number, smooth: boolean, small?: boolean}} over
 *        patch: on `grid`, whose tokens hold one or several of the `patches`; windows: lines between their numbers
 */
export function draw(canvas, picture, { heat, layer, patch, grid, patches, windows, strength, smooth, small = false }) {
  const ground = small ? picture.small : heat || layer?.grey ? picture.grey : picture.colour;
  if (canvas.width !== ground.width || canvas.height !== ground.height) {
    canvas.width = ground.width;
    canvas.height = ground.height;
  }
  const context = canvas.getContext("2d"), { width, height } = canvas;
  context.imageSmoothingEnabled = false;
  context.drawImage(ground, 0, 0);
  if (layer) {
    context.globalAlpha = strength * 0.75;
    const [left, top, right, bottom] = layer.box; // where it lies, 0..1 of the picture
    context.drawImage(layer.surface, left * width, top * height, (right - left) * width, (bottom - top) * height);
    context.globalAlpha = 1;
  }
  if (heat) {
    context.imageSmoothingEnabled = smooth;
    context.drawImage(heatSurface(heat, strength), 0, 0, ...reach(heat.grid, patches, width, height));
  }
  const [across, down] = reach(grid, patches, width, height);
  if (windows) windowLines(context, windows, grid, across, down);
  if (patch) frame(context, patch, grid, across, down, small ? 1 : 2);
}

/** Width and height that a grid covers: more than the picture where its last tokens hold less than the others. */
function reach(grid, patches, width, height) {
  const [down, across] = cellOf(grid, patches);
  return [(width * grid[1] * across) / patches[1], (height * grid[0] * down) / patches[0]];
}

/** A line wherever two neighbours cannot attend to one another. */
function windowLines(context, windows, [rows, columns], width, height) {
  const across = width / columns, down = height / rows;
  context.fillStyle = "#fff";
  for (let i = 0; i < windows.length; i++) {
    const row = Math.floor(i / columns), column = i % columns;
    if (column + 1 < columns && windows[i + 1] !== windows[i]) {
      context.fillRect(Math.round((column + 1) * across) - 1, row * down, 2, down + 1);
    }
    if (row + 1 < rows && windows[i + columns] !== windows[i]) {
      context.fillRect(column * across, Math.round((row + 1) * down) - 1, across + 1, 2);
    }
  }
}

/** White inside black: seen on every ground. */
function frame(context, [row, column], grid, width, height, line) {
  const across = width / grid[1], down = height / grid[0];
  for (const [colour, inset] of [["#111", -line / 2], ["#fff", line / 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(column * across + inset, row * down + inset, across - 2 * inset, down - 2 * inset);
  }
}
