// The lines of an answer that is labels with probabilities.

import { probability } from "../format.js";

/** @param {any} answer {top, labels?}: `labels` where an image may have several */
export function labelLines(answer) {
  const lines = answer.top.map((guess) => ({
    name: guess.label, number: probability(guess.probability), share: guess.probability, label: guess.label,
    mark: answer.labels?.includes(guess.label) ? "given" : undefined,
  }));
  if (answer.labels && !answer.labels.length) return { title: "No label", number: "", lines };
  return { title: lines[0].name, number: lines[0].number, lines };
}
