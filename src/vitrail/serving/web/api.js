// Questions to the server. It keeps nothing: every question about a picture carries the picture.

const ROOT = new URL("../", import.meta.url);
const KEPT = "vitrail-token"; // for this tab only

/** The server's own sentence about what went wrong. */
export class Trouble extends Error {
  /** @param {string} sentence @param {number} status */
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

/** @param {string} token */
export const keepToken = (token) => sessionStorage.setItem(KEPT, token);

/**
 * A token that came with the address, "#token=...", is kept and leaves the address, so that no link carries it on.
 * @returns {boolean} whether there was one
 */
export function takeTokenFromAddress() {
  const link = new URLSearchParams(location.hash.slice(1)), token = link.get("token");
  if (token === null) return false;
  keepToken(token);
  link.delete("token");
  history.replaceState(null, "", link.size ? "#" + link : location.pathname + location.search);
  return true;
}

/** @param {string} path @param {RequestInit} [options] */
async function ask(path, options = {}) {
  const token = sessionStorage.getItem(KEPT), headers = new Headers(options.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let answer;
  try {
    answer = await fetch(new URL(path, ROOT), { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Trouble("The server does not answer: is it still running?", 0);
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  const sentence = typeof told.error === "string" ? told.error : `The server answered ${answer.status}.`;
  throw new Trouble(sentence, answer.status);
}

/** @param {string} path @param {Object<string, string|number>} query @param {Blob} picture @param {AbortSignal} [signal] */
function post(path, query, picture, signal) {
  const form = new FormData();
  form.append("image", picture, "picture");
  return ask(`${path}?${new URLSearchParams(Object.entries(query).map(([k, v]) => [k, String(v)]))}`,
    { method: "POST", body: form, signal });
}

/** @returns {Promise<import("./state.js").Model>} */
export const model = async () => (await ask("v1/model")).json();

/** @param {number} number */
export const sample = async (number) => (await ask(`v1/samples/${number}`)).blob();

/** The answer, the picture and all maps of a block. */
export const look = async (picture, block, signal) =>
  (await post("v1/look", { block }, picture, signal)).arrayBuffer();

/** The maps of another block. */
export const attention = async (picture, block, signal) =>
  (await post("v1/attention", { block }, picture, signal)).arrayBuffer();

/** @returns {Promise<{method: string, label: string, grid: [number, number], map: number[][]}>} */
export const explain = async (picture, method, label) =>
  (await post("v1/explain", label === null ? { method } : { method, label }, picture)).json();

/** @returns {Promise<{steps: Object[]}>} */
export const walk = async (picture, block) => (await post("v1/walk", { block }, picture)).json();
