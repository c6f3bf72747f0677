/**
 * XXH64 of bytes, of which Zstandard's frames keep the lower half (RFC 8878, 3.1.1).
 *
 * Numbers of 64 bits are pairs of 32 bits, since those of JavaScript that are longer are slow.
 */

/** Products modulo 2^64; `high` and `low` have the last result. */
let high = 0;
let low = 0;

/**
 * @param {number} aHigh
 * @param {number} aLow
 * @param {number} bHigh
 * @param {number} bLow
 */
function multiply(aHigh, aLow, bHigh, bLow) {
  const a0 = aLow & 0xffff;
  const a1 = aLow >>> 16;
  const b0 = bLow & 0xffff;
  const b1 = bLow >>> 16;
  const lower = a0 * b0;
  const middle = a1 * b0 + (lower >>> 16);
  const other = a0 * b1 + (middle % 65536);
  low = ((other << 16) | (lower & 0xffff)) | 0;
  high = (a1 * b1 + Math.floor(middle / 65536) + Math.floor(other / 65536) + Math.imul(aHigh, bLow) + Math.imul(aLow, bHigh)) | 0;
}

/**
 * @param {number} aHigh
 * @param {number} aLow
 * @param {number} bHigh
 * @param {number} bLow
 */
function add(aHigh, aLow, bHigh, bLow) {
  const sum = (aLow >>> 0) + (bLow >>> 0);
  low = sum | 0;
  high = (aHigh + bHigh + (sum > 0xffffffff ? 1 : 0)) | 0;
}

/**
 * Rotates to the left by fewer than 32 bits.
 * @param {number} aHigh
 * @param {number} aLow
 * @param {number} bits
 */
function rotate(aHigh, aLow, bits) {
  low = (aLow << bits) | (aHigh >>> (32 - bits));
  high = (aHigh << bits) | (aLow >>> (32 - bits));
}

const P1 = [0x9e3779b1 | 0, 0x85ebca87 | 0];
const P2 = [0xc2b2ae3d | 0, 0x27d4eb4f | 0];
const P3 = [0x165667b1 | 0, 0x9e3779f9 | 0];
const P4 = [0x85ebca77 | 0, 0xc2b2ae63 | 0];
const P5 = [0x27d4eb2f | 0, 0x165667c5 | 0];

/**
 * Mixes eight bytes into a lane.
 * @param {number} laneHigh
 * @param {number} laneLow
 * @param {number} wordHigh
 * @param {number} wordLow
 */
function round(laneHigh, laneLow, wordHigh, wordLow) {
  multiply(wordHigh, wordLow, P2[0], P2[1]);
  add(laneHigh, laneLow, high, low);
  rotate(high, low, 31);
  multiply(high, low, P1[0], P1[1]);
}

/**
 * The lower 32 bits of the XXH64 of bytes, with seed 0.
 * @param {Uint8Array} bytes
 * @returns {number} unsigned
 */
export function xxh64Low(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const {length} = bytes;
  let at = 0;
  if (length >= 32) {
    add(P1[0], P1[1], P2[0], P2[1]);
    const highs = [high, P2[0], 0, 0];
    const lows = [low, P2[1], 0, 0];
    add(0, 0, ~P1[0], ~P1[1]);
    add(high, low, 0, 1);
    [highs[3], lows[3]] = [high, low];
    for (; at + 32 <= length; at += 32) {
      for (let lane = 0; lane < 4; lane += 1) {
        round(highs[lane], lows[lane], view.getInt32(at + 8 * lane + 4, true), view.getInt32(at + 8 * lane, true));
        highs[lane] = high;
        lows[lane] = low;
      }
    }
    let [sumHigh, sumLow] = [0, 0];
    [1, 7, 12, 18].forEach((bits, lane) => {
      rotate(highs[lane], lows[lane], bits);
      add(sumHigh, sumLow, high, low);
      [sumHigh, sumLow] = [high, low];
    });
    for (let lane = 0; lane < 4; lane += 1) {
      round(0, 0, highs[lane], lows[lane]);
      [high, low] = [sumHigh ^ high, sumLow ^ low];
      multiply(high, low, P1[0], P1[1]);
      add(high, low, P4[0], P4[1]);
      [sumHigh, sumLow] = [high, low];
    }
  } else [high, low] = P5;
  add(high, low, Math.floor(length / 2 ** 32) | 0, length | 0);
  for (; at + 8 <= length; at += 8) {
    const [hashHigh, hashLow] = [high, low];
    round(0, 0, view.getInt32(at + 4, true), view.getInt32(at, true));
    rotate(hashHigh ^ high, hashLow ^ low, 27);
    multiply(high, low, P1[0], P1[1]);
    add(high, low, P4[0], P4[1]);
  }
  if (at + 4 <= length) {
    const [hashHigh, hashLow] = [high, low];
    multiply(0, view.getInt32(at, true), P1[0], P1[1]);
    rotate(hashHigh ^ high, hashLow ^ low, 23);
    multiply(high, low, P2[0], P2[1]);
    add(high, low, P3[0], P3[1]);
    at += 4;
  }
  for (; at < length; at += 1) {
    const [hashHigh, hashLow] = [high, low];
    multiply(0, bytes[at], P5[0], P5[1]);
    rotate(hashHigh ^ high, hashLow ^ low, 11);
    multiply(high, low, P1[0], P1[1]);
  }
  low ^= high >>> 1; // a shift by 33
  multiply(high, low, P2[0], P2[1]);
  low ^= (low >>> 29) | (high << 3);
  high ^= high >>> 29;
  multiply(high, low, P3[0], P3[1]);
  return (low ^ high) >>> 0; // a shift by 32
}
