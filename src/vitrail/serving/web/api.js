// Requests to the API. The server stores nothing: every request about a picture carries the picture.

const ROOT = new URL("../", import.meta.url);
const TOKEN_KEY = "vitrail-token"; // for this tab only

/** An error response: the server's own sentence, and its status (0: no response). */
export class ApiError extends Error {
  /** @param {string} sentence @param {number} status */
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

/** @param {string} token */
export const storeToken = (token) => sessionStorage.setItem(TOKEN_KEY, token);

/**
 * A token that came with the address, "#token=...", is stored and removed from the address, so that no link carries it on.
 * @returns {boolean} whether there was one
 */
export function readTokenFromAddress() {
  const link = new URLSearchParams(location.hash.slice(1)), token = link.get("token");
  if (token === null) return false;
  storeToken(token);
  link.delete("token");
  history.replaceState(null, "", link.size ? "#" + link : location.pathname + location.search);
  return true;
}

/** @param {string} path @param {RequestInit} [options] */
async function send(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY), headers = new Headers(options.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("The server does not answer: is it still running?", 0);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const sentence = typeof body.error === "string" ? body.error : `The server answered ${response.status}.`;
  throw new ApiError(sentence, response.status);
}

/** @param {string} path @param {Object<string, string|number>} query @param {Blob} picture @param {AbortSignal} [signal] */
function post(path, query, picture, signal) {
  const form = new FormData();
  form.append("image", picture, "picture");
  return send(`${path}?${new URLSearchParams(Object.entries(query).map(([k, v]) => [k, String(v)]))}`,
    { method: "POST", body: form, signal });
}

/** @returns {Promise<import("./state.js").Model>} */
export const model = async () => (await send("v1/model")).json();

/** @param {number} number */
export const sample = async (number) => (await send(`v1/samples/${number}`)).blob();

/** The answer, the picture and all maps of a block. */
export const look = async (picture, block, signal) =>
  (await post("v1/look", { block }, picture, signal)).arrayBuffer();

/** The maps of another block. */
export const attention = async (picture, block, signal) =>
  (await post("v1/attention", { block }, picture, signal)).arrayBuffer();

/** @returns {Promise<{method: string, label: string, grid: [number, number], map: number[][]}>} */
export const explain = async (picture, method, label) =>
  (await post("v1/explain", label === null ? { method } : { method, label }, picture)).json();

/** The pictures of the index that are most like a picture. @returns {Promise<{results: Object[]}>} */
export const search = async (picture) => (await post("v1/search", {}, picture)).json();

/** Those most like one of the index. @param {number} id @returns {Promise<{results: Object[]}>} */
export const similar = async (id) => (await send(`v1/index/${id}/similar`)).json();

/** @param {number} id */
export const indexPicture = async (id) => (await send(`v1/index/${id}/picture`)).blob();

/** @returns {Promise<{steps: Object[]}>} */
export const walk = async (picture, block) => (await post("v1/walk", { block }, picture)).json();
