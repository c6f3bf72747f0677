/**
 * Chunk bytes (SPEC sections 16.2 to 16.4): from raw to stored bytes and back.
 */

import {crc32, gzipSync, inflateRawSync} from 'node:zlib';
import {UcpError} from './errors.mjs';
import {crc32c} from './crc32c.mjs';
import {ZARR_CRC} from './segments.mjs';

/** Compressors that are implemented (UCP-R-005); a feature must be declared for others. */
export const COMPRESSORS = new Set(['gzip']);

/**
 * Compresses raw bytes, if the slot has a compressor.
 * @param {Map | null} compressor
 * @param {Buffer} raw
 * @returns {Buffer}
 */
export function compress(compressor, raw) {
  if (compressor === null) return raw;
  if (!COMPRESSORS.has(compressor.get('name'))) {
    throw new UcpError('UCP-E-FEATURE', '', `the compressor ${compressor.get('name')} is not implemented`);
  }
  return gzipSync(raw, {level: compressor.get('configuration').get('level')});
}

/**
 * Decodes a compressed chunk; never produces more than `length` bytes (UCP-R-027).
 * @param {Map} compressor
 * @param {Buffer} stored
 * @param {number} length of the raw bytes
 * @param {string} at
 * @returns {Buffer}
 */
export function decompress(compressor, stored, length, at) {
  if (!COMPRESSORS.has(compressor.get('name'))) {
    throw new UcpError('UCP-E-FEATURE', at, `the compressor ${compressor.get('name')} is not implemented`);
  }
  return gunzipMember(stored, length, at);
}

const FLAGS = {headerCrc: 2, extra: 4, name: 8, comment: 16, reserved: 0xe0};

/** The length of the header of a gzip member (RFC 1952), or -1 where it is malformed. */
function gzipHeader(bytes) {
  if (bytes.length < 10 || bytes.readUIntBE(0, 3) !== 0x1f8b08) return -1;
  const flags = bytes[3];
  if (flags & FLAGS.reserved) return -1;
  let at = 10;
  if (flags & FLAGS.extra) {
    if (at + 2 > bytes.length) return -1;
    at += 2 + bytes.readUInt16LE(at);
  }
  for (const flag of [FLAGS.name, FLAGS.comment]) {
    if (!(flags & flag)) continue;
    const end = bytes.indexOf(0, at);
    if (end < 0) return -1;
    at = end + 1;
  }
  if (flags & FLAGS.headerCrc) {
    if (at + 2 > bytes.length || bytes.readUInt16LE(at) !== (crc32(bytes.subarray(0, at)) & 0xffff)) return -1;
    at += 2;
  }
  return at;
}

/** Exactly one gzip member and nothing behind it: `gunzip` would take several. */
function gunzipMember(stored, length, at) {
  const refuse = (detail) => {
    throw new UcpError('UCP-E-CODEC', at, detail);
  };
  const header = gzipHeader(stored);
  if (header < 0) refuse('has no gzip header');
  let result;
  try {
    result = inflateRawSync(stored.subarray(header), {
      maxOutputLength: length, info: true, chunkSize: Math.min(Math.max(length, 64), 1 << 20),
    });
  } catch (error) {
    refuse(`does not decode: ${error.code}`);
  }
  const raw = result.buffer;
  if (raw.length !== length) refuse(`decodes to ${raw.length} and not ${length} bytes`);
  const trailer = header + result.engine.bytesWritten;
  if (trailer + 8 !== stored.length) refuse('does not end with its gzip member');
  if (stored.readUInt32LE(trailer) !== crc32(raw)) refuse('has another CRC-32 than its gzip member says');
  if (stored.readUInt32LE(trailer + 4) !== raw.length) refuse('has another length than its gzip member says');
  return raw;
}

/** What the Zarr codec `crc32c` appends to bytes. */
export function zarrCrc(bytes) {
  const checksum = Buffer.alloc(ZARR_CRC);
  checksum.writeUInt32LE(crc32c(bytes));
  return checksum;
}
