// Numbers and classes as colours: those of vitrail/explanation/colours.py.

export const HEAT = ["#000004", "#320a5e", "#781c6d", "#bc3754", "#ed6925", "#fbb61a", "#fcffa4"];
export const SIGNED = ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"];

/** @param {string} colour "#rrggbb" @returns {number[]} */
const rgb = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

/** 256 colours with straight lines between the stops. @param {string[]} stops @returns {number[][]} */
function palette(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (colours.length - 1), below = Math.min(Math.floor(place), colours.length - 2);
    return colours[below].map((low, c) => Math.round(low + (place - below) * (colours[below + 1][c] - low)));
  });
}

export const heatPalette = palette(HEAT);
export const signedPalette = palette(SIGNED);

const WINDOW = ["#3e6fb5", "#d9902f", "#4a9a78", "#c8553d", "#6b4c8a", "#e3b44b", "#3aa6b9", "#8e3b46", "#9bbf4b"];

/**
 * A colour for every class: those of files and reports, which the server tells, or else those of a window.
 * @param {{labels: string[]|null, colours?: string[]|null}} model @returns {number[][]}
 */
export const classColours = ({ labels, colours }) =>
  (labels ?? []).map((_, i) => rgb(colours?.[i] ?? WINDOW[i % WINDOW.length]));

/** @param {number[]} colour */
export const css = (colour) => `rgb(${colour.join(" ")})`;
