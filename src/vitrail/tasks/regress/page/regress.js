// How the page shows numbers.

import { shortNumber } from "../format.js";

/** @param {{values: Object<string, number>}} answer */
export function answerLines({ values }) {
  const lines = Object.entries(values).map(([name, value]) => ({ name, number: shortNumber(value), share: 0, label: name }));
  return { title: lines[0].name, number: lines[0].number, lines: lines.length > 1 ? lines : [] };
}
