// How the page shows objects: boxes on the picture, and a line for each.

import { probability } from "../format.js";
import { objectColour } from "../picture/answer_list.js";

export const explainsLabels = false;
export const pictureFirst = true; // boxes are seen best on the picture

/** Detected objects; those below the model's threshold are marked as doubtful. */
export function answerLines({ objects, threshold = 0 }, _, model) {
  const lines = objects.map(({ label, score }, object) => ({
    name: label, number: probability(score), share: score, object, colour: objectColour(label, model),
    mark: score < threshold ? "doubtful" : undefined,
  }));
  const sure = lines.filter((line) => !line.mark).length;
  return { title: `${sure || "No"} object${sure === 1 ? "" : "s"}`, number: "", lines };
}
