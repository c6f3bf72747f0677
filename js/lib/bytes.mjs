/**
 * Bytes and plain values without a library of one runtime: text, search, comparison.
 */

const ENCODER = new TextEncoder();

/**
 * The UTF-8 bytes of a text.
 * @param {string} text
 */
export const bytesOf = (text) => ENCODER.encode(text);

/**
 * Whether two runs of bytes are the same.
 * @param {Uint8Array} a
 * @param {Uint8Array} b
 */
export function sameBytes(a, b) {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}

/**
 * Where bytes occur within others, at `from` or behind it, or -1.
 * @param {Uint8Array} bytes
 * @param {Uint8Array} wanted at least one
 * @param {number} [from]
 */
export function indexOfBytes(bytes, wanted, from = 0) {
  for (let at = bytes.indexOf(wanted[0], from); at >= 0; at = bytes.indexOf(wanted[0], at + 1)) {
    let same = 1;
    while (same < wanted.length && bytes[at + same] === wanted[same]) same += 1;
    if (same === wanted.length) return at;
  }
  return -1;
}

/**
 * Whether two values out of plain objects, arrays and scalars are equal, whatever the order of members.
 * @param {any} a
 * @param {any} b
 * @returns {boolean}
 */
export function isEqual(a, b) {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length
    && names.every((name) => Object.hasOwn(b, name) && isEqual(a[name], b[name]));
}
