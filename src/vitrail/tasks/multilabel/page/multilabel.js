// How the page shows several labels an image.

export { labelLines as answerLines } from "./label_answer.js";
