/**
 * Zstandard (RFC 8878): one frame without a dictionary, decoded into as many bytes as are wanted, and strictly: what
 * does not end where it should, or says another checksum, is refused.
 */

import {xxh64Low} from './xxh64.mjs';
import {
  BackwardBits, fseOfOne, fseTable, huffmanStream, readFse, readHuffman, refuse,
} from './zstd-entropy.mjs';

const MAX_BLOCK = 128 << 10;
/** The largest that libzstd takes. */
const MAX_WINDOW = 2 ** 31;

/**
 * Bases out of the extra bits of each code.
 * @param {Uint8Array} bits
 * @param {number} first
 */
function basesOf(bits, first) {
  let base = first;
  return Int32Array.from(bits, (count) => {
    const mine = base;
    base += 1 << count;
    return mine;
  });
}

const LITERAL_BITS = Uint8Array.of(...Array(16).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16);
const LITERAL_BASES = basesOf(LITERAL_BITS, 0);
const MATCH_BITS = Uint8Array.of(...Array(32).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16);
const MATCH_BASES = basesOf(MATCH_BITS, 3);

/** The three kinds of codes of a sequence: largest table, largest code, and the table that nothing describes (3.1.1.3.2.2). */
const KINDS = {
  literals: {
    maxLog: 9,
    maxCode: 35,
    standard: fseTable([
      4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1,
    ], 6),
  },
  offsets: {
    maxLog: 8,
    maxCode: 31,
    standard: fseTable([1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1], 5),
  },
  matches: {
    maxLog: 9,
    maxCode: 52,
    standard: fseTable([
      1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
      1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
    ], 6),
  },
};

/** @typedef {import('./zstd-entropy.mjs').Fse} Fse */

/** What blocks of a frame hand on to the next, and the bytes that come out. */
class Frame {
  at = 0;
  recent = [1, 4, 8];
  /** @type {import('./zstd-entropy.mjs').Huffman | null} */
  huffman = null;
  /** @type {Record<'literals' | 'offsets' | 'matches', Fse | null>} */
  tables = {literals: null, offsets: null, matches: null};
  literals = new Uint8Array(MAX_BLOCK);

  /**
   * @param {Uint8Array} bytes
   * @param {number} length
   * @param {number} maxBlock
   */
  constructor(bytes, length, maxBlock) {
    this.bytes = bytes;
    this.out = new Uint8Array(length);
    this.maxBlock = maxBlock;
  }

  /**
   * Makes sure that so many bytes still fit.
   * @param {number} count
   */
  room(count) {
    if (count > this.out.length - this.at) refuse('more bytes come out than are wanted');
  }

  /**
   * Literals of a block (3.1.1.3.1).
   * @param {number} start
   * @param {number} end
   * @returns {{at: number, count: number}} where the section ends, and how many literals it has
   */
  readLiterals(start, end) {
    const {bytes} = this;
    const kind = bytes[start] & 3;
    const format = (bytes[start] >> 2) & 3;
    const word = (bytes[start] | (bytes[start + 1] << 8) | (bytes[start + 2] << 16) | (bytes[start + 3] << 24)) >>> 0;
    /** @type {(header: number, size: number, stored: number) => number} */
    const checked = (header, size, stored) => {
      if (size > this.maxBlock) refuse('a block is too long');
      if (start + header + stored > end) refuse('literals end too late');
      return start + header;
    };
    if (kind < 2) {
      const header = [1, 2, 1, 3][format];
      const count = (word & (2 ** (8 * header) - 1)) >>> (header === 1 ? 3 : 4);
      const stored = kind === 0 ? count : 1;
      const at = checked(header, count, stored);
      if (kind === 0) this.literals.set(bytes.subarray(at, at + count));
      else this.literals.fill(bytes[at], 0, count);
      return {at: at + stored, count};
    }
    const width = [10, 10, 14, 18][format];
    const header = [3, 3, 4, 5][format];
    const mask = 2 ** width - 1;
    const count = (word >>> 4) & mask;
    const stored = (width === 18 ? (word >>> 22) | (bytes[start + 4] << 10) : word >>> (4 + width)) & mask;
    let at = checked(header, count, stored);
    const stop = at + stored;
    if (kind === 2) ({table: this.huffman, at} = readHuffman(bytes, at, stop));
    const {huffman} = this;
    if (huffman === null) return refuse('there is no table to go on with');
    if (format === 0) huffmanStream(bytes, at, stop, huffman, this.literals, 0, count);
    else {
      if (at + 6 > stop) refuse('literals end too early');
      const lengths = [0, 2, 4].map((i) => bytes[at + i] | (bytes[at + i + 1] << 8));
      const quarter = (count + 3) >> 2;
      if (3 * quarter > count) refuse('there are too few literals for four streams');
      let from = at + 6;
      lengths.forEach((length, i) => {
        if (from + length > stop) refuse('literals end too late');
        huffmanStream(bytes, from, from + length, huffman, this.literals, i * quarter, (i + 1) * quarter);
        from += length;
      });
      huffmanStream(bytes, from, stop, huffman, this.literals, 3 * quarter, count);
    }
    return {at: stop, count};
  }

  /**
   * The table of one kind of codes, as its mode says (3.1.1.3.2.1); where its description ends.
   * @param {keyof typeof KINDS} kind
   * @param {number} mode
   * @param {number} start
   * @param {number} end
   */
  readTable(kind, mode, start, end) {
    const {maxLog, maxCode, standard} = KINDS[kind];
    let at = start;
    if (mode === 0) this.tables[kind] = standard;
    else if (mode === 1) {
      if (start >= end || this.bytes[start] > maxCode) refuse('a code is too large');
      this.tables[kind] = fseOfOne(this.bytes[start]);
      at += 1;
    } else if (mode === 2) ({table: this.tables[kind], at} = readFse(this.bytes, start, end, maxLog, maxCode));
    else if (this.tables[kind] === null) refuse('there is no table to go on with');
    return at;
  }

  /**
   * A block of literals and sequences (3.1.1.3).
   * @param {number} start
   * @param {number} end
   */
  compressed(start, end) {
    const {bytes} = this;
    if (end - start < 2) refuse('a block is too short');
    const {at: sections, count} = this.readLiterals(start, end);
    let at = sections;
    if (at >= end) refuse('sequences are missing');
    let sequences = bytes[at];
    at += 1;
    if (sequences > 127) {
      if (at + (sequences === 255 ? 2 : 1) > end) refuse('sequences are missing');
      if (sequences === 255) {
        sequences = (bytes[at] | (bytes[at + 1] << 8)) + 0x7f00;
        at += 2;
      } else {
        sequences = ((sequences - 128) << 8) | bytes[at];
        at += 1;
      }
    }
    const began = this.at;
    let used = 0;
    if (sequences === 0) {
      if (at !== end) refuse('a block ends too late');
    } else {
      if (at >= end || bytes[at] & 3) refuse('modes of tables are malformed');
      const modes = bytes[at];
      at = this.readTable('literals', modes >> 6, at + 1, end);
      at = this.readTable('offsets', (modes >> 4) & 3, at, end);
      at = this.readTable('matches', (modes >> 2) & 3, at, end);
      used = this.sequences(sequences, new BackwardBits(bytes, at, end), count, began);
    }
    this.room(count - used);
    this.out.set(this.literals.subarray(used, count), this.at);
    this.at += count - used;
    if (this.at - began > this.maxBlock) refuse('a block is too long');
  }

  /**
   * Carries sequences out (3.1.1.4); how many literals that took.
   * @param {number} total
   * @param {BackwardBits} stream
   * @param {number} literals
   * @param {number} began
   */
  sequences(total, stream, literals, began) {
    const {literals: L, offsets: O, matches: M} = /** @type {Record<string, Fse>} */ (this.tables); // all are read by now
    const {out} = this;
    let [l, o, m] = [stream.take(L.log), stream.take(O.log), stream.take(M.log)];
    let used = 0;
    for (let n = 1; n <= total; n += 1) {
      const code = O.symbols[o];
      // Long offsets in two steps: 25 bits are as many as one step has.
      const extra = code > 24 ? stream.take(code - 16) * 65536 + stream.take(16) : stream.take(code);
      const value = 2 ** code + extra;
      const matchCode = M.symbols[m];
      const match = MATCH_BASES[matchCode] + stream.take(MATCH_BITS[matchCode]);
      const literalCode = L.symbols[l];
      const literal = LITERAL_BASES[literalCode] + stream.take(LITERAL_BITS[literalCode]);
      if (n < total) {
        l = L.bases[l] + stream.take(L.bits[l]);
        m = M.bases[m] + stream.take(M.bits[m]);
        o = O.bases[o] + stream.take(O.bits[o]);
      }
      if (stream.left < 0) refuse('sequences end too early');
      if (used + literal > literals) refuse('there are too few literals');
      this.room(literal + match);
      if (this.at - began + literal + match > this.maxBlock) refuse('a block is too long');
      const offset = this.offset(value, literal);
      let {at} = this;
      for (let i = 0; i < literal; i += 1) out[at + i] = this.literals[used + i];
      used += literal;
      at += literal;
      if (offset > at) refuse('a match begins before the frame');
      if (offset >= match) out.copyWithin(at, at - offset, at - offset + match);
      else for (let i = 0; i < match; i += 1) out[at + i] = out[at + i - offset];
      this.at = at + match;
    }
    if (stream.left !== 0) refuse('sequences end too late');
    return used;
  }

  /**
   * How far back a match begins; the last three such distances have numbers of their own (3.1.1.5).
   * @param {number} value
   * @param {number} literal
   */
  offset(value, literal) {
    const {recent} = this;
    if (value > 3) {
      this.recent = [value - 3, recent[0], recent[1]];
      return value - 3;
    }
    const which = literal === 0 ? value : value - 1;
    if (which === 0) return recent[0];
    const found = which === 3 ? recent[0] - 1 : recent[which];
    if (found === 0) refuse('a match begins nowhere');
    this.recent = which === 1 ? [found, recent[0], recent[2]] : [found, recent[0], recent[1]];
    return found;
  }
}

/**
 * The header of a frame (3.1.1.1); `size` is null where it is not stated.
 * @param {Uint8Array} bytes
 */
function headerOf(bytes) {
  if (bytes.length < 6 || bytes[0] !== 0x28 || bytes[1] !== 0xb5 || bytes[2] !== 0x2f || bytes[3] !== 0xfd) {
    refuse('has no Zstandard frame');
  }
  const descriptor = bytes[4];
  if (descriptor & 8) refuse('the frame is of a later version');
  const single = (descriptor & 0x20) !== 0;
  /** @type {(at: number, width: number) => number} */
  const number = (at, width) => {
    if (at + width > bytes.length) refuse('the header of the frame does not end');
    return Array.from({length: width}, (_, i) => bytes[at + i] * 2 ** (8 * i)).reduce((sum, part) => sum + part, 0);
  };
  let at = 5;
  let window = 0;
  if (!single) {
    const base = 2 ** (10 + (bytes[at] >> 3));
    window = base + (base / 8) * (bytes[at] & 7);
    if (base > MAX_WINDOW) refuse('the frame has too large a window');
    at += 1;
  }
  const dictionary = [0, 1, 2, 4][descriptor & 3];
  if (number(at, dictionary) !== 0) refuse('the frame needs a dictionary');
  at += dictionary;
  const width = [single ? 1 : 0, 2, 4, 8][descriptor >> 6];
  const size = width === 0 ? null : number(at, width) + (width === 2 ? 256 : 0);
  return {
    at: at + width, size, hasChecksum: (descriptor & 4) !== 0, maxBlock: Math.min(MAX_BLOCK, size !== null && single ? size : window),
  };
}

/**
 * Decodes one frame.
 * @param {Uint8Array} bytes the frame, and nothing behind it
 * @param {number} length of what comes out
 * @returns {Uint8Array}
 * @throws {Error} where the frame is malformed, or has another length
 */
export function unzstd(bytes, length) {
  const {
    at: blocks, size, hasChecksum, maxBlock,
  } = headerOf(bytes);
  if (size !== null && size !== length) refuse(`the frame states ${size} bytes and not ${length}`);
  const frame = new Frame(bytes, length, maxBlock);
  let at = blocks;
  for (let last = false; !last;) {
    if (at + 3 > bytes.length) refuse('a block is missing');
    const header = bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16);
    at += 3;
    last = (header & 1) === 1;
    const kind = (header >> 1) & 3;
    const extent = header >>> 3;
    const end = at + (kind === 1 ? 1 : extent);
    if (extent > maxBlock || end > bytes.length) refuse('a block is too long');
    if (kind === 3) refuse('a block is of no kind');
    if (kind === 2) frame.compressed(at, end);
    else {
      frame.room(extent);
      if (kind === 0) frame.out.set(bytes.subarray(at, end), frame.at);
      else frame.out.fill(bytes[at], frame.at, frame.at + extent);
      frame.at += extent;
    }
    at = end;
  }
  if (frame.at !== length) refuse(`decodes to ${frame.at} and not ${length} bytes`);
  if (at + (hasChecksum ? 4 : 0) !== bytes.length) refuse('does not end with its frame');
  if (hasChecksum) {
    const stated = (bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24)) >>> 0;
    if (stated !== xxh64Low(frame.out)) refuse('has another checksum than its frame says');
  }
  return frame.out;
}
