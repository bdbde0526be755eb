// Numbers and classes as colours. The stops are those of vitrail/visuals/colours.py.

export const HEAT = ["#000004", "#320a5e", "#781c6d", "#bc3754", "#ed6925", "#fbb61a", "#fcffa4"];
export const SIGNED = ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"];

/** @param {string} colour "#rrggbb" @returns {number[]} */
const rgb = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

/** 256 colours with straight lines between the stops. @param {string[]} stops @returns {number[][]} */
function palette(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: 256 }, (_, level) => {
    const position = (level / 255) * (colours.length - 1), below = Math.min(Math.floor(position), colours.length - 2);
    return colours[below].map((low, c) => Math.round(low + (position - below) * (colours[below + 1][c] - low)));
  });
}

export const heatPalette = palette(HEAT);
export const signedPalette = palette(SIGNED);

/**
 * A colour for every class: that of the report and of files that `predict` writes, as the server sends them.
 * @param {{colours: string[]|null}} model @returns {number[][]}
 */
export const classColours = ({ colours }) => (colours ?? []).map(rgb);

/** @param {number[]} colour */
export const css = (colour) => `rgb(${colour.join(" ")})`;
