/**
 * Views (SPEC section 13): in which dimensions a layout with `view` or `permute` sees a tensor.
 *
 * A *digit* is a radix and a weight. The digits of all dimensions write the row-major index of an
 * element: it is the sum of their values times their weights.
 */

import {refuseLayout} from './errors.mjs';
import {product, stridesOf} from './boxes.mjs';
import {floorDiv} from './grid.mjs';

/** @typedef {[radix: number, weight: number]} Digit */
/** @typedef {import('./boxes.mjs').Box} Box */

/**
 * @typedef {object} Viewed
 * @property {number[]} extents of the local tensor as `view` and `permute` leave it
 * @property {number[]} view the shape in which pieces are boxes
 * @property {number[][] | null} dims per dimension of the local tensor the dimensions of the view
 *   that write its index, first the one that counts most; null where they are the same dimensions
 */

/**
 * Digits of all dimensions in order, with neighbours joined that are one digit.
 * @param {Digit[][]} dims
 */
function joined(dims) {
  /** @type {Digit[]} */
  const list = [];
  for (const [radix, weight] of dims.flat()) {
    const last = list.at(-1);
    if (last && last[1] === radix * weight) list[list.length - 1] = [last[0] * radix, weight];
    else list.push([radix, weight]);
  }
  return list;
}

/**
 * The digits that each extent of a new shape takes (UCP-D-050).
 * @param {Digit[]} list
 * @param {number[]} shape
 * @param {string} at
 */
function taken(list, shape, at) {
  return shape.map((extent) => {
    /** @type {Digit[]} */
    const digits = [];
    for (let lacking = extent; lacking > 1;) {
      if (list.length === 0) return refuseLayout(at, `[${shape}] has more elements than the tensor`);
      const [radix, weight] = list[0];
      if (lacking % radix === 0) {
        digits.push([radix, weight]);
        list.shift();
        lacking /= radix;
      } else if (radix % lacking === 0) {
        digits.push([lacking, weight * (radix / lacking)]);
        list[0] = [radix / lacking, weight];
        lacking = 1;
      } else return refuseLayout(at, `[${shape}] does not fit the order of the elements`);
    }
    return digits;
  });
}

/**
 * The shape of the view, from the digits of all dimensions.
 * @param {number[]} shape
 * @param {Digit[]} digits
 */
function viewOf(shape, digits) {
  const elements = product(shape);
  const inner = stridesOf(shape);
  const points = [...new Set([...inner, ...digits.map(([, weight]) => weight)])]
    .filter((point) => point > 1 && point < elements)
    .sort((a, b) => a - b);
  if (points.some((point, i) => i > 0 && point % points[i - 1] !== 0)) {
    return [...digits].sort((a, b) => b[1] - a[1]).map(([radix]) => radix);
  }
  return shape.flatMap((extent, dim) => {
    const stop = inner[dim] * extent;
    const bounds = [stop, ...points.filter((point) => point > inner[dim] && point < stop).reverse(), inner[dim]];
    return bounds.slice(1).map((bound, i) => bounds[i] / bound);
  });
}

/**
 * What `view` and `permute` make of a shape.
 * @param {number[]} shape
 * @param {import('./layout.mjs').Step[]} steps checked but for UCP-D-050
 * @param {string} at
 * @returns {Viewed}
 */
export function viewed(shape, steps, at) {
  const moves = steps.filter(({kind}) => kind === 'view' || kind === 'permute');
  if (moves.length === 0) return {extents: shape, view: shape, dims: null};
  const inner = stridesOf(shape);
  const empty = shape.includes(0);
  let extents = shape;
  /** @type {Digit[][]} */
  let dims = shape.map((extent, i) => (extent > 1 && !empty ? [[extent, inner[i]]] : []));
  for (const {shape: wanted = [], order} of moves) {
    if (order) {
      dims = order.map((dim) => dims[dim]);
      extents = order.map((dim) => extents[dim]);
    } else {
      if (wanted.includes(0) !== empty || (!empty && product(wanted) !== product(shape))) {
        refuseLayout(at, `[${wanted}] has another number of elements than [${shape}]`);
      }
      dims = empty ? wanted.map(() => []) : taken(joined(dims), wanted, at);
      extents = wanted;
    }
  }
  if (empty) return {extents, view: shape, dims: null};
  const view = viewOf(shape, dims.flat());
  const weights = stridesOf(view);
  /** @param {Digit} digit */
  const within = ([radix, weight]) => [...view.keys()].filter((dim) => (
    view[dim] > 1 && weights[dim] >= weight && weights[dim] < weight * radix));
  return {extents, view, dims: dims.map((digits) => digits.flatMap(within))};
}

/**
 * Boxes whose elements are those of a range of row-major indices, in their order; at most two for
 * every dimension but one.
 * @param {number[]} shape without zeros
 * @param {number} start
 * @param {number} stop greater than start
 * @param {number} [dim]
 * @returns {Generator<Box>} of dimensions from `dim` on
 */
export function* boxesOfRange(shape, start, stop, dim = 0) {
  if (dim === shape.length) {
    yield {offset: [], shape: []};
    return;
  }
  let inner = 1;
  for (let i = dim + 1; i < shape.length; i += 1) inner *= shape[i];
  const first = floorDiv(start, inner);
  const last = floorDiv(stop - 1, inner);
  /** @type {(index: number, from: number, to: number) => Generator<Box>} */
  const of = function* of(index, from, to) {
    for (const rest of boxesOfRange(shape, from, to, dim + 1)) {
      yield {offset: [index, ...rest.offset], shape: [1, ...rest.shape]};
    }
  };
  if (first === last && stop - start < inner) {
    yield* of(first, start - first * inner, stop - first * inner);
    return;
  }
  const head = start % inner;
  const tail = stop % inner;
  if (head > 0) yield* of(first, head, inner);
  const from = first + (head > 0 ? 1 : 0);
  const to = last + (tail > 0 ? 0 : 1);
  if (from < to) yield {offset: [from, ...shape.slice(dim + 1).map(() => 0)], shape: [to - from, ...shape.slice(dim + 1)]};
  if (tail > 0) yield* of(last, 0, tail);
}

/**
 * The boxes of the logical tensor that make up a piece, each as a piece.
 * @param {number[]} shape
 * @param {number[]} view
 * @param {import('./pieces.mjs').Piece} piece a box of the view
 * @returns {Generator<import('./pieces.mjs').Piece>}
 */
export function* logicalPieces(shape, view, piece) {
  if (view.length === shape.length && view.every((extent, i) => extent === shape[i])) {
    yield piece;
    return;
  }
  // Innermost dimensions that are whole, and dense in the local tensor as in the logical one, are
  // one run of elements whose local elements are `step` apart.
  let dim = view.length;
  let whole = true;
  let run = 1;
  let step = 0;
  while (dim > 0 && whole && (run === 1 || piece.shape[dim - 1] === 1 || piece.strides[dim - 1] === run * step)) {
    dim -= 1;
    if (run === 1) step = piece.strides[dim];
    run *= piece.shape[dim];
    whole = piece.shape[dim] === view[dim];
  }
  const weights = stridesOf(view);
  const strides = stridesOf(shape).map((stride) => stride * step);
  const inside = weights.slice(dim).reduce((sum, weight, i) => sum + weight * piece.offset[dim + i], 0);
  /** @type {(d: number, element: number, local: number) => Generator<import('./pieces.mjs').Piece>} */
  const outer = function* outer(d, element, local) {
    if (d === dim) {
      for (const box of boxesOfRange(shape, element, element + run)) {
        const first = box.offset.reduce((sum, o, i) => sum * shape[i] + o, 0);
        yield {...box, local: local + (first - element) * step, strides};
      }
      return;
    }
    for (let i = 0; i < piece.shape[d]; i += 1) {
      yield* outer(d + 1, element + (piece.offset[d] + i) * weights[d], local + i * piece.strides[d]);
    }
  };
  yield* outer(0, inside, piece.local);
}
