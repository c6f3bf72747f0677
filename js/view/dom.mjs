/**
 * Elements out of text alone: nothing that a checkpoint says becomes markup.
 */

// Marks that change the direction of text, or cannot be seen: they are shown by their number.
// eslint-disable-next-line no-control-regex, no-misleading-character-class
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** @typedef {Node | string | number | bigint | null | undefined | boolean} Part what becomes text unless it is an element; null is left out */
/** @typedef {Record<string, any>} Attributes texts and numbers, true and false, and listeners by `onclick` and the like */

/**
 * A text with every mark that cannot be seen as `\u{...}`.
 * @param {unknown} text
 */
export const visible = (text) => String(text)
  .replace(UNSEEN, (mark) => `\\u{${mark.codePointAt(0)?.toString(16)}}`);

/**
 * At most so many characters of a text, with its middle left out.
 * @param {string} text
 * @param {number} most
 */
export function shortened(text, most) {
  const points = [...text];
  if (points.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${points.slice(0, half).join('')}…${points.slice(-half).join('')}`;
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {Attributes} attributes
 * @param {(Part | Part[])[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat()) {
    if (child !== null) element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

/**
 * An element with attributes, listeners (`onclick`) and children; texts stay texts.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {(Part | Part[])[]} children
 */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/**
 * The same for SVG.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {(Part | Part[])[]} children
 */
export const svg = (tag, attributes = {}, ...children) => fill(
  document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

/**
 * What an error says.
 * @param {unknown} error
 */
export const said = (error) => /** @type {Error} */ (error).message;

/**
 * The same as an element.
 * @param {unknown} error
 */
export const failed = (error) => h('p', {class: 'error', role: 'alert'}, said(error));

/**
 * A member of an object that came as JSON: names of atoms may be those of every object's members.
 * @template T
 * @param {Record<string, T> | null | undefined} object
 * @param {string} name
 * @returns {T | undefined}
 */
export const own = (object, name) => (object && Object.hasOwn(object, name) ? object[name] : undefined);

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/**
 * Bytes for people.
 * @param {number} bytes
 */
export function human(bytes) {
  let unit = 0;
  let count = bytes;
  for (; count >= 1024 && unit < UNITS.length - 1; unit += 1) count /= 1024;
  return `${unit === 0 ? count : count.toFixed(count < 10 ? 2 : 1)} ${UNITS[unit]}`;
}

/**
 * A count with what is counted, whose plural has an s.
 * @param {number} count
 * @param {string} what
 */
export const counted = (count, what) => `${count.toLocaleString('en')} ${what}${count === 1 ? '' : 's'}`;

/**
 * Extents as in `64 × 128`.
 * @param {number[]} shape
 */
export const extents = (shape) => (shape.length === 0 ? 'scalar' : shape.join(' × '));

/**
 * A number with few digits.
 * @param {number | null} number
 */
export const short = (number) => (number === null ? '–' : String(Number(number.toPrecision(6))));
