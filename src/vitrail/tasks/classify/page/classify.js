// How the page shows one class an image.

export { labelLines as answerLines } from "./label_answer.js";
