/**
 * Segments (SPEC section 16.4): what their rows must say beyond the form of the table.
 */

import {fits, product, tiles} from './boxes.mjs';
import {isEqual} from './bytes.mjs';
import {chunkBox} from './grid.mjs';
import {rowsOf} from './table.mjs';
import {ZARR_CRC} from './zarr.mjs';

/** @typedef {import('./boxes.mjs').Box} Box */
/** @typedef {import('./table.mjs').ChunkTable} ChunkTable */
/** @typedef {{key: string, length: number, shared: boolean}} Pack */
/** @typedef {{grid: import('./grid.mjs').Grid, firstChunk: number, compressor: object | null, label: string}} Segmented a slot */

const LARGE = 65536;

/**
 * Compares boxes by offset (UCP-D-103).
 * @param {Box} a
 * @param {Box} b
 */
function compareOffsets(a, b) {
  for (let i = 0; i < a.offset.length; i += 1) {
    if (a.offset[i] !== b.offset[i]) return a.offset[i] - b.offset[i];
  }
  return 0;
}

/**
 * Checks the segments of one slot (UCP-D-098, UCP-D-101 to UCP-D-105, UCP-D-107, UCP-D-109,
 * UCP-D-136 to UCP-D-140).
 * @param {import('./table.mjs').ChunkTable} table checked
 * @param {Segmented} slot
 * @param {Pack[] | null} packs null in storage plain
 * @param {import('./errors.mjs').Problems} problems
 */
export function checkSegments(table, slot, packs, problems) {
  const {grid, firstChunk} = slot;
  const ends = packs === null ? new Set() : endsOf(table, slot);
  for (let index = 0; index < grid.total; index += 1) {
    const first = table.firstSegment[firstChunk + index];
    const stop = table.firstSegment[firstChunk + index + 1];
    if (first === stop) continue;
    /** @param {string} detail */
    const report = (detail) => problems.add('UCP-E-SEGMENT', table.key,
      `chunk ${index} of ${slot.label} ${detail}`);
    if (packs === null) {
      if (slot.compressor === null && table.lengths[first] !== grid.chunkBytes + ZARR_CRC) {
        report('has an object that is not 4 bytes longer than the chunk');
      }
    } else {
      checkPacked(table, slot, chunkBox(grid, index).shape, first, stop, packs, ends, report);
    }
  }
}

/**
 * A byte of a pack.
 * @param {number} container
 * @param {number} at
 */
const place = (container, at) => `${container}:${at}`;

/**
 * Where the segments of a slot end, all of them (UCP-D-107).
 * @param {ChunkTable} table
 * @param {Segmented} slot
 */
function endsOf(table, {grid, firstChunk}) {
  /** @type {Set<string>} */
  const ends = new Set();
  const stop = table.firstSegment[firstChunk + grid.total];
  for (let s = table.firstSegment[firstChunk]; s < stop; s += 1) {
    ends.add(place(table.containers[s], table.offsets[s] + table.lengths[s]));
  }
  return ends;
}

/**
 * @param {ChunkTable} table
 * @param {Segmented} slot
 * @param {number[]} shape
 * @param {number} first
 * @param {number} stop
 * @param {Pack[]} packs
 * @param {Set<string>} ends
 * @param {(detail: string) => void} report
 */
function checkPacked(table, {grid, compressor}, shape, first, stop, packs, ends, report) {
  const ndim = shape.length;
  /** @type {Box[]} */
  const boxes = [];
  for (let s = first; s < stop; s += 1) {
    const box = table.box(s, ndim);
    const offset = table.offsets[s];
    const length = table.lengths[s];
    const pack = packs[table.containers[s]];
    const aligned = offset % (length >= LARGE ? 4096 : 64) === 0;
    if (pack.shared && offset % grid.itemSize !== 0) report('has a shared segment that is not aligned');
    if (!pack.shared && !aligned && !ends.has(place(table.containers[s], offset))) {
      report('has a segment that is neither aligned nor behind another one of its slot');
    }
    if (offset + length > pack.length) report('leaves its pack');
    if (box !== null) {
      if (box.shape.includes(0)) return report('has an empty box');
      if (!fits(box, shape)) return report('has a box that leaves it');
      boxes.push(box);
    }
    if (table.rowSets[s] >= 0 && box !== null && product(box.shape) < 2) return report('has rows of one element');
    const held = (box ?? {shape}).shape;
    const rows = table.rowRuns(s, held).reduce((sum, [from, to]) => sum + to - from, 0);
    if (compressor === null && length !== grid.itemSize * rows * (product(held) / rowsOf(held))) {
      report('has a segment of another length than its elements');
    }
  }
  if (boxes.length === 0) {
    if (stop - first > 1) report('has several segments without a box');
    return undefined;
  }
  if (compressor !== null) return report('is compressed and has boxes');
  if (boxes.length < stop - first) return report('has segments with and without boxes');
  if (boxes.some((box, i) => i > 0 && compareOffsets(boxes[i - 1], box) > 0)) {
    report('has boxes that are not sorted');
  }
  const distinct = checkLayers(table, first, boxes, report);
  if (!tiles(distinct, shape)) report('is not tiled by its boxes');
  return undefined;
}

const MOST_LAYERS = 32;

/**
 * Checks the layers of each box (UCP-D-138 to UCP-D-140); returns the boxes, each once.
 * @param {ChunkTable} table
 * @param {number} first
 * @param {Box[]} boxes
 * @param {(detail: string) => void} report
 */
function checkLayers(table, first, boxes, report) {
  /** @type {Box[]} */
  const distinct = [];
  let count = 0;
  let has = new Uint8Array(0);
  const end = () => {
    if (has.includes(0)) report('has a row in no layer');
    if (count > MOST_LAYERS) report('has too many layers');
  };
  boxes.forEach((box, i) => {
    const same = i > 0 && isEqual(box, boxes[i - 1]);
    if (!same) {
      end();
      distinct.push(box);
      count = 0;
      has = new Uint8Array(rowsOf(box.shape));
    } else if (table.rowSets[first + i] < 0) {
      report('has a layer without a row set that is not the first');
    }
    count += 1;
    for (const [from, to] of table.rowRuns(first + i, box.shape)) has.fill(1, from, to);
  });
  end();
  return distinct;
}

/**
 * Byte ranges of packs that segments use, to find overlaps (UCP-D-106), packs without segments
 * (UCP-D-118), and bytes that belong to no segment (UCP-D-108).
 */
export class PackUse {
  /** @param {{key: string, length: number}[]} packs */
  constructor(packs) {
    this.packs = packs;
    /** @type {[start: number, stop: number][][]} */
    this.ranges = packs.map(() => []);
  }

  /** @param {import('./table.mjs').ChunkTable} table */
  add(table) {
    for (let s = 0; s < table.segments; s += 1) {
      this.ranges[table.containers[s]]?.push([table.offsets[s], table.offsets[s] + table.lengths[s]]);
    }
  }

  /** @param {import('./errors.mjs').Problems} problems */
  check(problems) {
    this.packs.forEach(({key}, i) => {
      const ranges = this.ranges[i].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      if (ranges.length === 0) problems.add('UCP-E-SEGMENT', key, 'the pack contains no segment');
      const overlap = ranges.some(([start, stop], j) => j > 0 && start < ranges[j - 1][1]
        && (start !== ranges[j - 1][0] || stop !== ranges[j - 1][1]));
      if (overlap) problems.add('UCP-E-SEGMENT', key, 'two segments overlap');
    });
  }

  /**
   * Ranges of a pack that belong to no segment.
   * @param {number} pack
   * @returns {Generator<[start: number, stop: number]>}
   */
  * gaps(pack) {
    let end = 0;
    for (const [start, stop] of this.ranges[pack]) {
      if (start > end) yield [end, start];
      end = Math.max(end, stop);
    }
    if (end < this.packs[pack].length) yield [end, this.packs[pack].length];
  }
}

