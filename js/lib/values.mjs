/**
 * Tagged values (SPEC section 15.1): whether a value is the one canonical encoding (UCP-D-088). Nothing is decoded further than that takes, and nothing that a
 * type name refers to is looked at (UCP-S-004).
 */

import {fromBase64} from '#platform';
import {canonicalText, place, token} from './json.mjs';
import {checkSchema} from './schema.mjs';
import {DTYPES, unusedBitsAreZero} from './dtypes.mjs';
import {compareUtf8} from './names.mjs';
import {TYPES} from './types.mjs';

/** @typedef {import('./json.mjs').Json} Json */

/** Deepest nesting of arrays and objects in a value (SPEC section 15.1). */
export const MAX_VALUE_DEPTH = 56;

/**
 * The shortest decimal of a number in the form that `$float` prescribes.
 * @param {number} number
 */
export function floatText(number) {
  if (Number.isNaN(number)) return 'nan';
  const sign = number < 0 || Object.is(number, -0) ? '-' : '';
  const magnitude = Math.abs(number);
  if (magnitude === Infinity) return `${sign}inf`;
  // Integral numbers below 10^16 are written out by ECMAScript, too: it does so below 10^21.
  if (magnitude < 1e16) return `${sign}${magnitude}${Number.isInteger(magnitude) ? '.0' : ''}`;
  const [digits, exponent] = magnitude.toExponential().split('e+');
  return `${sign}${digits}e+${exponent}`;
}

/**
 * The number that a `$float` stands for.
 * @param {string} text
 */
export function parseFloatText(text) {
  if (text === 'nan') return NaN;
  if (text === 'inf' || text === '-inf') return text === 'inf' ? Infinity : -Infinity;
  return Number(text);
}

/**
 * The tag of a value and its content; null for what stands for itself.
 * @param {Json} value
 */
function tagOf(value) {
  if (!(value instanceof Map) || value.size !== 1) return null;
  const [[name, content]] = value;
  return name.startsWith('$') ? {name, content} : null;
}

/**
 * What identifies a real number, whatever its type: equal numbers have equal texts.
 * @param {number} number
 */
function realText(number) {
  return Number.isInteger(number) ? BigInt(number).toString() : String(number);
}

/**
 * A text that is the same for keys that are equal: numbers compare by value, tuples and sets by
 * their elements, all else by text. A NaN equals nothing but its own text.
 * @param {Json} key
 * @returns {string}
 */
export function keyIdentity(key) {
  const byText = () => `text:${canonicalText(key)}`;
  /** @param {number} number */
  const real = (number) => (Number.isNaN(number) ? byText() : `number:${realText(number)}`);
  if (typeof key === 'boolean' || typeof key === 'number') return real(Number(key));
  const tag = tagOf(key);
  switch (tag?.name) {
    case '$float': return real(parseFloatText(tag.content));
    case '$int': return `number:${BigInt(tag.content)}`;
    case '$complex': {
      const [re, im] = tag.content.map((/** @type {Json} */ part) => (
        typeof part === 'number' ? part : parseFloatText(tagOf(part)?.content)));
      if (Number.isNaN(re) || Number.isNaN(im)) return byText();
      return im === 0 ? real(re) : `complex:${realText(re)},${realText(im)}`;
    }
    case '$tuple': return `tuple:${JSON.stringify(tag.content.map(keyIdentity))}`;
    case '$frozenset': return `set:${JSON.stringify(tag.content.map(keyIdentity).sort())}`;
    default: return byText();
  }
}

/**
 * Why keys are not distinct, or null.
 * @param {Json[]} keys
 */
function sameKeys(keys) {
  const seen = new Set();
  for (const key of keys) {
    for (const identity of new Set([keyIdentity(key), `text:${canonicalText(key)}`])) {
      if (seen.has(identity)) return `two keys are equal to ${canonicalText(key).slice(0, 100)}`;
      seen.add(identity);
    }
  }
  return null;
}

/**
 * Why the body of an `$array` or `$tensor` does not fit, or null.
 * @param {Map<string, any>} body
 */
function arrayProblem(body) {
  const dtype = DTYPES.get(body.get('dtype'));
  if (!dtype) return 'an unknown data type';
  /** @type {number[]} */
  const shape = body.get('shape');
  /** @param {number[]} extents */
  const size = (extents) => extents.reduce((a, b) => a * BigInt(b), BigInt(dtype.size));
  if (size(shape.map((extent) => Math.max(1, extent))) > Number.MAX_SAFE_INTEGER) {
    return 'a size of more than 2^53-1 bytes';
  }
  return elementsProblem(dtype, body.get('data'), size(shape));
}

/**
 * @param {import('./dtypes.mjs').DataType} dtype
 * @param {string} base64
 * @param {bigint} length
 */
function elementsProblem(dtype, base64, length) {
  const bytes = fromBase64(base64);
  if (BigInt(bytes.length) !== length) return `${bytes.length} bytes of data and not ${length}`;
  return unusedBitsAreZero(dtype, bytes) ? null : 'unused bits that are not zero';
}

/**
 * Why the content of a tag is not canonical, or null. Members and elements are checked apart.
 * @type {Record<string, (content: any) => string | null>}
 */
const TAGS = {
  $float(text) {
    const number = parseFloatText(text);
    return floatText(number) === text ? null : 'not the shortest text of its number';
  },
  $int: () => null, // the schema says it all
  $bytes: () => null,
  $complex: () => null,
  $tuple: () => null,
  $set: (keys) => {
    /** @type {string[]} */
    const texts = keys.map(canonicalText);
    const sorted = texts.every((text, i) => i === 0 || compareUtf8(texts[i - 1], text) < 0);
    return sorted ? sameKeys(keys) : 'elements are not in ascending order';
  },
  $frozenset: (keys) => TAGS.$set(keys),
  $dict: (pairs) => sameKeys(pairs.map((/** @type {[Json, Json]} */ [key]) => key)),
  $array: arrayProblem,
  $tensor: arrayProblem,
  $object(content) {
    const check = TYPES.get(content.get('type'));
    return check ? check(content.get('value'), {sameKeys, elementsProblem, isKey}) : null;
  },
};

/** Tags that may be keys whatever they contain; `$tuple` and `$object` may if their content is. */
const KEY_TAGS = new Set(['$float', '$int', '$bytes', '$complex', '$frozenset']);

/**
 * Whether a value may be the key of a dictionary.
 * @param {Json} value
 */
function isKey(value) {
  const tag = tagOf(value);
  if (tag?.name === '$tuple') return tag.content.every(isKey);
  if (tag?.name === '$object') return isKey(tag.content.get('value'));
  if (tag) return KEY_TAGS.has(tag.name);
  return value === null || typeof value !== 'object';
}

/**
 * Levels of arrays and objects in a value.
 * @param {Json} value
 * @returns {number}
 */
function depthOf(value) {
  if (value === null || typeof value !== 'object') return 0;
  let deepest = 0;
  for (const part of value.values()) deepest = Math.max(deepest, depthOf(part));
  return deepest + 1;
}

/**
 * Checks depth and form of a value: what its schema says, with the codes of UCP-R-023.
 * @param {Json} value
 * @param {string} key of the document
 * @param {string} pointer
 * @param {import('./errors.mjs').Problems} problems
 * @returns {boolean} whether there is nothing to report
 */
export function checkValueForm(value, key, pointer, problems) {
  if (depthOf(value) > MAX_VALUE_DEPTH) {
    problems.add('UCP-E-LIMIT', place(key, pointer), `nested more than ${MAX_VALUE_DEPTH} deep`);
    return false;
  }
  return checkSchema('value', value, key, problems, 'UCP-E-VALUE', pointer);
}

/**
 * Checks a value (UCP-R-023).
 * @param {Json} value
 * @param {string} key of the document
 * @param {string} pointer
 * @param {import('./errors.mjs').Problems} problems
 */
export function checkValue(value, key, pointer, problems) {
  if (!checkValueForm(value, key, pointer, problems)) return;
  /** @type {(part: Json, at: string) => void} */
  const visit = (part, at) => {
    if (part === null || typeof part !== 'object') return;
    const tag = tagOf(part);
    const detail = tag && TAGS[tag.name](tag.content);
    if (detail) problems.add('UCP-E-VALUE', place(key, at), `${tag.name} has ${detail}`);
    // The schema says what is a value within a tag; other texts and numbers pass.
    const entries = part instanceof Map ? part : part.entries();
    for (const [step, element] of entries) visit(element, at + token(step));
  };
  visit(value, pointer);
}
