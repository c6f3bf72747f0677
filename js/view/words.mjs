/**
 * Values as a person writes them, `(0.9, 0.999)`, and not their encoding (SPEC section 15.1): as `ucp inspect` does.
 */

/**
 * @param {Json[]} values
 * @typedef {import('../lib/json.mjs').Json} Json
 */

const listed = (values) => values.map(inWords).join(', ');
/** @param {[Json, Json][]} pairs */
const paired = (pairs) => `{${pairs.map(([key, value]) => `${inWords(key)}: ${inWords(value)}`).join(', ')}}`;

/**
 * A part of a complex number, as Python writes it there.
 * @param {Json} value
 */
const part = (value) => inWords(value).replace(/\.0$/, '');

/** @type {Record<string, (content: any) => string>} by tag */
const TAGGED = {
  $float: (text) => text,
  $int: (text) => text,
  $bytes: (text) => `${(3 * text.length) / 4 - (/=*$/.exec(text)?.[0].length ?? 0)} bytes`,
  $complex: ([real, imaginary]) => `(${part(real)}${part(imaginary).startsWith('-') ? '' : '+'}${part(imaginary)}j)`,
  $tuple: (values) => `(${listed(values)}${values.length === 1 ? ',' : ''})`,
  $set: (values) => `set(${listed(values)})`,
  $frozenset: (values) => `frozenset(${listed(values)})`,
  $dict: paired,
  $array: (body) => `array of ${body.get('dtype')}, ${body.get('shape').join('x') || 'scalar'}`,
  $tensor: () => 'a tensor',
  $object: (body) => `${body.get('type')}(${inWords(body.get('value'))})`,
};

const CONSTANTS = new Map([[null, 'None'], [true, 'True'], [false, 'False']]);

/**
 * A value that is canonically encoded, in the words of Python.
 * @param {Json} value
 * @returns {string}
 */
export function inWords(value) {
  if (typeof value === 'string') return /['\\]/.test(value) ? JSON.stringify(value) : `'${value}'`;
  if (typeof value === 'number') return String(value);
  if (Array.isArray(value)) return `[${listed(value)}]`;
  if (!(value instanceof Map)) return CONSTANTS.get(value) ?? '';
  const [[name, content] = ['', null]] = value;
  return value.size === 1 && Object.hasOwn(TAGGED, name) ? TAGGED[name](content) : paired([...value]);
}
