/**
 * Chunk bytes (SPEC sections 16.2 to 16.4): from stored to raw bytes.
 */

import {crc32, inflateRaw} from '#platform';
import {unblosc} from './blosc.mjs';
import {UcpError} from './errors.mjs';
import {crc32c} from './crc32c.mjs';
import {ZARR_CRC} from './zarr.mjs';
import {unzstd} from './zstd.mjs';

/**
 * What a decoder says.
 * @param {unknown} error
 */
const reasonOf = (error) => {
  const {code, message} = /** @type {Error & {code?: string}} */ (error);
  return code ?? message;
};

/**
 * Decodes a compressed chunk; never produces more than `length` bytes (UCP-R-027).
 * @param {Map<string, any>} compressor
 * @param {Uint8Array} stored
 * @param {number} length of the raw bytes
 * @param {string} at
 * @returns {Uint8Array}
 */
export function decompress(compressor, stored, length, at) {
  const name = compressor.get('name');
  if (name === 'gzip') return gunzipMember(stored, length, at);
  try {
    return (name === 'zstd' ? unzstd : unblosc)(stored, length);
  } catch (error) {
    throw new UcpError('UCP-E-CODEC', at, `does not decode with ${name}: ${reasonOf(error)}`);
  }
}

const FLAGS = {headerCrc: 2, extra: 4, name: 8, comment: 16, reserved: 0xe0};

/**
 * The length of the header of a gzip member (RFC 1952), or -1 where it is malformed.
 * @param {Uint8Array} bytes
 */
function gzipHeader(bytes) {
  if (bytes.length < 10 || bytes[0] !== 0x1f || bytes[1] !== 0x8b || bytes[2] !== 8) return -1;
  const flags = bytes[3];
  if (flags & FLAGS.reserved) return -1;
  let at = 10;
  if (flags & FLAGS.extra) {
    if (at + 2 > bytes.length) return -1;
    at += 2 + (bytes[at] | (bytes[at + 1] << 8));
  }
  for (const flag of [FLAGS.name, FLAGS.comment]) {
    if (!(flags & flag)) continue;
    const end = bytes.indexOf(0, at);
    if (end < 0) return -1;
    at = end + 1;
  }
  if (flags & FLAGS.headerCrc) {
    if (at + 2 > bytes.length || (bytes[at] | (bytes[at + 1] << 8)) !== (crc32(bytes.subarray(0, at)) & 0xffff)) return -1;
    at += 2;
  }
  return at;
}

/**
 * Exactly one gzip member and nothing behind it: `gunzip` would take several.
 * @param {Uint8Array} stored
 * @param {number} length
 * @param {string} at
 */
function gunzipMember(stored, length, at) {
  /** @type {(detail: string) => never} */
  const refuse = (detail) => {
    throw new UcpError('UCP-E-CODEC', at, detail);
  };
  const header = gzipHeader(stored);
  if (header < 0) refuse('has no gzip header');
  let result;
  try {
    result = inflateRaw(stored.subarray(header), length);
  } catch (error) {
    refuse(`does not decode: ${reasonOf(error)}`);
  }
  const {raw, used} = result;
  if (raw.length !== length) refuse(`decodes to ${raw.length} and not ${length} bytes`);
  const trailer = header + used;
  if (trailer + 8 !== stored.length) refuse('does not end with its gzip member');
  const view = new DataView(stored.buffer, stored.byteOffset, stored.byteLength);
  if (view.getUint32(trailer, true) !== crc32(raw)) refuse('has another CRC-32 than its gzip member says');
  if (view.getUint32(trailer + 4, true) !== raw.length) refuse('has another length than its gzip member says');
  return raw;
}

/**
 * What the Zarr codec `crc32c` appends to bytes.
 * @param {Uint8Array} bytes
 */
export function zarrCrc(bytes) {
  const checksum = new Uint8Array(ZARR_CRC);
  new DataView(checksum.buffer).setUint32(0, crc32c(bytes), true);
  return checksum;
}
