/**
 * Digests: of documents, of the root document (SPEC section 10), of logical bytes (section 11.3).
 */

import {Sha256} from '#platform';
import {bytesOf, indexOfBytes} from './bytes.mjs';
import {crc32c} from './crc32c.mjs';

/** Bytes under one CRC-32C, in tables and in content digests. */
export const BLOCK = 1 << 20;

const PREFIX = 'sha256:';

/** @param {Uint8Array} bytes */
export function sha256(bytes) {
  return PREFIX + new Sha256().update(bytes).hex();
}

const UNSET = '0'.repeat(64);
const DIGEST = /^sha256:[0-9a-f]{64}$/;

/**
 * Where the 64 digits stand, or -1 where they do not occur exactly once (UCP-D-019).
 * @param {Uint8Array} bytes
 * @param {string} digits
 */
function findDigits(bytes, digits) {
  const wanted = bytesOf(digits);
  const at = indexOfBytes(bytes, wanted);
  return at >= 0 && indexOfBytes(bytes, wanted, at + 1) < 0 ? at : -1;
}

/**
 * @param {Uint8Array} bytes
 * @param {number} at
 */
function digestWithout(bytes, at) {
  const copy = new Uint8Array(bytes);
  copy.set(bytesOf(UNSET), at);
  return sha256(copy);
}

/**
 * What is wrong with the root digest (UCP-D-018, UCP-D-019), or null.
 * @param {Uint8Array} bytes the root document
 * @param {unknown} digest its member `digest`
 */
export function rootDigestProblem(bytes, digest) {
  if (typeof digest !== 'string' || !DIGEST.test(digest)) return 'there is no root digest';
  const at = findDigits(bytes, digest.slice(PREFIX.length));
  if (at < 0) return 'the digits of the root digest do not occur exactly once';
  return digestWithout(bytes, at) === digest ? null : 'the root digest differs';
}

/**
 * Puts the root digest into a root document that was written with {@link DRAFT_DIGEST}.
 * @param {Uint8Array} bytes changed in place
 * @returns {string} the digest
 */
export function sealRoot(bytes) {
  // Strings of the document may contain the digits of the draft only as the member `digest`
  // itself, the first of the document: the search finds it first.
  const at = indexOfBytes(bytes, bytesOf(DRAFT_DIGEST)) + PREFIX.length;
  const digest = digestWithout(bytes, at);
  bytes.set(bytesOf(digest.slice(PREFIX.length)), at);
  return digest;
}

/** Stands for the root digest until {@link sealRoot}. */
export const DRAFT_DIGEST = PREFIX + UNSET;

const ZERO_BLOCK_CRC = crc32c(new Uint8Array(BLOCK));

/** The content digest of a slot, fed with its logical bytes in order (SPEC section 11.3). */
export class ContentDigest {
  #hash = new Sha256();
  #crc = 0;
  #filled = 0;

  /** @param {number} crc */
  #finishBlock(crc) {
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setUint32(0, crc, true);
    this.#hash.update(bytes);
    this.#crc = 0;
    this.#filled = 0;
  }

  /** @param {Uint8Array} bytes */
  update(bytes) {
    for (let at = 0; at < bytes.length;) {
      const end = Math.min(bytes.length, at + BLOCK - this.#filled);
      this.#crc = crc32c(bytes.subarray(at, end), this.#crc);
      this.#filled += end - at;
      at = end;
      if (this.#filled === BLOCK) this.#finishBlock(this.#crc);
    }
  }

  /**
   * Takes `length` zero bytes; whole blocks of them have a known checksum.
   * @param {number} length
   */
  updateZeros(length) {
    let left = length;
    const head = this.#filled === 0 ? 0 : Math.min(left, BLOCK - this.#filled);
    this.update(new Uint8Array(head));
    for (left -= head; left >= BLOCK; left -= BLOCK) this.#finishBlock(ZERO_BLOCK_CRC);
    this.update(new Uint8Array(left));
  }

  /** @returns {string} */
  finish() {
    if (this.#filled > 0) this.#finishBlock(this.#crc);
    return `crc32c-tree:${this.#hash.hex()}`;
  }
}

/**
 * The CRC-32C of every block of bytes, in order (SPEC section 16.5).
 * @param {Uint8Array} bytes
 */
export function blockChecksums(bytes) {
  const checksums = [];
  for (let at = 0; at < bytes.length; at += BLOCK) {
    checksums.push(crc32c(bytes.subarray(at, at + BLOCK)));
  }
  return checksums;
}
