/**
 * Lowering of layouts to canonical pieces (SPEC section 13).
 */

import {product, stridesOf} from './boxes.mjs';
import {isPossibleShape} from './documents.mjs';
import {Problems, Unsupported, UcpError} from './errors.mjs';
import {fromPlain} from './json.mjs';
import {
  checkFit, checkMesh, checkSteps, coordinatesOf, keptAt, unsupportedIn,
} from './layout.mjs';
import {checkSchema} from './schema.mjs';

/**
 * @typedef {object} Piece
 * @property {number[]} offset of the box in the logical tensor
 * @property {number[]} shape of the box
 * @property {number} local element of the local tensor at which the box begins
 * @property {number[]} strides in the local tensor, in elements
 */
/** @typedef {{coordinate: number[], shape: number[] | null, pieces: Piece[]}} Local */

/**
 * A canonical list R(i), with the local elements of its pieces relative to `base`.
 * @typedef {{pieces: Piece[], base: number}} List
 */

/** Whether two lists agree in everything but local elements (SPEC section 13, rule 2). */
function sameStructure(a, b) {
  if (a.pieces === b.pieces) return true;
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
  #group = null;

  /** Visits index `i` with the list R(i), which is not empty. */
  add(i, list) {
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
    this.#group = {start: i, count: 1, first: list, last: list, steps: null};
  }

  /**
   * Visits `count` indices from `i` on whose lists differ by `step` in every local element.
   * After three of them the group has two whose step is that of all that follow.
   */
  addRun(i, list, step, count) {
    const at = (k) => ({pieces: list.pieces, base: list.base + k * step});
    for (let k = 0; k < Math.min(count, 3); k += 1) this.add(i + k, at(k));
    if (count > 3) {
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

const POINT = Object.freeze([{offset: [], shape: [], local: 0, strides: []}]);

/**
 * The canonical pieces of what a coordinate keeps.
 *
 * An index of a dimension whose whole cross-section lies in one span of the flat tensor has the
 * list that depends on the dimension alone; runs of such indices are taken at once. Only indices
 * that a boundary of a span cuts are looked into, so that the time follows the number of spans
 * and pieces, and not that of elements.
 *
 * @param {NonNullable<ReturnType<keptAt>>} kept
 * @returns {Piece[]}
 */
function canonicalPieces({dims, flat}) {
  const extents = dims.map((spans) => spans.reduce((sum, [from, to]) => sum + to - from, 0));
  const total = product(extents);
  if (total === 0) return [];
  const strides = stridesOf(extents);
  /** Spans of the flat tensor, each with the local element of its first. */
  let before = 0;
  const runs = (flat ?? [[0, total]]).map(([start, stop]) => {
    before += stop - start;
    return {start, stop, local: before - (stop - start)};
  });
  /** The first run that ends behind a flat element. */
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
  const whole = new Array(dims.length);
  /** The list of dimensions from d on where all they keep is held, local elements from 0 on. */
  const wholeList = (d) => {
    if (d === dims.length) return POINT;
    if (!whole[d]) {
      const groups = new Groups();
      let position = 0;
      for (const [start, stop] of dims[d]) {
        const list = {pieces: wholeList(d + 1), base: position * strides[d]};
        groups.addRun(start, list, strides[d], stop - start);
        position += stop - start;
      }
      whole[d] = groups.finish();
    }
    return whole[d];
  };
  /** The list of dimensions from d on, for the part of the flat tensor from `origin` on. */
  const visit = (d, origin) => {
    const groups = new Groups();
    const stride = strides[d];
    let position = 0;
    for (const [start, stop] of dims[d]) {
      const end = position + stop - start;
      for (let p = position; p < end;) {
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
  return runs.length > 0 ? [...POINT] : [];
}

/** Refuses a layout that comes from a caller and not from a document, and breaks its schema. */
export function checkForm({mesh, steps}) {
  const problems = new Problems();
  checkSchema('layout#/$defs/mesh', fromPlain(mesh), '', problems, 'UCP-E-LAYOUT');
  checkSchema('layout', fromPlain({mesh: 0, steps}), '', problems, 'UCP-E-LAYOUT');
  problems.raise();
}

/**
 * Refuses a layout that breaks SPEC section 12 for a tensor of this shape (UCP-R-021).
 * @throws {Unsupported} for what is defined there and not implemented
 */
export function checkLayout(mesh, steps, shape, at = '') {
  const missing = unsupportedIn({mesh, steps});
  if (missing) throw new Unsupported(missing);
  checkMesh(mesh, at);
  checkSteps(mesh, steps, at, shape.length);
  checkFit(mesh, steps, shape, at);
}

/**
 * The local tensor at a coordinate, of a layout that {@link checkLayout} accepts.
 * @returns {Local}
 */
export function lowerAt(mesh, steps, shape, coordinate, at = '') {
  const kept = keptAt(mesh, steps, shape, coordinate, at);
  if (kept === null) return {coordinate, shape: null, pieces: []};
  return {coordinate, shape: kept.shape, pieces: canonicalPieces(kept)};
}

/**
 * The local tensors at all coordinates, in row-major order.
 * @returns {Local[]}
 */
export function lower(mesh, steps, shape) {
  checkForm({mesh, steps});
  if (!isPossibleShape(shape, 1)) throw new UcpError('UCP-E-SHAPE', '', 'too many dimensions or bytes');
  checkLayout(mesh, steps, shape);
  return [...coordinatesOf(mesh)].map((coordinate) => lowerAt(mesh, steps, shape, coordinate));
}
