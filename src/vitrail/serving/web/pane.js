// One picture: its bytes, and what the server has told about it so far. Nothing is asked twice.

import * as api from "./api.js";
import { maskSurface, Picture } from "./canvas.js";
import { decode, Maps } from "./maps.js";
import { methodWords } from "./words.js";

const AGAIN = 2000; // milliseconds after which a question that failed may be asked again

/** @typedef {{blob: Blob, name: string, sample: number|null}} Source */

export class Pane {
  /** @param {() => void} changed called when there is something new to show */
  constructor(changed) {
    this.changed = changed;
    this.clear();
  }

  clear() {
    this.asking?.abort();
    /** @type {Source|null} */
    this.source = null;
    /** @type {any} what /v1/look told */
    this.header = null;
    /** @type {Picture|null} */
    this.picture = null;
    /** @type {Map<number, {block: number, maps: Maps|null}>} by block */
    this.blocks = new Map();
    /** @type {Maps|null} what the queries of a decoder attend to; it has blocks of its own, of which this is the last */
    this.queries = null;
    /** @type {Map<string, any>} explanations and walks: a value, or null while it is on its way */
    this.told = new Map();
    this.mask = null;
    this.maskShown = { key: "" };
    this.trouble = "";
    this.busy = false;
    this.asking = null;
    this.failed = null; // the block whose maps did not come: asked again when another was asked for in between
    this.wanted = null;
    this.lastBlock = null;
    this.version = (this.version ?? 0) + 1; // of the answer, so that a view knows when to make itself anew
  }

  /** @param {Source} source @param {number} block */
  async open(source, block) {
    this.clear();
    this.source = source;
    await this.during(async (signal) => {
      const { header, parts } = decode(await api.look(source.blob, block, signal));
      const bitmap = await createImageBitmap(parts.picture.data);
      if (signal.aborted) return;
      this.header = header;
      this.picture = new Picture(bitmap);
      bitmap.close();
      this.mask = parts.mask ?? null;
      this.keep(header, parts);
      this.version += 1;
    });
  }

  /** @param {Source} source @param {string} why */
  refuse(source, why) {
    this.clear();
    this.source = source;
    this.trouble = why;
    this.changed();
  }

  /** The maps of a block: at once where they are known, else null, and they are asked for. @param {number} block */
  block(block) {
    const known = this.blocks.get(block);
    if (known || !this.header || this.wanted === block || this.failed === block) return known ?? null;
    this.wanted = block;
    this.failed = null;
    this.during(async (signal) => {
      const { header, parts } = decode(await api.attention(this.source.blob, block, signal));
      if (!signal.aborted) this.keep({ ...header, block: header.block ?? block }, parts);
    }).finally(() => {
      if (this.wanted !== block) return;
      this.wanted = null;
      if (!this.blocks.has(block)) this.failed = block;
    });
    return null;
  }

  /** @param {any} header @param {Object<string, import("./maps.js").Part>} parts */
  keep(header, parts) {
    const { grid, prefix } = this.header;
    const maps = parts.maps ? new Maps(parts, "maps", prefix.length, grid) : null;
    if (parts.queries) this.queries = new Maps(parts, "queries", prefix.length, grid);
    this.blocks.set(header.block, { block: header.block, maps });
  }

  /** An explanation's map, or null while it is on its way. @param {string} method @param {string|null} label */
  explanation(method, label) {
    const asked = methodWords(method).always ? null : label;
    return this.once(`${method} ${asked}`, async () => {
      const { map, grid, label: explained } = await api.explain(this.source.blob, method, asked);
      return { values: Float32Array.from(map.flat()), grid: grid ?? [map.length, map[0].length], label: explained };
    });
  }

  /** The steps of the walk through a block, or null while they are on their way. @param {number} block */
  walk(block) {
    return this.once(`walk ${block}`, async () => (await api.walk(this.source.blob, block)).steps);
  }

  /** The mask as a surface, all classes or one alone. @param {() => number[][]} colours @param {number|null} only */
  maskOf(colours, only) {
    const key = `${this.version} ${only}`;
    if (this.maskShown.key !== key) {
      this.maskShown = { key, surface: maskSurface(this.mask, colours(), only), box: this.header.mask_box ?? [0, 0, 1, 1] };
    }
    return this.maskShown;
  }

  /** @param {string} key @param {() => Promise<any>} question */
  once(key, question) {
    if (!this.told.has(key)) {
      const told = this.told; // of this picture: another may be open when the answer comes
      told.set(key, null);
      question().then((answer) => told.set(key, answer), (error) => {
        told.set(key, { trouble: sentence(error) });
        setTimeout(() => told.delete(key), AGAIN);
      }).finally(this.changed);
    }
    return this.told.get(key);
  }

  /** One question at a time: a newer one stops the older. @param {(signal: AbortSignal) => Promise<void>} question */
  async during(question) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.busy = true;
    this.trouble = "";
    this.changed();
    try {
      await question(asking.signal);
    } catch (error) {
      if (!asking.signal.aborted) this.trouble = sentence(error);
    }
    if (this.asking !== asking) return;
    this.busy = false;
    this.changed();
  }
}

/** @param {any} error */
function sentence(error) {
  if (error instanceof api.Trouble) return error.message;
  return "The server's answer could not be read: is it another version than this page?";
}
