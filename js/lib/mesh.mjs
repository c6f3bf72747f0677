/**
 * Meshes (SPEC section 12): axes, coordinates, and which meshes are well formed.
 */

import {UcpError, refuseLayout} from './errors.mjs';
import {product} from './boxes.mjs';

/** @typedef {{name: string, size: number, by?: undefined, sizes?: undefined}} EvenAxis */
/** @typedef {{name: string, size?: undefined, by: string, sizes: number[]}} RaggedAxis of as many as the axis `by` decides */
/** @typedef {EvenAxis | RaggedAxis} Axis */
/** @typedef {{axes: Axis[], ranks?: number[]}} Mesh */

/** Most coordinates of a mesh (UCP-D-041). */
export const MAX_COORDINATES = 2 ** 20;

/**
 * The size of an axis at a coordinate, of which the positions before the axis are enough.
 * @param {Mesh} mesh
 * @param {number} i
 * @param {number[]} coordinate
 * @returns {number}
 */
function sizeAt(mesh, i, coordinate) {
  const {size, by, sizes} = mesh.axes[i];
  return size ?? sizes[coordinate[mesh.axes.findIndex(({name}) => name === by)]];
}

/**
 * The number of coordinates: an axis and those whose sizes it decides count together.
 * @param {Mesh} mesh
 */
export function countCoordinates({axes}) {
  return product(axes.filter((axis) => axis.size !== undefined).map(({name, size}) => {
    const ragged = axes.flatMap(({by, sizes}) => (by === name ? [sizes] : []));
    if (ragged.length === 0) return size;
    /** @param {number} position */
    const at = (position) => product(ragged.map((sizes) => sizes[position]));
    return ragged[0].reduce((sum, _, position) => sum + at(position), 0);
  }));
}

/**
 * Refuses a mesh that breaks UCP-D-039, UCP-D-040, UCP-D-041, UCP-D-042 or UCP-D-043.
 * @param {Mesh} mesh
 * @param {string} at
 */
export function checkMesh(mesh, at) {
  const names = mesh.axes.map((axis) => axis.name);
  if (names.includes('')) refuseLayout(at, 'an axis has an empty name');
  if (new Set(names).size !== names.length) refuseLayout(at, 'two axes have the same name');
  mesh.axes.forEach(({by, sizes}, i) => {
    if (by === undefined) return;
    const earlier = mesh.axes.slice(0, i).find(({name}) => name === by);
    if (earlier?.size === undefined) refuseLayout(at, `${by} is no earlier axis with a size`);
    if (sizes.length !== earlier.size) refuseLayout(at, `sizes are not one per position of ${by}`);
  });
  const coordinates = countCoordinates(mesh);
  if (coordinates > MAX_COORDINATES) {
    throw new UcpError('UCP-E-LIMIT', at, `more than ${MAX_COORDINATES} coordinates`);
  }
  if (mesh.ranks && (mesh.ranks.length !== coordinates
      || new Set(mesh.ranks).size !== coordinates)) {
    refuseLayout(at, `ranks are not ${coordinates} distinct integers`);
  }
}

/**
 * All coordinates of a mesh, in row-major order.
 * @param {Mesh} mesh
 */
export function* coordinatesOf(mesh) {
  const position = mesh.axes.map(() => 0);
  for (;;) {
    yield [...position];
    let i = position.length - 1;
    while (i >= 0 && position[i] === sizeAt(mesh, i, position) - 1) position[i--] = 0;
    if (i < 0) return;
    position[i] += 1;
  }
}

/**
 * Whether a mesh has a coordinate.
 * @param {Mesh} mesh
 * @param {number[]} coordinate
 */
export function hasCoordinate(mesh, coordinate) {
  return coordinate.length === mesh.axes.length
    && coordinate.every((position, i) => position < sizeAt(mesh, i, coordinate));
}

/** @type {WeakMap<Mesh, Map<string, number>>} row-major positions of coordinates, of meshes with axes whose size differs */
const positions = new WeakMap();

/**
 * The row-major position of a coordinate.
 * @param {Mesh} mesh
 * @param {number[]} coordinate that it has
 * @returns {number}
 */
export function positionOf(mesh, coordinate) {
  const sizes = mesh.axes.map(({size}) => size);
  if (sizes.every((size) => size !== undefined)) {
    return coordinate.reduce((index, position, i) => index * sizes[i] + position, 0);
  }
  const known = positions.get(mesh) ?? new Map([...coordinatesOf(mesh)].map((found, i) => [found.join(), i]));
  positions.set(mesh, known);
  return /** @type {number} */ (known.get(coordinate.join()));
}

/**
 * What a coordinate says of an axis: its position, and how many there are.
 * @param {Mesh} mesh
 * @param {number[]} coordinate
 * @returns {(axis: string) => [position: number, size: number]}
 */
export function lookup(mesh, coordinate) {
  return (name) => {
    const i = mesh.axes.findIndex((axis) => axis.name === name);
    return [coordinate[i], sizeAt(mesh, i, coordinate)];
  };
}
