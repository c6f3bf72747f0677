/**
 * Lowering of layouts to canonical pieces (SPEC section 13).
 */

import {isPossibleShape} from './documents.mjs';
import {Problems, Unsupported, UcpError} from './errors.mjs';
import {fromPlain} from './json.mjs';
import {checkPlace} from './buffers.mjs';
import {canonicalPieces} from './canonical.mjs';
import {
  checkDtype, checkFit, checkSteps, keptAt, unsupportedIn,
} from './layout.mjs';
import {checkMesh, coordinatesOf} from './mesh.mjs';
import {checkSchema} from './schema.mjs';
import {logicalPieces} from './views.mjs';

/**
 * @typedef {object} Piece
 * @property {number[]} offset of the box in the view of the layout
 * @property {number[]} shape of the box
 * @property {number} local element of the local tensor at which the box begins
 * @property {number[]} strides in the local tensor, in elements
 */
/** @typedef {import('./layout.mjs').Mesh} Mesh */
/** @typedef {import('./layout.mjs').Step} Step */
/** @typedef {import('./layout.mjs').Place} Place */
/** @typedef {{coordinate: number[], shape: number[] | null, pieces: Piece[]}} Local */

/**
 * Refuses a layout that comes from a caller and not from a document, and breaks its schema.
 * @param {{mesh: Mesh, steps: Step[], place?: Place | null}} layout
 */
export function checkForm({mesh, steps, place}) {
  const problems = new Problems();
  if (place) checkSchema('atom#/$defs/place', fromPlain(place), '', problems, 'UCP-E-LAYOUT');
  checkSchema('layout#/$defs/mesh', fromPlain(mesh), '', problems, 'UCP-E-LAYOUT');
  checkSchema('layout', fromPlain({mesh: 0, steps}), '', problems, 'UCP-E-LAYOUT');
  problems.raise();
}

/**
 * Refuses a layout that breaks SPEC section 12 for a tensor of this shape (UCP-R-017).
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {number[]} shape
 * @param {string} [at]
 * @param {Place | null} [place] that goes with the layout
 * @param {import('./dtypes.mjs').DataType | null} [dtype]
 * @throws {Unsupported} for what is defined there and not implemented
 */
export function checkLayout(mesh, steps, shape, at = '', place = null, dtype = null) {
  const missing = unsupportedIn(steps);
  if (missing) throw new Unsupported(missing);
  checkMesh(mesh, at);
  checkSteps(mesh, steps, at, shape.length);
  checkPlace(mesh, steps, place, at);
  checkFit(mesh, steps, shape, at, place);
  if (dtype) checkDtype(steps, dtype, at);
}

/**
 * The local tensor at a coordinate, of a layout that {@link checkLayout} accepts.
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {number[]} shape
 * @param {number[]} coordinate
 * @param {Place | null} [place]
 * @returns {Local}
 */
export function lowerAt(mesh, steps, shape, coordinate, place = null) {
  const kept = keptAt(mesh, steps, shape, coordinate, '', place);
  if (kept === null) return {coordinate, shape: null, pieces: []};
  return {coordinate, shape: kept.shape, pieces: canonicalPieces(kept)};
}

/**
 * The same with pieces that are boxes of the logical tensor, not canonical.
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {number[]} shape
 * @param {number[]} coordinate
 * @param {Place | null} [place]
 * @returns {Local}
 */
export function lowerToLogical(mesh, steps, shape, coordinate, place = null) {
  const kept = keptAt(mesh, steps, shape, coordinate, '', place);
  if (kept === null) return {coordinate, shape: null, pieces: []};
  const pieces = canonicalPieces(kept).flatMap((piece) => [...logicalPieces(shape, kept.viewed.view, piece)]);
  return {coordinate, shape: kept.shape, pieces};
}

/**
 * The local tensors at all coordinates, in row-major order.
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {number[]} shape
 * @param {Place | null} [place]
 * @returns {Local[]}
 */
export function lower(mesh, steps, shape, place = null) {
  checkForm({mesh, steps, place});
  if (!isPossibleShape(shape, 1)) throw new UcpError('UCP-E-SHAPE', '', 'too many dimensions or bytes');
  checkLayout(mesh, steps, shape, '', place);
  return [...coordinatesOf(mesh)].map((coordinate) => lowerAt(mesh, steps, shape, coordinate, place));
}
