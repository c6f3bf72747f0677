/**
 * Tensors as matrices of few cells, which heat maps show.
 */

import {product} from '../lib/boxes.mjs';
import {toNumbers} from '../lib/elements.mjs';

/** @typedef {import('../lib/boxes.mjs').Box} Box */
/**
 * A tensor as a matrix of cells, each the mean of what was read of it, if anything was.
 * @typedef {{rows: number, columns: number, height: number, width: number, cells: Float64Array, held: Float64Array,
 *   isWhole: boolean}} HeatMap
 */

/** Bytes that a heat map reads unless all of the tensor is asked for. */
const SAMPLE_BYTES = 8 << 20;
/** Rows and columns of the largest map. */
const MAP_SIZE = 256;
/** Columns of the matrix that a vector is shown as. */
const FOLDED = 1024;
/** Bytes that are read at a time for a heat map. */
const STEP_BYTES = 4 << 20;

/**
 * A tensor as a matrix: all dimensions but the last are rows, and a vector is folded.
 * @param {number[]} shape
 */
function matrixOf(shape) {
  if (shape.length > 1) return {columns: shape[shape.length - 1], rows: product(shape.slice(0, -1))};
  const count = product(shape);
  const columns = Math.min(count, FOLDED);
  return {columns, rows: Math.ceil(count / columns)};
}

/**
 * A box with rows of the matrix from `row` on, at most `most`, and how many rows it has.
 * @param {number[]} shape
 * @param {{columns: number}} matrix
 * @param {number} row
 * @param {number} most
 * @returns {{box: Box, taken: number}}
 */
function boxOfRows(shape, {columns}, row, most) {
  if (shape.length === 0) return {box: {offset: [], shape: []}, taken: 1};
  if (shape.length === 1) {
    const offset = row * columns;
    return {box: {offset: [offset], shape: [Math.min(most * columns, shape[0] - offset)]}, taken: most};
  }
  const index = [];
  let rest = row;
  for (const extent of shape.slice(0, -1).reverse()) {
    index.unshift(rest % extent);
    rest = Math.floor(rest / extent);
  }
  // Rows that follow each other in the dimension before the last are one box.
  const taken = Math.min(most, shape[shape.length - 2] - index[index.length - 1]);
  return {box: {offset: [...index, 0], shape: [...index.slice(0, -1).map(() => 1), taken, columns]}, taken};
}

/**
 * What the page shows of no elements.
 * @type {HeatMap}
 */
const EMPTY_MAP = {
  rows: 0, columns: 0, height: 0, width: 0, cells: new Float64Array(0), held: new Float64Array(0), isWhole: true,
};

/**
 * A heat map of a tensor as a matrix, of cells that have the mean of what was read.
 * @param {number[]} shape
 * @param {number} itemSize
 * @param {(box: Box) => Float64Array} numbersOf elements of a box
 * @param {boolean} all
 * @returns {HeatMap}
 */
export function mapOf(shape, itemSize, numbersOf, all) {
  const count = product(shape);
  if (count === 0) return EMPTY_MAP;
  const matrix = matrixOf(shape);
  const {rows, columns} = matrix;
  const width = Math.min(columns, MAP_SIZE);
  const isWhole = all || count * itemSize <= SAMPLE_BYTES;
  const height = Math.min(rows, isWhole ? MAP_SIZE : SAMPLE_BYTES >> 20);
  const perBand = Math.max(1, Math.floor((1 << 20) / (columns * itemSize)));
  const perStep = Math.max(1, Math.floor(STEP_BYTES / (columns * itemSize)));
  const sums = new Float64Array(height * width);
  const counts = new Float64Array(height * width);
  /** @type {(first: number, stop: number) => void} */
  const add = (first, stop) => {
    for (let row = first; row < stop;) {
      const {box, taken} = boxOfRows(shape, matrix, row, Math.min(stop - row, perStep));
      const numbers = numbersOf(box);
      for (let i = 0; i < numbers.length; i += 1) {
        const at = row + Math.floor(i / columns);
        const band = Math.ceil(((at + 1) * height) / rows) - 1;
        const cell = band * width + Math.floor(((i % columns) * width) / columns);
        sums[cell] += numbers[i];
        counts[cell] += 1;
      }
      row += taken;
    }
  };
  // All rows together where all are read: a band may be a small part of a block.
  if (isWhole) add(0, rows);
  else {
    for (let band = 0; band < height; band += 1) {
      const first = Math.floor((band * rows) / height);
      add(first, Math.min(Math.floor(((band + 1) * rows) / height), first + perBand));
    }
  }
  return {
    rows, columns, height, width, cells: sums.map((sum, i) => sum / counts[i]), held: counts.map((held) => Number(held > 0)), isWhole,
  };
}

/**
 * Elements as numbers, of complex ones the real parts.
 * @param {Uint8Array} bytes
 * @param {import('../lib/dtypes.mjs').DataType} dtype
 */
export function realNumbers(bytes, dtype) {
  const numbers = toNumbers(bytes, dtype);
  return dtype.name.startsWith('complex') ? numbers.filter((_, i) => i % 2 === 0) : numbers;
}
