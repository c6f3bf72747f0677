/**
 * Blosc 1 (format version 2, as c-blosc 1.21 writes it): blocks, perhaps split by the bytes of elements, each compressed
 * by itself, and shuffled before that.
 */

import {inflateRaw} from '#platform';
import {unzstd} from './zstd.mjs';

const HEADER = 16;
const FLAGS = {shuffle: 1, memcpy: 2, bitshuffle: 4, reserved: 8, whole: 16};

/** @type {(detail: string) => never} */
const refuse = (detail) => {
  throw new Error(detail);
};

/**
 * Decodes an LZ4 block into all of `out`.
 * @param {Uint8Array} bytes
 * @param {Uint8Array} out
 */
export function unlz4(bytes, out) {
  let from = 0;
  let to = 0;
  /** @param {number} nibble */
  const length = (nibble) => {
    let count = nibble;
    if (nibble === 15) {
      for (let more = 255; more === 255; from += 1) {
        if (from >= bytes.length) refuse('a length does not end');
        more = bytes[from];
        count += more;
      }
    }
    return count;
  };
  for (;;) {
    if (from >= bytes.length) refuse('a block ends too early');
    const token = bytes[from];
    from += 1;
    const literals = length(token >> 4);
    if (literals > bytes.length - from || literals > out.length - to) refuse('literals end too late');
    out.set(bytes.subarray(from, from + literals), to);
    from += literals;
    to += literals;
    if (from === bytes.length) break; // the last sequence has literals alone
    if (from + 2 > bytes.length) refuse('a match has no offset');
    const offset = bytes[from] | (bytes[from + 1] << 8);
    from += 2;
    to = copyMatch(out, to, offset, length(token & 15) + 4);
  }
  if (to !== out.length) refuse('a block ends too early');
}

/**
 * Copies what came out before, which may overlap; returns where that ends.
 * @param {Uint8Array} out
 * @param {number} to
 * @param {number} offset
 * @param {number} count
 */
function copyMatch(out, to, offset, count) {
  if (offset === 0 || offset > to) refuse('a match begins before the block');
  if (count > out.length - to) refuse('a match ends too late');
  if (offset >= count) out.copyWithin(to, to - offset, to - offset + count);
  else for (let i = to; i < to + count; i += 1) out[i] = out[i - offset];
  return to + count;
}

const FAR = 8191;

/**
 * Decodes a block of BloscLZ, which is FastLZ with longer offsets, into all of `out`.
 * @param {Uint8Array} bytes
 * @param {Uint8Array} out
 */
export function unblosclz(bytes, out) {
  let from = 0;
  let to = 0;
  const next = () => {
    if (from >= bytes.length) refuse('a block ends too early');
    from += 1;
    return bytes[from - 1];
  };
  let control = next() & 31;
  for (;;) {
    if (control >= 32) {
      let count = (control >> 5) - 1;
      const high = (control & 31) << 8;
      if (count === 6) {
        for (let more = 255; more === 255;) {
          more = next();
          count += more;
        }
      }
      const low = next();
      let offset = high + low;
      if (low === 255 && high === 31 << 8) {
        offset = next() << 8;
        offset += next() + FAR;
      }
      to = copyMatch(out, to, offset + 1, count + 3);
    } else {
      const count = control + 1;
      if (count > bytes.length - from || count > out.length - to) refuse('literals end too late');
      out.set(bytes.subarray(from, from + count), to);
      from += count;
      to += count;
    }
    if (from === bytes.length) break;
    control = next();
  }
  if (to !== out.length) refuse('a block ends too early');
}

/**
 * Decodes a zlib stream (RFC 1950) into all of `out`.
 * @param {Uint8Array} bytes
 * @param {Uint8Array} out
 */
function unzlib(bytes, out) {
  if (bytes.length < 6 || (bytes[0] & 15) !== 8 || bytes[1] & 32 || ((bytes[0] << 8) | bytes[1]) % 31 !== 0) {
    refuse('a stream has no zlib header');
  }
  const {raw, used} = inflateRaw(bytes.subarray(2), out.length);
  if (raw.length !== out.length || used + 6 !== bytes.length) refuse('a stream does not end with its block');
  let [a, b] = [1, 0];
  for (let i = 0; i < raw.length; i += 1) {
    a = (a + raw[i]) % 65521;
    b = (b + a) % 65521;
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (view.getUint32(bytes.length - 4) !== b * 65536 + a) refuse('a stream has another Adler-32 than it says');
  out.set(raw);
}

/** Decoders of blocks, by the number in the header; number 2 is Snappy, which no checkpoint has. */
/** @type {(((bytes: Uint8Array, out: Uint8Array) => void) | null)[]} */
const DECODERS = [unblosclz, unlz4, null, unzlib, (bytes, out) => out.set(unzstd(bytes, out.length))];

/**
 * Puts the bytes of elements together again, of which block by block the first came first.
 * @param {Uint8Array} bytes
 * @param {number} size
 */
function unshuffled(bytes, size) {
  const count = Math.floor(bytes.length / size);
  const out = new Uint8Array(bytes.length);
  for (let byte = 0; byte < size; byte += 1) {
    const plane = byte * count;
    for (let i = 0, at = byte; i < count; i += 1, at += size) out[at] = bytes[plane + i];
  }
  out.set(bytes.subarray(count * size), count * size); // what is no whole element stays
  return out;
}

/**
 * The same of bits, in runs of eight elements; a block with another number of elements was left as it is.
 * @param {Uint8Array} bytes
 * @param {number} size
 */
function bitUnshuffled(bytes, size) {
  const count = Math.floor(bytes.length / size);
  if (count % 8 !== 0) return bytes;
  const out = new Uint8Array(bytes.length);
  const row = count / 8;
  for (let byte = 0; byte < size; byte += 1) {
    for (let bit = 0; bit < 8; bit += 1) {
      const plane = (byte * 8 + bit) * row;
      for (let i = 0; i < row; i += 1) {
        const bits = bytes[plane + i];
        if (bits === 0) continue;
        for (let k = 0, at = i * 8 * size + byte; k < 8; k += 1, at += size) out[at] |= ((bits >> k) & 1) << bit;
      }
    }
  }
  out.set(bytes.subarray(count * size), count * size);
  return out;
}

/**
 * Decodes a Blosc buffer.
 * @param {Uint8Array} bytes the buffer, and nothing behind it
 * @param {number} length of what comes out
 * @returns {Uint8Array}
 * @throws {Error} where the buffer is malformed, or has another length
 */
export function unblosc(bytes, length) {
  if (bytes.length < HEADER) refuse('has no Blosc header');
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const [version, , flags, size] = bytes;
  const [stated, blockSize, stored] = [4, 8, 12].map((at) => view.getUint32(at, true));
  if (version !== 2 || flags & FLAGS.reserved) refuse('is of another version of Blosc');
  if (stated !== length || stored !== bytes.length) refuse(`states ${stated} bytes in ${stored}, and not ${length} in ${bytes.length}`);
  if (length === 0) return new Uint8Array(0);
  if (blockSize === 0 || blockSize > length || size === 0) refuse('has blocks of another size');
  if (flags & FLAGS.memcpy) {
    if (stored !== HEADER + length) refuse('has another length than what was copied');
    return bytes.slice(HEADER);
  }
  const decode = DECODERS[flags >> 5];
  if (!decode) refuse('has a compressor that is unknown');
  if (bytes[1] !== 1) refuse('has a compressor of another version');
  const blocks = Math.ceil(length / blockSize);
  if (HEADER + 4 * blocks > bytes.length) refuse('starts of blocks are missing');
  const out = new Uint8Array(length);
  for (let block = 0; block < blocks; block += 1) {
    const first = block * blockSize;
    const extent = Math.min(blockSize, length - first);
    const parts = flags & FLAGS.whole || extent < blockSize ? 1 : size;
    const part = Math.floor(extent / parts);
    if (part * parts !== extent) refuse('a block cannot be split by elements');
    const made = new Uint8Array(extent);
    let at = view.getUint32(HEADER + 4 * block, true);
    for (let n = 0; n < parts; n += 1) {
      if (at + 4 > bytes.length) refuse('a block begins too late');
      const taken = view.getUint32(at, true);
      at += 4;
      if (taken > bytes.length - at) refuse('a block ends too late');
      const target = made.subarray(n * part, (n + 1) * part);
      if (taken === part) target.set(bytes.subarray(at, at + taken));
      else decode(bytes.subarray(at, at + taken), target);
      at += taken;
    }
    if (flags & FLAGS.shuffle && size > 1) out.set(unshuffled(made, size), first);
    else out.set(flags & FLAGS.bitshuffle ? bitUnshuffled(made, size) : made, first);
  }
  return out;
}
