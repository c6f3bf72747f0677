/**
 * Compressing chunks (SPEC section 16.2).
 */

import * as zlib from 'node:zlib';
import {UcpError} from '../lib/errors.mjs';

/** Compressors that are written, which are fewer than those that are read: Node has Zstandard since 22.15. */
export const WRITTEN = ['gzip', ...('zstdCompressSync' in zlib ? ['zstd'] : [])];

/**
 * Refuses a compressor that is not written.
 * @param {Map<string, any> | null} compressor
 * @param {string} at
 */
export function requireWritten(compressor, at) {
  if (compressor !== null && !WRITTEN.includes(compressor.get('name'))) {
    throw new UcpError('UCP-E-FEATURE', at, `the compressor ${compressor.get('name')} is not written by this version of Node`);
  }
}

/**
 * Compresses raw bytes, if the slot has a compressor.
 * @param {Map<string, any> | null} compressor
 * @param {Uint8Array} raw
 * @returns {Uint8Array}
 */
export function compress(compressor, raw) {
  if (compressor === null) return raw;
  requireWritten(compressor, '');
  const options = compressor.get('configuration');
  if (compressor.get('name') === 'gzip') return zlib.gzipSync(raw, {level: options.get('level')});
  const {ZSTD_c_compressionLevel: level, ZSTD_c_checksumFlag: checksum} = zlib.constants;
  return zlib.zstdCompressSync(raw, {
    params: {[level]: options.get('level'), [checksum]: Number(options.get('checksum'))},
    pledgedSrcSize: raw.length,
  });
}
