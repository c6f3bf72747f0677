/**
 * Chunk tables (SPEC section 16.5).
 */

import {UcpError} from './errors.mjs';
import {bytesOf, sameBytes} from './bytes.mjs';
import {BLOCK} from './digest.mjs';
import {MAX_TABLE} from './root.mjs';
import {ZARR_CRC} from './zarr.mjs';

const MAGIC = 'UCPTABLE';
const HEADER = 64;
const ROW = 32;
/** The container that is the chunk's own object. */
export const OWN_OBJECT = 0xffffffff;

/**
 * A 64-bit integer as a number: exact up to 2^53, above it only known to be too large.
 * @param {DataView} view
 * @param {number} at
 */
const wide = (view, at) => view.getUint32(at, true) + view.getUint32(at + 4, true) * 2 ** 32;

/**
 * How many rows a box has: its first extent that is not 1 (SPEC section 16.4).
 * @param {number[]} shape
 */
export const rowsOf = (shape) => shape.find((extent) => extent !== 1) ?? 1;

/**
 * A parsed table. Segment `s` of chunk `c` has `firstSegment[c] <= s < firstSegment[c + 1]`;
 * the first `covered[s]` of its bytes have checksums, from `firstChecksum[s]` on; its box words at `boxes[s]`, which is -1 without box,
 * and its row words at `rowSets[s]`, which is -1 without a row set.
 */
export class ChunkTable {
  /**
   * Parses a table and checks what can be checked without its part (UCP-D-111, UCP-D-114).
   * @param {Uint8Array} bytes
   * @param {string} key
   */
  constructor(bytes, key) {
    /** @type {(detail: string) => never} */
    const refuse = (detail) => {
      throw new UcpError('UCP-E-TABLE', key, detail);
    };
    if (bytes.length < HEADER) refuse('shorter than a header');
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    if (!sameBytes(bytes.subarray(0, 8), bytesOf(MAGIC))) refuse('no magic');
    if (view.getUint32(8, true) !== 0) refuse('another version');
    if (view.getUint32(12, true) !== BLOCK) refuse('another block');
    const [chunks, segments, words, checksums] = [16, 24, 32, 40].map((at) => wide(view, at));
    const rowWords = wide(view, 48);
    if (wide(view, 56) !== 0) refuse('reserved header bytes are not zero');
    const wordsAt = HEADER + ROW * segments;
    const rowWordsAt = wordsAt + 8 * words;
    const countsAt = rowWordsAt + 8 * rowWords;
    const checksumsAt = countsAt + 4 * chunks;
    if (checksumsAt + 4 * checksums !== bytes.length) refuse('not as long as its header says');

    this.key = key;
    this.chunks = chunks;
    this.segments = segments;
    this.containers = new Uint32Array(segments);
    this.offsets = new Float64Array(segments);
    this.lengths = new Float64Array(segments);
    this.covered = new Float64Array(segments);
    this.boxes = new Float64Array(segments);
    this.words = new Float64Array(words);
    this.rowSets = new Float64Array(segments);
    this.rowBytes = bytes.subarray(rowWordsAt, countsAt);
    this.firstSegment = new Uint32Array(chunks + 1);
    this.checksums = new Uint32Array(checksums);
    this.firstChecksum = new Float64Array(segments + 1);

    for (let s = 0; s < segments; s += 1) {
      const at = HEADER + ROW * s;
      this.containers[s] = view.getUint32(at, true);
      this.rowSets[s] = view.getUint32(at + 4, true) - 1;
      this.offsets[s] = wide(view, at + 8);
      this.lengths[s] = wide(view, at + 16);
      this.boxes[s] = wide(view, at + 24) - 1;
      // The last bytes of a chunk's own object are Zarr's checksum, which those here leave out.
      this.covered[s] = this.lengths[s] - (this.containers[s] === OWN_OBJECT ? ZARR_CRC : 0);
      if (this.covered[s] < 1) refuse(`segment ${s} has no byte to check`);
      const blocks = Math.ceil(this.covered[s] / BLOCK); // exact: BLOCK is a power of two
      this.firstChecksum[s + 1] = this.firstChecksum[s] + blocks;
    }
    if (this.firstChecksum[segments] !== checksums) refuse('another number of checksums');
    for (let w = 0; w < words; w += 1) this.words[w] = wide(view, wordsAt + 8 * w);
    let sum = 0;
    for (let c = 0; c < chunks; c += 1) {
      sum += view.getUint32(countsAt + 4 * c, true);
      if (sum > segments) break;
      this.firstSegment[c + 1] = sum;
    }
    if (sum !== segments) refuse('segment counts do not sum to the number of segments');
    for (let k = 0; k < checksums; k += 1) {
      this.checksums[k] = view.getUint32(checksumsAt + 4 * k, true);
    }
  }

  /**
   * The box of a segment, or null.
   * @param {number} segment
   * @param {number} ndim
   * @returns {import('./boxes.mjs').Box | null}
   */
  box(segment, ndim) {
    const first = this.boxes[segment];
    if (first < 0) return null;
    return {
      offset: [...this.words.subarray(first, first + ndim)],
      shape: [...this.words.subarray(first + ndim, first + 2 * ndim)],
    };
  }

  /**
   * Runs of rows that a segment has of its box, in order: all of them without a row set.
   * @param {number} segment
   * @param {number[]} shape of the box
   * @returns {[first: number, stop: number][]}
   */
  rowRuns(segment, shape) {
    const count = rowsOf(shape);
    if (this.rowSets[segment] < 0) return [[0, count]];
    const bits = this.rowBytes.subarray(8 * this.rowSets[segment]);
    /** @type {[first: number, stop: number][]} */
    const runs = [];
    for (let row = 0, open = false; row < count; row += 1) {
      if (((bits[row >> 3] >> (row & 7)) & 1) === 0) {
        open = false;
      } else if (open) {
        runs[runs.length - 1][1] = row + 1;
      } else {
        runs.push([row, row + 1]);
        open = true;
      }
    }
    return runs;
  }

  /**
   * Whether the bits of a row set behind its last row are 0 (UCP-D-142).
   * @param {number} segment
   * @param {number} count
   */
  #endsClean(segment, count) {
    const bits = this.rowBytes.subarray(8 * this.rowSets[segment], 8 * (this.rowSets[segment] + Math.ceil(count / 64)));
    for (let row = count; row < 8 * bits.length; row += 1) {
      if (((bits[row >> 3] >> (row & 7)) & 1) !== 0) return false;
    }
    return true;
  }

  /**
   * Checks the table against its part (UCP-D-110, UCP-D-113, UCP-D-115 to UCP-D-117, UCP-D-141,
   * UCP-D-142).
   * @param {{ndim: number, total: number}[]} grids of the slots of the part, in derived order
   * @param {'plain' | 'packed'} storage
   * @param {number} packs number of packs
   * @param {import('./errors.mjs').Problems} problems
   */
  check(grids, storage, packs, problems) {
    /** @param {string} detail */
    const report = (detail) => problems.add('UCP-E-TABLE', this.key, detail);
    let chunk = 0;
    let word = 0;
    let rowWord = 0;
    const rowWords = this.rowBytes.length / 8;
    for (const {ndim, total} of grids) {
      if (chunk + total > this.chunks) {
        report('fewer chunks than the part has');
        return;
      }
      for (const last = chunk + total; chunk < last; chunk += 1) {
        const first = this.firstSegment[chunk];
        const stop = this.firstSegment[chunk + 1];
        if (storage === 'plain' && stop - first > 1) report(`chunk ${chunk} has several segments`);
        for (let s = first; s < stop; s += 1) {
          if (storage === 'packed' && this.containers[s] >= packs) {
            report(`segment ${s} lies in no pack`);
          }
          if (storage === 'plain'
              && (this.containers[s] !== OWN_OBJECT || this.offsets[s] !== 0 || this.boxes[s] >= 0
                || this.rowSets[s] >= 0)) {
            report(`segment ${s} is not a chunk's own object`);
          }
          if (this.boxes[s] < 0) {
            if (this.rowSets[s] >= 0) {
              problems.add('UCP-E-SEGMENT', this.key, `segment ${s} has rows of no box`); // UCP-D-137
              return;
            }
            continue;
          }
          if (ndim === 0) report(`segment ${s} has a box without dimensions`); // UCP-D-110
          if (this.boxes[s] !== word) report(`the box of segment ${s} is out of order`);
          word += 2 * ndim;
          if (this.rowSets[s] < 0 || word > this.words.length) continue;
          const count = rowsOf(/** @type {import('./boxes.mjs').Box} */ (this.box(s, ndim)).shape);
          if (this.rowSets[s] !== rowWord || rowWord + Math.ceil(count / 64) > rowWords) {
            report(`the row set of segment ${s} is out of order`);
            return;
          }
          rowWord += Math.ceil(count / 64);
          if (!this.#endsClean(s, count)) report(`the row set of segment ${s} has bits behind its last row`);
        }
      }
    }
    if (chunk !== this.chunks) report('more chunks than the part has');
    if (word !== this.words.length) report('more box words than boxes');
    if (rowWord !== rowWords) report('more row words than row sets');
  }
}

/** Collects the rows of a table, in derived order. */
export class TableBuilder {
  /** @type {{container: number, offset: number, length: number, checksums: number[]}[]} */
  #segments = [];
  /** @type {number[]} */
  #counts = [];

  /**
   * @param {{container: number, offset: number, length: number, checksums: number[]} | null} segment
   *   of the next chunk, or null for a zero entry
   */
  addChunk(segment) {
    this.#counts.push(segment === null ? 0 : 1);
    if (segment !== null) this.#segments.push(segment);
  }

  get chunks() {
    return this.#counts.length;
  }

  /**
   * @param {string} key
   * @returns {Uint8Array}
   */
  finish(key) {
    const checksums = this.#segments.flatMap((segment) => segment.checksums);
    const length = HEADER + ROW * this.#segments.length + 4 * (this.chunks + checksums.length);
    if (length > MAX_TABLE) throw new UcpError('UCP-E-LIMIT', key, 'a table of more than 1 GiB');
    const bytes = new Uint8Array(length);
    bytes.set(bytesOf(MAGIC));
    const view = new DataView(bytes.buffer);
    view.setUint32(12, BLOCK, true);
    [this.chunks, this.#segments.length, 0, checksums.length]
      .forEach((count, i) => view.setBigUint64(16 + 8 * i, BigInt(count), true));
    let at = HEADER;
    for (const {container, offset, length: stored} of this.#segments) {
      view.setUint32(at, container, true);
      view.setBigUint64(at + 8, BigInt(offset), true);
      view.setBigUint64(at + 16, BigInt(stored), true);
      at += ROW;
    }
    for (const word of [...this.#counts, ...checksums].values()) {
      view.setUint32(at, word, true);
      at += 4;
    }
    return bytes;
  }
}
