/**
 * What the core takes from its runtime, in portable JavaScript.
 */

export {crc32, inflateRaw} from './inflate.mjs';
export {Sha256} from './sha256.mjs';

/**
 * The bytes of a base64 text; none where it is no base64.
 * @param {string} text
 */
export function fromBase64(text) {
  try {
    return Uint8Array.from(atob(text), (unit) => unit.charCodeAt(0));
  } catch {
    return new Uint8Array(0);
  }
}

/**
 * Whether a text is base64 as RFC 4648 writes it, padded and with zero bits behind the last byte.
 * @param {string} text
 */
export function isBase64(text) {
  if (text.length % 4 !== 0) return false;
  try {
    return btoa(atob(text)) === text;
  } catch {
    return false;
  }
}
