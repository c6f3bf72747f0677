/**
 * What the core takes from its runtime: hashing, inflating and base64 of Node.
 */

import {createHash} from 'node:crypto';
import {crc32 as zlibCrc32, inflateRawSync} from 'node:zlib';

/** A SHA-256 of bytes that come in pieces. */
export class Sha256 {
  #hash = createHash('sha256');

  /** @param {Uint8Array} bytes */
  update(bytes) {
    this.#hash.update(bytes);
    return this;
  }

  /** The digest of all bytes, in 64 digits; ends the hash. */
  hex() {
    return this.#hash.digest('hex');
  }
}

/** @type {(bytes: Uint8Array) => number} the CRC-32 of gzip, unsigned */
export const crc32 = (bytes) => zlibCrc32(bytes);

/**
 * Inflates a deflate stream (RFC 1951), which may end before the bytes do.
 * @param {Uint8Array} bytes
 * @param {number} length most bytes that may come out
 * @returns {{raw: Uint8Array, used: number}} what came out, and how many bytes the stream took
 * @throws {Error} where the stream is malformed or too long
 */
export function inflateRaw(bytes, length) {
  // The types of Node do not know what it answers under `info`.
  const {buffer, engine} = /** @type {{buffer: Buffer, engine: {bytesWritten: number}}} */ (/** @type {unknown} */ (inflateRawSync(bytes, {
    maxOutputLength: length, info: true, chunkSize: Math.min(Math.max(length, 64), 1 << 20),
  })));
  return {raw: buffer, used: engine.bytesWritten};
}

/**
 * The bytes of a base64 text.
 * @param {string} text
 */
export const fromBase64 = (text) => new Uint8Array(Buffer.from(text, 'base64'));

/**
 * Whether a text is base64 as RFC 4648 writes it, padded and with zero bits behind the last byte.
 * @param {string} text
 */
export const isBase64 = (text) => text.length % 4 === 0
  && Buffer.from(text, 'base64').toString('base64') === text;
