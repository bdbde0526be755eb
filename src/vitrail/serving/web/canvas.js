// Drawing: the picture in grey, colours over it, and a frame around the patch that is asked. Once a frame at most.

import { heatPalette, signedPalette } from "./colours.js";

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

/** Calls `draw` in the next frame, however often it was asked for. @param {() => void} draw */
export function eachFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
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
    const paper = this.colour.getContext("2d");
    paper.imageSmoothingEnabled = times <= 4; // the pixels of a very small picture are to be seen
    paper.drawImage(bitmap, 0, 0, this.colour.width, this.colour.height);
    this.grey = greyed(this.colour);
    const smaller = Math.min(1, SMALL / Math.max(this.grey.width, this.grey.height));
    this.small = surface(Math.round(this.grey.width * smaller), Math.round(this.grey.height * smaller));
    this.small.getContext("2d").drawImage(this.grey, 0, 0, this.small.width, this.small.height);
  }
}

/** @param {HTMLCanvasElement} picture */
function greyed(picture) {
  const grey = surface(picture.width, picture.height), paper = grey.getContext("2d");
  const image = picture.getContext("2d").getImageData(0, 0, grey.width, grey.height), pixels = image.data;
  for (let i = 0; i < pixels.length; i += 4) {
    pixels[i] = pixels[i + 1] = pixels[i + 2] = ((pixels[i] + pixels[i + 1] + pixels[i + 2]) / 3) * 0.7 + 40;
  }
  paper.putImageData(image, 0, 0);
  return grey;
}

/** @type {Map<string, {canvas: HTMLCanvasElement, paper: CanvasRenderingContext2D, image: ImageData}>} by grid */
const kept = new Map();

/**
 * A map as a surface with a pixel for each patch, to its own largest. It is used again by the next map of this grid.
 * @param {Heat} heat @param {number} strength 0..1
 */
function heatSurface({ values, grid, signed, spread }, strength) {
  const key = grid.join();
  if (!kept.has(key)) {
    const canvas = surface(grid[1], grid[0]), paper = canvas.getContext("2d");
    kept.set(key, { canvas, paper, image: paper.createImageData(grid[1], grid[0]) });
  }
  const { canvas, paper, image } = kept.get(key);
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
  paper.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Class numbers as a surface: a colour for each class, or one class alone. A number without a colour stays clear.
 * @param {{data: Uint8Array, shape: number[]}} mask (H, W) @param {number[][]} colours @param {number|null} only
 */
export function maskSurface({ data, shape }, colours, only) {
  const canvas = surface(shape[1], shape[0]), paper = canvas.getContext("2d");
  const image = paper.createImageData(shape[1], shape[0]), pixels = image.data;
  for (let i = 0; i < data.length; i++) {
    const colour = colours[data[i]];
    if (!colour) continue;
    pixels[4 * i] = colour[0];
    pixels[4 * i + 1] = colour[1];
    pixels[4 * i + 2] = colour[2];
    pixels[4 * i + 3] = only === null || only === data[i] ? 255 : 30;
  }
  paper.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Draws a picture and what lies over it.
 * @param {HTMLCanvasElement} canvas
 * @param {Picture} picture
 * @param {{heat?: Heat|null, mask?: {surface: HTMLCanvasElement, box: number[]}|null, patch?: [number, number]|null,
 *          grid: [number, number], strength: number, smooth: boolean, small?: boolean}} over
 */
export function draw(canvas, picture, { heat, mask, patch, grid, strength, smooth, small = false }) {
  const ground = small ? picture.small : heat ? picture.grey : picture.colour;
  if (canvas.width !== ground.width || canvas.height !== ground.height) {
    canvas.width = ground.width;
    canvas.height = ground.height;
  }
  const paper = canvas.getContext("2d"), { width, height } = canvas;
  paper.imageSmoothingEnabled = false;
  paper.drawImage(ground, 0, 0);
  if (mask) {
    paper.globalAlpha = strength * 0.75;
    const [left, top, right, bottom] = mask.box; // where it lies, 0..1 of the picture
    paper.drawImage(mask.surface, left * width, top * height, (right - left) * width, (bottom - top) * height);
    paper.globalAlpha = 1;
  }
  if (heat) {
    paper.imageSmoothingEnabled = smooth;
    paper.drawImage(heatSurface(heat, strength), 0, 0, width, height);
  }
  if (patch) frame(paper, patch, grid, width, height, small ? 1 : 2);
}

/** White inside black: seen on every ground. */
function frame(paper, [row, column], grid, width, height, line) {
  const across = width / grid[1], down = height / grid[0];
  for (const [colour, inset] of [["#111", -line / 2], ["#fff", line / 2]]) {
    paper.strokeStyle = colour;
    paper.lineWidth = line;
    paper.strokeRect(column * across + inset, row * down + inset, across - 2 * inset, down - 2 * inset);
  }
}
