// One picture: its bytes, and what the server has answered about it so far. Nothing is asked twice.

import * as api from "../api.js";
import { Picture } from "./canvas.js";
import { decode, Maps } from "../maps/attention_maps.js";
import { methodWords } from "../format.js";

const RETRY_AFTER = 2000; // milliseconds after which a request that failed may be asked again

/** @typedef {{blob: Blob, name: string, sample: number|null}} Source */

export class Pane {
  /** @param {() => void} changed called when there is something new to show */
  constructor(changed) {
    this.changed = changed;
    this.clear();
  }

  clear() {
    this.controller?.abort();
    /** @type {Source|null} */
    this.source = null;
    /** @type {any} what /v1/look answered */
    this.header = null;
    /** @type {Picture|null} */
    this.picture = null;
    /** @type {Map<number, {block: number, maps: Maps|null, grid: [number, number], windows: number[]|null}>} by block */
    this.blocks = new Map();
    /** @type {Maps|null} what the queries of a decoder attend to; it has blocks of its own, of which this is the last */
    this.queries = null;
    /** @type {Map<string, any>} explanations and walks: a value, or null while it is on its way */
    this.results = new Map();
    /** @type {Object<string, import("../maps/attention_maps.js").Part>} arrays of the answer, such as a mask */
    this.parts = {};
    this.layerCache = { key: "" };
    this.error = "";
    this.busy = false;
    this.controller = null;
    this.failedBlock = null; // the block whose maps did not come: asked again when another was asked for in between
    this.loadingBlock = null;
    this.lastBlock = null;
    this.version = (this.version ?? 0) + 1; // of the answer, so that a view knows when to make itself anew
  }

  /** @param {Source} source @param {number} block */
  async open(source, block) {
    this.clear();
    this.source = source;
    await this.runLatest(async (signal) => {
      const { header, parts } = decode(await api.look(source.blob, block, signal));
      const bitmap = await createImageBitmap(parts.picture.data);
      if (signal.aborted) return;
      this.header = header;
      this.picture = new Picture(bitmap);
      bitmap.close();
      this.parts = parts;
      this.storeMaps(header, parts);
      this.version += 1;
    });
  }

  /** @param {Source} source @param {string} sentence */
  showError(source, sentence) {
    this.clear();
    this.source = source;
    this.error = sentence;
    this.changed();
  }

  /** The grid of the picture's patches; a block may have merged some. @returns {[number, number]} */
  get patches() {
    return this.header.patches ?? this.header.grid;
  }

  /** The maps of a block: at once where they are known, else null, and they are asked for. @param {number} block */
  block(block) {
    const loaded = this.blocks.get(block);
    if (loaded || !this.header || this.loadingBlock === block || this.failedBlock === block) return loaded ?? null;
    this.loadingBlock = block;
    this.failedBlock = null;
    this.runLatest(async (signal) => {
      const { header, parts } = decode(await api.attention(this.source.blob, block, signal));
      if (!signal.aborted) this.storeMaps({ ...header, block: header.block ?? block }, parts);
    }).finally(() => {
      if (this.loadingBlock !== block) return;
      this.loadingBlock = null;
      if (!this.blocks.has(block)) this.failedBlock = block;
    });
    return null;
  }

  /** @param {any} header @param {Object<string, import("../maps/attention_maps.js").Part>} parts */
  storeMaps(header, parts) {
    const { prefix } = this.header, { grid = this.header.grid, windows = null } = header; // each stage has its own
    const maps = parts.maps ? new Maps(parts, "maps", prefix.length, grid) : null;
    if (parts.queries) this.queries = new Maps(parts, "queries", prefix.length, grid);
    this.blocks.set(header.block, { block: header.block, maps, grid, windows });
  }

  /** An explanation's map, or null while it is on its way. @param {string} method @param {string|null} label */
  explanation(method, label) {
    const target = methodWords(method).always ? null : label;
    return this.fetchOnce(`${method} ${target}`, async () => {
      const { map, grid, label: explained } = await api.explain(this.source.blob, method, target);
      return { values: Float32Array.from(map.flat()), grid: grid ?? [map.length, map[0].length], label: explained };
    });
  }

  /** The steps of the walk through a block, or null while they are on their way. @param {number} block */
  walk(block) {
    return this.fetchOnce(`walk ${block}`, async () => (await api.walk(this.source.blob, block)).steps);
  }

  /** What is like it in the index, or null while that is on its way; {error} where it cannot be told. */
  similar() {
    return this.source === null ? null : this.fetchOnce("similar", () => api.search(this.source.blob));
  }

  /** The array that the task lays over the picture, if it came. @param {import("../state.js").Model} model */
  layerPart({ drawing }) {
    return (drawing.layer && this.parts[drawing.layer.name]) ?? null;
  }

  /** It as a surface, all classes or one alone. @param {import("../state.js").Model} model @param {number|null} only */
  layerOf(model, only) {
    const key = `${this.version} ${only}`;
    if (this.layerCache.key !== key) {
      const { layer } = model.drawing, part = this.layerPart(model);
      const { answer, mask_box: box = [0, 0, 1, 1] } = this.header;
      const surface = layer.surface(part, model, only), scale = layer.scale?.(part, answer) ?? null;
      this.layerCache = { key, surface, scale, box, grey: layer.grey ?? false };
    }
    return this.layerCache;
  }

  /**
   * The layer's number in the middle of a patch; null where it has none, as in the padding.
   * @param {import("../state.js").Model} model @param {[number, number]} patch
   */
  layerValue(model, [row, column]) {
    const part = this.layerPart(model), grid = this.patches, { answer, mask_box: box = [0, 0, 1, 1] } = this.header;
    const [left, top, right, bottom] = box, [height, width] = part.shape;
    const y = Math.floor(((row + 0.5) / grid[0] - top) / (bottom - top) * height);
    const x = Math.floor(((column + 0.5) / grid[1] - left) / (right - left) * width);
    const inside = y >= 0 && y < height && x >= 0 && x < width;
    return inside ? model.drawing.layer.valueAt?.(part, y * width + x, answer) ?? null : null;
  }

  /** @param {string} key @param {() => Promise<any>} request */
  fetchOnce(key, request) {
    if (!this.results.has(key)) {
      const results = this.results; // of this picture: another may be open when the answer comes
      results.set(key, null);
      request().then((answer) => results.set(key, answer), (error) => {
        results.set(key, { error: errorText(error) });
        setTimeout(() => results.delete(key), RETRY_AFTER);
      }).finally(this.changed);
    }
    return this.results.get(key);
  }

  /** One request at a time: a newer one stops the older. @param {(signal: AbortSignal) => Promise<void>} request */
  async runLatest(request) {
    this.controller?.abort();
    const controller = (this.controller = new AbortController());
    this.busy = true;
    this.error = "";
    this.changed();
    try {
      await request(controller.signal);
    } catch (error) {
      if (!controller.signal.aborted) this.error = errorText(error);
    }
    if (this.controller !== controller) return;
    this.busy = false;
    this.changed();
  }
}

/** @param {any} error */
function errorText(error) {
  if (error instanceof api.ApiError) return error.message;
  return "The server's answer could not be read: is it another version than this page?";
}
