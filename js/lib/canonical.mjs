/**
 * Canonical lists of pieces (SPEC section 13).
 */

import {product, stridesOf} from './boxes.mjs';
import {extentOf} from './spans.mjs';
import {boxesOfRange} from './views.mjs';

/** @typedef {import('./pieces.mjs').Piece} Piece */
/** @typedef {import('./spans.mjs').Span} Span */

/** @typedef {import('./boxes.mjs').Box & {local: number}} Located a box, and the local element with which it begins */

/**
 * A canonical list R(i), with the local elements of its pieces relative to `base`.
 * @typedef {{pieces: readonly Piece[], base: number}} List
 */

/**
 * Whether two lists agree in everything but local elements (SPEC section 13, rule 2).
 * @param {List} a
 * @param {List} b
 */
function sameStructure(a, b) {
  if (a.pieces === b.pieces) return true;
  /** @type {(x: number[], y: number[]) => boolean} */
  const same = (x, y) => x.every((value, i) => value === y[i]);
  return a.pieces.length === b.pieces.length && a.pieces.every((piece, i) => {
    const other = b.pieces[i];
    return same(piece.offset, other.offset) && same(piece.shape, other.shape)
      && same(piece.strides, other.strides);
  });
}

/** The groups of consecutive indices of one dimension (SPEC section 13, rules 2 to 4). */
class Groups {
  /** @type {Piece[]} */
  pieces = [];
  /**
   * The group that goes on: its first index, how many it has, and the lists of the first and the last of them. `steps`
   * are those of local elements between two of its indices, none as long as it has one.
   * @type {{start: number, count: number, first: List, last: List, steps: number[]} | null}
   */
  #group = null;

  /**
   * Visits index `i` with the list R(i); an index without pieces belongs to no group.
   * @param {number} i
   * @param {List} list
   */
  add(i, list) {
    if (list.pieces.length === 0) return;
    const group = this.#group;
    if (group && group.start + group.count === i && sameStructure(group.last, list)) {
      const steps = list.pieces.map((piece, k) => piece.local + list.base
        - group.last.pieces[k].local - group.last.base);
      if (steps.every((step) => step >= 1)
          && (group.count === 1 || steps.every((step, k) => step === group.steps[k]))) {
        group.steps = steps;
        group.last = list;
        group.count += 1;
        return;
      }
    }
    this.#emit();
    this.#group = {start: i, count: 1, first: list, last: list, steps: []};
  }

  /**
   * Visits `count` indices from `i` on whose lists differ by `step` in every local element.
   * After three of them the group has two whose step is that of all that follow.
   * @param {number} i
   * @param {List} list
   * @param {number} step
   * @param {number} count
   */
  addRun(i, list, step, count) {
    /** @type {(k: number) => List} */
    const at = (k) => ({pieces: list.pieces, base: list.base + k * step});
    for (let k = 0; k < Math.min(count, 3); k += 1) this.add(i + k, at(k));
    if (count > 3 && this.#group && list.pieces.length > 0) {
      this.#group.count += count - 3;
      this.#group.last = at(count - 1);
    }
  }

  #emit() {
    if (!this.#group) return;
    const {start, count, first, steps} = this.#group;
    first.pieces.forEach((piece, k) => this.pieces.push({
      offset: [start, ...piece.offset],
      shape: [count, ...piece.shape],
      local: piece.local + first.base,
      strides: [count === 1 ? 0 : steps[k], ...piece.strides],
    }));
  }

  finish() {
    this.#emit();
    this.#group = null;
    return this.pieces;
  }
}

/**
 * Spans of the flat tensor that are no padding, each with the local element of its first.
 * @param {Span[]} flat
 */
function runsOf(flat) {
  let before = 0;
  return flat.map(([start, stop, padding]) => {
    before += stop - start;
    return {start, stop, padding, local: before - (stop - start)};
  }).filter(({padding}) => !padding);
}

/** @type {readonly Piece[]} */
const POINT = Object.freeze([{offset: [], shape: [], local: 0, strides: []}]);

/**
 * The canonical pieces of what a coordinate keeps of dimensions that are those of the view.
 *
 * An index of a dimension whose whole cross-section lies in one span of the flat tensor has the
 * list that depends on the dimension alone; runs of such indices are taken at once. Only indices
 * that a boundary of a span cuts are looked into, so that the time follows the number of spans
 * and pieces, and not that of elements.
 *
 * @param {import('./layout.mjs').Kept} kept
 * @returns {Piece[]}
 */
function piecesOfSpans({dims, flat}) {
  const extents = dims.map(extentOf);
  const total = product(extents);
  if (total === 0) return [];
  const strides = stridesOf(extents);
  const runs = runsOf(flat ?? [[0, total]]);
  /**
   * The first run that ends behind a flat element.
   * @param {number} element
   */
  const runBehind = (element) => {
    let low = 0;
    let high = runs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (runs[middle].stop > element) high = middle;
      else low = middle + 1;
    }
    return runs[low];
  };
  /** @type {(readonly Piece[])[]} */
  const whole = new Array(dims.length);
  /**
   * The list of dimensions from d on where all they keep is held, local elements from 0 on.
   * @type {(d: number) => readonly Piece[]}
   */
  const wholeList = (d) => {
    if (d === dims.length) return POINT;
    if (!whole[d]) {
      const groups = new Groups();
      let position = 0;
      for (const [start, stop, padding] of dims[d]) {
        const list = {pieces: wholeList(d + 1), base: position * strides[d]};
        if (!padding) groups.addRun(start, list, strides[d], stop - start);
        position += stop - start;
      }
      whole[d] = groups.finish();
    }
    return whole[d];
  };
  /**
   * The list of dimensions from d on, for the part of the flat tensor from `origin` on.
   * @type {(d: number, origin: number) => Piece[]}
   */
  const visit = (d, origin) => {
    const groups = new Groups();
    const stride = strides[d];
    let position = 0;
    for (const [start, stop, padding] of dims[d]) {
      const end = position + stop - start;
      for (let p = padding ? end : position; p < end;) {
        const from = origin + p * stride;
        const run = runBehind(from);
        if (!run) return groups.finish();
        const i = start + p - position;
        if (run.start >= from + stride) { // nothing of this index: go to the run's first
          p += Math.floor((run.start - from) / stride);
        } else if (run.start <= from && run.stop >= from + stride) {
          const count = Math.min(end - p, Math.floor((run.stop - from) / stride));
          const list = {pieces: wholeList(d + 1), base: from - run.start + run.local};
          groups.addRun(i, list, stride, count);
          p += count;
        } else {
          groups.add(i, {pieces: visit(d + 1, from), base: 0});
          p += 1;
        }
      }
      position = end;
    }
    return groups.finish();
  };
  if (dims.length > 0) return visit(0, 0);
  return runs.slice(0, 1).map(({local}) => ({...POINT[0], local}));
}

/**
 * Spans of a dimension that are no padding, with the position of each in the local tensor.
 * @param {Span[]} spans
 */
function placed(spans) {
  let before = 0;
  return spans.map(([start, stop, padding]) => {
    before += stop - start;
    return {start, stop, padding, position: before - (stop - start)};
  }).filter(({padding}) => !padding);
}

/**
 * Boxes of the view, each with its first local element, that together are what a coordinate keeps.
 * The local strides are the same for all of them.
 * @param {import('./layout.mjs').Kept} kept of dimensions that are not those of the view
 * @returns {{boxes: Located[], strides: number[]}}
 */
function boxesOf({viewed: {view, dims: written}, dims, flat}) {
  const digits = /** @type {number[][]} */ (written);
  const extents = dims.map(extentOf);
  const outer = stridesOf(extents);
  const radices = digits.map((list) => list.map((dim) => view[dim]));
  const strides = new Array(view.length).fill(0);
  digits.forEach((list, d) => stridesOf(radices[d]).forEach((inner, k) => {
    strides[list[k]] = outer[d] * inner;
  }));
  /** @type {Located[]} */
  const boxes = [];
  /**
   * Adds the boxes of what is held within a box of positions, whose first local element is `local`.
   * @type {(box: import('./boxes.mjs').Box, local: number) => void}
   */
  const add = ({offset, shape}, local) => {
    const found = dims.map((spans, d) => placed(spans).flatMap(({start, stop, position}) => {
      const first = Math.max(position, offset[d]);
      const last = Math.min(position + stop - start, offset[d] + shape[d]);
      if (first >= last) return [];
      const parts = [...boxesOfRange(radices[d], start + (first - position), start + (last - position))];
      let at = (first - offset[d]) * outer[d];
      return parts.map((box) => {
        const part = {...box, local: at};
        at += product(box.shape) * outer[d];
        return part;
      });
    }));
    /** @type {(d: number, box: Located) => void} */
    const combine = (d, box) => {
      if (d === dims.length) boxes.push(box);
      else {
        for (const part of found[d]) {
          const next = {offset: [...box.offset], shape: [...box.shape], local: box.local + part.local};
          digits[d].forEach((dim, k) => {
            next.offset[dim] = part.offset[k];
            next.shape[dim] = part.shape[k];
          });
          combine(d + 1, next);
        }
      }
    };
    combine(0, {offset: view.map(() => 0), shape: view.map(() => 1), local});
  };
  if (flat === null) add({offset: extents.map(() => 0), shape: extents}, 0);
  else if (product(extents) > 0) {
    for (const run of runsOf(flat)) {
      let base = run.local;
      for (const box of boxesOfRange(extents, run.start, run.stop)) {
        add(box, base);
        base += product(box.shape);
      }
    }
  }
  return {boxes, strides};
}

/**
 * The canonical pieces of disjoint boxes with common local strides: between two bounds of boxes on
 * a dimension, indices have the same list but for the local elements.
 * @param {Located[]} boxes
 * @param {number[]} strides
 * @returns {Piece[]} of dimensions from `d` on
 */
function piecesOfBoxes(boxes, strides, d = 0) {
  if (d === strides.length) return boxes.map(({local}) => ({...POINT[0], local}));
  const sorted = [...boxes].sort((a, b) => a.offset[d] - b.offset[d]);
  const bounds = [...new Set(sorted.flatMap(({offset, shape}) => [offset[d], offset[d] + shape[d]]))]
    .sort((a, b) => a - b);
  const groups = new Groups();
  /** @type {Located[]} */
  let active = [];
  let next = 0;
  bounds.slice(0, -1).forEach((start, i) => {
    active = active.filter(({offset, shape}) => offset[d] + shape[d] > start);
    while (next < sorted.length && sorted[next].offset[d] === start) active.push(sorted[next++]);
    if (active.length === 0) return;
    const here = active.map((box) => ({...box, local: box.local + (start - box.offset[d]) * strides[d]}));
    const list = {pieces: piecesOfBoxes(here, strides, d + 1), base: 0};
    groups.addRun(start, list, strides[d], bounds[i + 1] - start);
  });
  return groups.finish();
}

/**
 * The canonical pieces of what a coordinate keeps.
 * @param {import('./layout.mjs').Kept} kept
 */
export function canonicalPieces(kept) {
  if (kept.viewed.dims === null) return piecesOfSpans(kept);
  const {boxes, strides} = boxesOf(kept);
  return piecesOfBoxes(boxes, strides);
}
