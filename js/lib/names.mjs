/**
 * Store keys (SPEC section 8) and names (section 11.1).
 */

import {bytesOf} from './bytes.mjs';

/** Most bytes of a name (UCP-D-023). */
const MAX_NAME = 1024;
const COMPONENT = /^(?!\.|__)[A-Za-z0-9._-]{1,200}(?<!\.)$/;
// The category Cc of Unicode: C0, DEL and C1.
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

/** The document whose presence is the commit (SPEC section 9). */
export const ROOT_KEY = 'ucp.json';

/** The object by which a writer claims a place in an object store (SPEC section 8.3). */
export const CLAIM_KEY = 'index/claim';

/**
 * Whether a string is one component of a key (UCP-D-010).
 * @param {string} text
 */
export const isComponent = (text) => COMPONENT.test(text);

/**
 * Whether a string is a key (UCP-D-010).
 * @param {string} text
 */
export const isKey = (text) => text.split('/').every(isComponent);

/**
 * The form under which keys must differ (UCP-D-011): keys are ASCII.
 * @param {string} key
 */
export const foldKey = (key) => key.toLowerCase();

/**
 * Whether a string may be the key of an atom (UCP-D-015, UCP-D-016).
 * @param {string} text
 */
export const isAtomKey = (text) => isComponent(text) && foldKey(text) !== 'zarr.json';

/**
 * Whether a string may be the name of a slot (UCP-D-030, UCP-D-016).
 * @param {string} text
 */
export const isSlotName = (text) => text.length <= 64 && isAtomKey(text);

/**
 * Whether a string may be a name (UCP-D-023).
 * @param {string} text
 */
export function isName(text) {
  if (text.length === 0 || CONTROL.test(text)) return false;
  // A unit of UTF-16 is at most three bytes of UTF-8.
  return 3 * text.length <= MAX_NAME || bytesOf(text).length <= MAX_NAME;
}

/**
 * Compares strings by their UTF-8 bytes, that is by code points: as UTF-16 code units compare,
 * but for surrogates, which stand for code points above all others.
 * @param {string} a
 * @param {string} b
 */
export function compareUtf8(a, b) {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i += 1) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x !== y) return codePointRank(x) - codePointRank(y);
  }
  return a.length - b.length;
}

/** @param {number} unit */
function codePointRank(unit) {
  if (unit < 0xd800) return unit;
  return unit >= 0xe000 ? unit - 0x800 : unit + 0x2000;
}
