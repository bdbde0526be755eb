// Making elements. What comes from outside (names of classes and files, answers) goes in as text, never as HTML.

/**
 * @param {string} tag
 * @param {Object<string, any>} [attributes] `text` is the element's text, `on` its listeners; false and null are left out
 * @param {...(Node|string|null)} children strings become text
 * @returns {any} the element
 */
export function el(tag, attributes = {}, ...children) {
  const { text, on = {}, ...rest } = attributes;
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) {
    if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  if (text !== undefined) element.textContent = text;
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/**
 * One radio button for each choice, as a row of segments.
 * @param {string} name
 * @param {string} legend
 * @param {{value: string, text: string, title?: string}[]} choices
 * @param {(value: string) => void} chosen
 */
export function segments(name, legend, choices, chosen) {
  return el("fieldset", { class: "segments" }, el("legend", { text: legend }),
    ...choices.map(({ value, text, title }) => el("label", { title },
      el("input", { type: "radio", name, value, on: { change: () => chosen(value) } }), el("span", { text }))));
}

/** Checks the radio button with this value. @param {Element} fieldset @param {string} value */
export function check(fieldset, value) {
  for (const input of fieldset.querySelectorAll("input")) input.checked = input.value === value;
}
