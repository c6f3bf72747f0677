/**
 * Compressing chunks (SPEC section 16.2).
 */

import {gzipSync} from 'node:zlib';
import {requireCompressor} from '../lib/codec.mjs';

/**
 * Compresses raw bytes, if the slot has a compressor.
 * @param {Map | null} compressor
 * @param {Uint8Array} raw
 * @returns {Uint8Array}
 */
export function compress(compressor, raw) {
  if (compressor === null) return raw;
  requireCompressor(compressor, '');
  return gzipSync(raw, {level: compressor.get('configuration').get('level')});
}
