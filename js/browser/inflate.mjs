/**
 * Inflating (RFC 1951), synchronous and bounded, and the CRC-32 of gzip (RFC 1952).
 *
 * Browsers inflate streams behind promises, and none says how many bytes a stream took.
 */

const CRC_TABLE = Int32Array.from({length: 256}, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

/**
 * The CRC-32 of gzip.
 * @param {Uint8Array} bytes
 * @returns {number} unsigned
 */
export function crc32(bytes) {
  let state = -1;
  for (let at = 0; at < bytes.length; at += 1) state = (state >>> 8) ^ CRC_TABLE[(state ^ bytes[at]) & 0xff];
  return ~state >>> 0;
}

const MAX_BITS = 15;
const LENGTHS_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/**
 * Bases of lengths and distances from the extra bits of each symbol (RFC 1951, 3.2.5).
 * @param {number} first
 * @param {number[]} extras
 */
function basesOf(first, extras) {
  let base = first;
  return extras.map((bits) => {
    const mine = base;
    base += 1 << bits;
    return mine;
  });
}
const LENGTH_EXTRA = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const LENGTH_BASE = [...basesOf(3, LENGTH_EXTRA.slice(0, -1)), 258];
const DISTANCE_EXTRA = Array.from({length: 30}, (_, i) => Math.max(0, (i >> 1) - 1));
const DISTANCE_BASE = basesOf(1, DISTANCE_EXTRA);

/** @type {(detail: string) => never} */
const refuse = (detail) => {
  throw new Error(detail);
};

/**
 * A decoding table: at each value of the next 15 bits, the symbol times 16 plus the length of its code.
 * @param {ArrayLike<number>} lengths of the code of each symbol
 * @param {boolean} mayBeIncomplete
 */
function tableOf(lengths, mayBeIncomplete) {
  const counts = new Uint16Array(MAX_BITS + 1);
  for (let i = 0; i < lengths.length; i += 1) counts[lengths[i]] += 1;
  counts[0] = 0;
  const next = new Uint32Array(MAX_BITS + 2);
  let room = 1;
  for (let bits = 1; bits <= MAX_BITS; bits += 1) {
    room = 2 * room - counts[bits];
    if (room < 0) refuse('a code is over-subscribed');
    next[bits + 1] = (next[bits] + counts[bits]) << 1;
  }
  const used = counts.reduce((sum, count) => sum + count, 0);
  if (room > 0 && !(mayBeIncomplete && (used === 0 || (used === 1 && counts[1] === 1)))) refuse('a code is incomplete');
  const table = new Uint16Array(1 << MAX_BITS);
  for (let symbol = 0; symbol < lengths.length; symbol += 1) {
    const bits = lengths[symbol];
    if (bits === 0) continue;
    let reversed = 0;
    for (let bit = 0, code = next[bits]; bit < bits; bit += 1, code >>= 1) reversed = (reversed << 1) | (code & 1);
    next[bits] += 1;
    for (let at = reversed; at < table.length; at += 1 << bits) table[at] = (symbol << 4) | bits;
  }
  return table;
}

const FIXED_LENGTHS = Uint8Array.from({length: 288}, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8));
let fixed = null;
const fixedTables = () => {
  fixed ??= {literals: tableOf(FIXED_LENGTHS, false), distances: tableOf(new Uint8Array(32).fill(5), false)};
  return fixed;
};

class Inflater {
  /**
   * @param {number} length
   * @param {Uint8Array} bytes
   */
  constructor(bytes, length) {
    this.bytes = bytes;
    this.at = 0;
    this.bits = 0;
    this.count = 0;
    this.out = new Uint8Array(length);
    this.filled = 0;
  }

  /**
   * Has at least `count` bits at hand; zeros stand for those behind the end.
   * @param {number} count
   */
  fill(count) {
    while (this.count < count) {
      if (this.at >= this.bytes.length + 2) refuse('the stream ends early');
      this.bits |= (this.bytes[this.at] ?? 0) << this.count;
      this.at += 1;
      this.count += 8;
    }
  }

  /** @param {number} count */
  take(count) {
    if (count === 0) return 0;
    this.fill(count);
    const value = this.bits & ((1 << count) - 1);
    this.bits >>>= count;
    this.count -= count;
    return value;
  }

  /** @param {Uint16Array} table */
  symbol(table) {
    this.fill(MAX_BITS);
    const entry = table[this.bits & 0x7fff];
    if (entry === 0) refuse('no symbol has this code');
    this.bits >>>= entry & 15;
    this.count -= entry & 15;
    return entry >> 4;
  }

  stored() {
    this.at -= this.count >> 3; // bytes that were taken ahead
    this.bits = 0;
    this.count = 0;
    const {bytes, at} = this;
    if (at + 4 > bytes.length) refuse('the stream ends early');
    const length = bytes[at] | (bytes[at + 1] << 8);
    if ((length ^ (bytes[at + 2] | (bytes[at + 3] << 8))) !== 0xffff) refuse('a stored block has another length');
    if (at + 4 + length > bytes.length) refuse('the stream ends early');
    if (this.filled + length > this.out.length) refuse('too many bytes come out');
    this.out.set(bytes.subarray(at + 4, at + 4 + length), this.filled);
    this.filled += length;
    this.at = at + 4 + length;
  }

  dynamicTables() {
    const literals = this.take(5) + 257;
    const distances = this.take(5) + 1;
    const codes = this.take(4) + 4;
    if (literals > 286 || distances > 30) refuse('too many codes');
    const lengthLengths = new Uint8Array(19);
    for (let i = 0; i < codes; i += 1) lengthLengths[LENGTHS_ORDER[i]] = this.take(3);
    const table = tableOf(lengthLengths, false);
    const lengths = new Uint8Array(literals + distances);
    for (let i = 0; i < lengths.length;) {
      const symbol = this.symbol(table);
      if (symbol < 16) {
        lengths[i] = symbol;
        i += 1;
        continue;
      }
      if (symbol === 16 && i === 0) refuse('nothing to repeat');
      const value = symbol === 16 ? lengths[i - 1] : 0;
      const times = symbol === 16 ? 3 + this.take(2) : symbol === 17 ? 3 + this.take(3) : 11 + this.take(7);
      if (i + times > lengths.length) refuse('too many codes');
      lengths.fill(value, i, i + times);
      i += times;
    }
    if (lengths[256] === 0) refuse('no code ends a block');
    return {
      literals: tableOf(lengths.subarray(0, literals), true),
      distances: tableOf(lengths.subarray(literals), true),
    };
  }

  /** @param {{literals: Uint16Array, distances: Uint16Array}} tables */
  coded({literals, distances}) {
    const {out} = this;
    for (;;) {
      const symbol = this.symbol(literals);
      if (symbol === 256) return;
      if (symbol < 256) {
        if (this.filled >= out.length) refuse('too many bytes come out');
        out[this.filled] = symbol;
        this.filled += 1;
        continue;
      }
      if (symbol > 285) refuse('no such length');
      const length = LENGTH_BASE[symbol - 257] + this.take(LENGTH_EXTRA[symbol - 257]);
      const code = this.symbol(distances);
      if (code > 29) refuse('no such distance');
      const distance = DISTANCE_BASE[code] + this.take(DISTANCE_EXTRA[code]);
      if (distance > this.filled) refuse('a distance goes before the beginning');
      if (this.filled + length > out.length) refuse('too many bytes come out');
      for (let end = this.filled + length; this.filled < end; this.filled += 1) {
        out[this.filled] = out[this.filled - distance];
      }
    }
  }

  run() {
    for (let last = 0; !last;) {
      last = this.take(1);
      const kind = this.take(2);
      if (kind === 3) refuse('no such kind of block');
      if (kind === 0) this.stored();
      else this.coded(kind === 1 ? fixedTables() : this.dynamicTables());
    }
    const used = this.at - (this.count >> 3);
    if (used > this.bytes.length) refuse('the stream ends early');
    return {raw: this.out.subarray(0, this.filled), used};
  }
}

/**
 * Inflates a deflate stream, which may end before the bytes do.
 * @param {Uint8Array} bytes
 * @param {number} length most bytes that may come out
 * @returns {{raw: Uint8Array, used: number}} what came out, and how many bytes the stream took
 * @throws {Error} where the stream is malformed or too long
 */
export const inflateRaw = (bytes, length) => new Inflater(bytes, length).run();
