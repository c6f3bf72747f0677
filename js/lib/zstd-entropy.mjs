/**
 * The entropy coding of Zstandard (RFC 8878, 4): streams of bits that are read backwards, FSE and Huffman tables.
 */

const MAX_HUFFMAN_BITS = 11;

/**
 * Refuses bytes that are malformed.
 * @type {(detail: string) => never}
 */
export const refuse = (detail) => {
  throw new Error(detail);
};

/** @param {number} n */
const highBit = (n) => 31 - Math.clz32(n);

/** Bits that are read from the end of bytes [from, to) on; the last byte's highest bit that is set is no part of them. */
export class BackwardBits {
  /**
   * @param {Uint8Array} bytes
   * @param {number} from
   * @param {number} to
   */
  constructor(bytes, from, to) {
    if (from >= to || to > bytes.length || bytes[to - 1] === 0) refuse('a stream of bits has no end');
    this.bytes = bytes;
    this.from = from;
    /** Bits that are left. */
    this.left = 8 * (to - from - 1) + highBit(bytes[to - 1]);
  }

  /**
   * Takes up to 25 bits; those before the beginning are zeros.
   * @param {number} count
   * @returns {number}
   */
  take(count) {
    if (count === 0) return 0;
    this.left -= count;
    return this.#at(this.left, count);
  }

  /**
   * Looks at `count` bits behind which bits are left.
   * @param {number} count
   */
  peek(count) {
    return this.#at(this.left - count, count);
  }

  /**
   * @param {number} position
   * @param {number} count
   * @returns {number}
   */
  #at(position, count) {
    if (position < 0) {
      const rest = count + position;
      return rest > 0 ? this.#at(0, rest) << -position : 0;
    }
    const {bytes} = this;
    const byte = this.from + (position >>> 3);
    const word = bytes[byte] | (bytes[byte + 1] << 8) | (bytes[byte + 2] << 16) | (bytes[byte + 3] << 24);
    return (word >>> (position & 7)) & ((1 << count) - 1);
  }
}

/** @typedef {{log: number, symbols: Uint8Array, bits: Uint8Array, bases: Uint16Array}} Fse a decoding table by state */

/**
 * A table out of the counts of its symbols, which are -1 of those that are less likely than one (4.1.1).
 * @param {ArrayLike<number>} counts
 * @param {number} log
 * @returns {Fse}
 */
export function fseTable(counts, log) {
  const size = 1 << log;
  const symbols = new Uint8Array(size);
  const bits = new Uint8Array(size);
  const bases = new Uint16Array(size);
  const next = new Uint16Array(counts.length);
  let end = size;
  for (let symbol = 0; symbol < counts.length; symbol += 1) {
    next[symbol] = Math.abs(counts[symbol]);
    if (counts[symbol] === -1) symbols[end -= 1] = symbol;
  }
  const step = (size >> 1) + (size >> 3) + 3;
  let at = 0;
  for (let symbol = 0; symbol < counts.length; symbol += 1) {
    for (let n = 0; n < counts[symbol]; n += 1) {
      symbols[at] = symbol;
      do at = (at + step) & (size - 1); while (at >= end);
    }
  }
  for (let state = 0; state < size; state += 1) {
    const count = next[symbols[state]];
    next[symbols[state]] += 1;
    bits[state] = log - highBit(count);
    bases[state] = (count << bits[state]) - size;
  }
  return {
    log, symbols, bits, bases,
  };
}

/**
 * A table that always gives one symbol.
 * @param {number} symbol
 */
export const fseOfOne = (symbol) => ({
  log: 0, symbols: Uint8Array.of(symbol), bits: new Uint8Array(1), bases: new Uint16Array(1),
});

/**
 * The table whose description begins at a byte (4.1.1).
 * @param {Uint8Array} bytes
 * @param {number} start
 * @param {number} end
 * @param {number} maxLog
 * @param {number} maxSymbol
 * @returns {{table: Fse, at: number}} and where the description ends
 */
export function readFse(bytes, start, end, maxLog, maxSymbol) {
  let position = 8 * start;
  /**
   * @param {number} count
   * @returns {number}
   */
  const take = (count) => {
    const byte = position >>> 3;
    const word = bytes[byte] | (bytes[byte + 1] << 8) | (bytes[byte + 2] << 16);
    return (word >>> (position & 7)) & ((1 << count) - 1);
  };
  const log = take(4) + 5;
  position += 4;
  if (log > maxLog) refuse('a table is too large');
  const counts = [];
  let remaining = (1 << log) + 1;
  while (remaining > 1) {
    const width = highBit(remaining) + 1;
    const threshold = 1 << (width - 1);
    const short = 2 * threshold - 1 - remaining;
    let value = take(width);
    if ((value & (threshold - 1)) < short) {
      value &= threshold - 1;
      position += width - 1;
    } else {
      if (value >= threshold) value -= short;
      position += width;
    }
    const count = value - 1;
    remaining -= Math.abs(count);
    counts.push(count);
    if (count === 0) {
      for (let repeat = 3; repeat === 3;) {
        repeat = take(2);
        position += 2;
        for (let n = 0; n < repeat; n += 1) counts.push(0);
        if (position > 8 * end) refuse('a table does not end');
      }
    }
    if (counts.length > maxSymbol + 1) refuse('a table has too many symbols');
  }
  const at = (position + 7) >>> 3;
  if (remaining !== 1 || at > end) refuse('a table does not end');
  return {table: fseTable(counts, log), at};
}

/** @typedef {{width: number, symbols: Uint8Array, bits: Uint8Array}} Huffman by the next `width` bits */

/**
 * Weights of symbols that are compressed themselves (4.2.1.2).
 * @param {Uint8Array} bytes
 * @param {number} start
 * @param {number} end
 */
function compressedWeights(bytes, start, end) {
  const {table, at} = readFse(bytes, start, end, 6, 255);
  const stream = new BackwardBits(bytes, at, end);
  const weights = [];
  let [one, other] = [stream.take(table.log), stream.take(table.log)];
  if (stream.left < 0) refuse('weights end too early');
  for (;;) {
    weights.push(table.symbols[one]);
    if (weights.length > 254) refuse('there are too many weights');
    const bits = table.bits[one];
    if (stream.left < bits) {
      weights.push(table.symbols[other]);
      return weights;
    }
    [one, other] = [other, table.bases[one] + stream.take(bits)];
  }
}

/**
 * The Huffman table whose description begins at a byte (4.2.1).
 * @param {Uint8Array} bytes
 * @param {number} start
 * @param {number} end
 * @returns {{table: Huffman, at: number}}
 */
export function readHuffman(bytes, start, end) {
  if (start >= end) refuse('a table is missing');
  const header = bytes[start];
  let at = start + 1;
  let weights;
  if (header < 128) {
    at += header;
    if (at > end) refuse('weights end too late');
    weights = compressedWeights(bytes, start + 1, at);
  } else {
    const count = header - 127;
    at += (count + 1) >> 1;
    if (at > end) refuse('weights end too late');
    weights = Array.from({length: count}, (_, i) => (bytes[start + 1 + (i >> 1)] >> (i % 2 === 0 ? 4 : 0)) & 15);
  }
  const sum = weights.reduce((total, weight) => total + (weight > 0 ? 2 ** (weight - 1) : 0), 0);
  if (sum === 0 || sum >= 1 << MAX_HUFFMAN_BITS) refuse('weights are too large');
  const width = highBit(sum) + 1;
  const left = (1 << width) - sum;
  if ((left & (left - 1)) !== 0) refuse('weights do not add up');
  weights.push(highBit(left) + 1);
  const symbols = new Uint8Array(1 << width);
  const bits = new Uint8Array(1 << width);
  let code = 0;
  for (let weight = 1; weight <= width; weight += 1) {
    for (let symbol = 0; symbol < weights.length; symbol += 1) {
      if (weights[symbol] !== weight) continue;
      const stop = code + (1 << (weight - 1));
      symbols.fill(symbol, code, stop);
      bits.fill(width + 1 - weight, code, stop);
      code = stop;
    }
  }
  return {table: {width, symbols, bits}, at};
}

/**
 * Decodes one stream of literals into `out` [to, stop).
 * @param {Uint8Array} bytes
 * @param {number} from
 * @param {number} end
 * @param {Huffman} table
 * @param {Uint8Array} out
 * @param {number} to
 * @param {number} stop
 */
export function huffmanStream(bytes, from, end, {width, symbols, bits}, out, to, stop) {
  const stream = new BackwardBits(bytes, from, end);
  for (let at = to; at < stop; at += 1) {
    const code = stream.peek(width);
    out[at] = symbols[code];
    stream.left -= bits[code];
    if (stream.left < 0) refuse('literals end too early');
  }
  if (stream.left !== 0) refuse('literals end too late');
}
