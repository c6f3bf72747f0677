/**
 * The chunk grid (SPEC section 16.1). All quantities are at most 2^53-1 once UCP-D-034 holds, so
 * that numbers are exact.
 */

import {product} from './boxes.mjs';

/**
 * floor(a / b) for integers below 2^53, exactly.
 * @param {number} a
 * @param {number} b
 */
export const floorDiv = (a, b) => (a - (a % b)) / b;
/**
 * ceil(a / b) for integers below 2^53, exactly.
 * @param {number} a
 * @param {number} b
 */
export const ceilDiv = (a, b) => floorDiv(a, b) + (a % b === 0 ? 0 : 1);

/**
 * @typedef {object} Grid
 * @property {number[]} shape of the slot
 * @property {number} itemSize
 * @property {number[]} chunk extents of a chunk
 * @property {number[]} counts chunks along every dimension
 * @property {number} total number of chunks
 * @property {number} chunkBytes raw bytes of a whole chunk
 */

/**
 * @param {number[]} shape
 * @param {number} itemSize
 * @param {number} target the root's `chunk_bytes`
 * @returns {Grid}
 */
export function makeGrid(shape, itemSize, target) {
  const n = shape.length;
  const extents = shape.map((extent) => Math.max(1, extent));
  const chunk = [...extents];
  if (n > 0) {
    // inner(k) grows from the last axis outwards: walk until it exceeds the target.
    let k = n - 1;
    let inner = itemSize;
    while (k > 0 && inner * extents[k] <= target) {
      inner *= extents[k];
      k -= 1;
    }
    chunk.fill(1, 0, k);
    const rows = Math.max(1, floorDiv(target, inner));
    const parts = ceilDiv(extents[k], rows);
    chunk[k] = ceilDiv(extents[k], parts);
  }
  const counts = shape.map((extent, i) => ceilDiv(extent, chunk[i]));
  return {
    shape, itemSize, chunk, counts, total: product(counts), chunkBytes: itemSize * product(chunk),
  };
}

/**
 * The grid position of the chunk with this row-major index.
 * @param {Grid} grid
 * @param {number} index
 * @returns {number[]}
 */
export function chunkPosition(grid, index) {
  const position = new Array(grid.counts.length);
  for (let i = position.length - 1; i >= 0; i -= 1) {
    position[i] = index % grid.counts[i];
    index = floorDiv(index, grid.counts[i]);
  }
  return position;
}

/**
 * The box of a chunk, clipped to the shape.
 * @param {Grid} grid
 * @param {number} index
 * @returns {import('./boxes.mjs').Box}
 */
export function chunkBox(grid, index) {
  const offset = chunkPosition(grid, index).map((g, i) => g * grid.chunk[i]);
  return {offset, shape: offset.map((o, i) => Math.min(grid.chunk[i], grid.shape[i] - o))};
}

/**
 * Row-major indices of the chunks that a box which is not empty touches, ascending.
 * @param {Grid} grid
 * @param {import('./boxes.mjs').Box} box
 */
export function* chunksOf(grid, box) {
  const first = box.offset.map((o, i) => floorDiv(o, grid.chunk[i]));
  const last = box.offset.map((o, i) => floorDiv(o + box.shape[i] - 1, grid.chunk[i]));
  const position = [...first];
  for (;;) {
    yield position.reduce((index, g, i) => index * grid.counts[i] + g, 0);
    let i = position.length - 1;
    while (i >= 0 && position[i] === last[i]) {
      position[i] = first[i];
      i -= 1;
    }
    if (i < 0) return;
    position[i] += 1;
  }
}
