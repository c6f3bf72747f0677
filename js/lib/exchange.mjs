/**
 * Who sends what from one layout of a tensor to another (SPEC-ARRANGEMENTS.md, section 2).
 */

import {intersect, product} from './boxes.mjs';
import {UcpError} from './errors.mjs';
import {coordinatesOf} from './mesh.mjs';
import {lowerToLogical} from './pieces.mjs';

/** @typedef {import('./boxes.mjs').Box} Box */
/** @typedef {import('./mesh.mjs').Mesh} Mesh */
/** @typedef {{mesh: Mesh, steps: import('./layout.mjs').Step[], place?: import('./layout.mjs').Place | null}} Layout */
/** @typedef {{boxes: Box[], ranks: number[]}} Region boxes of the tensor, and the ranks that hold just them, ascending */
/** @typedef {{box: Box, ranks: number[]}} Held a box and all ranks that hold it, ascending */
/** @typedef {{ranks: number[], step: number, requests: {position: number, rank: number, size: number}[]}} Team
 *   ranks that hold the same boxes, by how many positions they move on from turn to turn, and what each position gives */

/** Most boxes of a side: all of one are compared with those of the other that are near. */
const MAX_BOXES = 20_000;

/**
 * The ranks of a mesh, in the order of its coordinates.
 * @param {Mesh} mesh
 * @returns {number[]}
 */
export const ranksOf = (mesh) => mesh.ranks ?? [...coordinatesOf(mesh)].map((_, position) => position);

/**
 * What ranks hold of a tensor, those that hold the same together; ranks that hold nothing are left out.
 * @param {Layout} layout that fits the tensor
 * @param {number[]} shape
 * @returns {Region[]}
 */
export function regionsOf({mesh, steps, place = null}, shape) {
  const ranks = ranksOf(mesh);
  /** @type {Map<string, Region>} */
  const regions = new Map();
  let count = 0;
  for (const [position, coordinate] of [...coordinatesOf(mesh)].entries()) {
    const boxes = lowerToLogical(mesh, steps, shape, coordinate, place).pieces
      .map(({offset, shape: extents}) => ({offset, shape: extents})).filter((box) => !box.shape.includes(0));
    if (boxes.length === 0) continue;
    const key = JSON.stringify(boxes);
    const found = regions.get(key);
    if (found) found.ranks.push(ranks[position]);
    else {
      regions.set(key, {boxes, ranks: [ranks[position]]});
      count += boxes.length;
      if (count > MAX_BOXES) throw new UcpError('UCP-E-LIMIT', '', `a layout with more than ${MAX_BOXES} boxes`);
    }
  }
  for (const region of regions.values()) region.ranks.sort((a, b) => a - b);
  return [...regions.values()];
}

/**
 * What of a box is outside another one within it, as boxes.
 * @param {Box} box
 * @param {Box} part
 * @returns {Box[]}
 */
function without(box, part) {
  const rest = [];
  let {offset, shape} = box;
  for (let dim = 0; dim < shape.length; dim += 1) {
    const before = part.offset[dim] - offset[dim];
    const behind = shape[dim] - before - part.shape[dim];
    if (before > 0) rest.push({offset, shape: shape.with(dim, before)});
    if (behind > 0) rest.push({offset: offset.with(dim, part.offset[dim] + part.shape[dim]), shape: shape.with(dim, behind)});
    offset = offset.with(dim, part.offset[dim]);
    shape = shape.with(dim, part.shape[dim]);
  }
  return rest;
}

/** Boxes by where they begin in the first dimension, to find those that meet another one. */
class Index {
  /** @param {Box[]} boxes */
  constructor(boxes) {
    this.boxes = boxes;
    /** @param {number} i */
    const first = (i) => boxes[i].offset[0] ?? 0;
    this.order = [...boxes.keys()].sort((a, b) => first(a) - first(b));
    this.longest = boxes.reduce((most, {shape}) => Math.max(most, shape[0] ?? 1), 0);
  }

  /**
   * Places of the boxes that meet one, ascending, each with the part in common.
   * @param {Box} box
   */
  meeting(box) {
    const {boxes, order} = this;
    const start = (box.offset[0] ?? 0) - this.longest;
    const stop = (box.offset[0] ?? 0) + (box.shape[0] ?? 1);
    let low = 0;
    for (let high = order.length; low < high;) {
      const middle = (low + high) >> 1;
      if ((boxes[order[middle]].offset[0] ?? 0) < start) low = middle + 1;
      else high = middle;
    }
    const found = [];
    for (; low < order.length && (boxes[order[low]].offset[0] ?? 0) < stop; low += 1) {
      const part = intersect(boxes[order[low]], box);
      if (part) found.push({place: order[low], part});
    }
    return found.sort((a, b) => a.place - b.place);
  }
}

/**
 * @param {number[]} a
 * @param {number[]} b
 */
const union = (a, b) => [...new Set([...a, ...b])].sort((x, y) => x - y);

/**
 * Boxes that are equal or disjoint, each with all that hold it.
 * @param {Region[]} regions
 * @returns {Held[]}
 */
function heldIn(regions) {
  /** @type {Map<string, Held>} */
  const byBox = new Map();
  for (const {boxes, ranks} of regions) {
    for (const box of boxes) {
      const key = JSON.stringify(box);
      const found = byBox.get(key);
      if (found) found.ranks = union(found.ranks, ranks);
      else byBox.set(key, {box, ranks});
    }
  }
  const entries = [...byBox.values()];
  const index = new Index(entries.map(({box}) => box));
  // A part belongs to the first box that has it, and those behind that meet it cut it.
  return entries.flatMap(({box, ranks}, number) => {
    /** @type {Held[]} */
    let parts = [{box, ranks}];
    for (const {place} of index.meeting(box)) {
      const other = entries[place];
      if (place === number) continue;
      parts = parts.flatMap((part) => {
        const common = intersect(part.box, other.box);
        if (!common) return [part];
        const rest = without(part.box, common).map((outside) => ({box: outside, ranks: part.ranks}));
        return place < number ? rest : [...rest, {box: common, ranks: union(part.ranks, other.ranks)}];
      });
    }
    return parts;
  });
}

/**
 * By how many positions a team moves on from turn to turn: past those that give the most, where all others give alike.
 * @param {number[]} loads
 */
function stepOf(loads) {
  const most = loads.reduce((a, b) => Math.max(a, b));
  const first = loads.filter((load) => load === most).length;
  const isRound = loads.slice(0, first).every((load) => load === most) && new Set(loads.slice(first)).size <= 1;
  return isRound ? first : 1;
}

/**
 * @param {number} a
 * @param {number} b
 * @returns {number}
 */
const gcd = (a, b) => (b === 0 ? a : gcd(b, a % b));

/** What goes from the ranks of one layout to those of another, of one tensor in any turn. */
export class Exchange {
  /**
   * @param {Region[]} source
   * @param {Region[]} target
   * @throws {UcpError} UCP-E-COVER where nobody has what is wanted
   */
  constructor(source, target) {
    const held = heldIn(source);
    const wanted = target.flatMap(({boxes, ranks}) => boxes.map((box) => ({box, ranks})));
    const index = new Index(wanted.map(({box}) => box));
    const missing = wanted.map(({box}) => product(box.shape));
    /** @type {Map<number, number>} elements that stay where they are, by rank */
    this.kept = new Map();
    /** @type {Map<string, Team & {loads: number[]}>} */
    const teams = new Map();
    for (const {box, ranks} of held) {
      const key = ranks.join();
      const team = teams.get(key) ?? {ranks, step: 1, requests: [], loads: ranks.map(() => 0)};
      teams.set(key, team);
      for (const {place, part} of index.meeting(box)) {
        const size = product(part.shape);
        missing[place] -= size;
        for (const rank of wanted[place].ranks) {
          if (ranks.includes(rank)) this.kept.set(rank, (this.kept.get(rank) ?? 0) + size);
          else {
            const position = team.loads.indexOf(Math.min(...team.loads));
            team.loads[position] += size;
            team.requests.push({position, rank, size});
          }
        }
      }
    }
    if (missing.some((size) => size > 0)) throw new UcpError('UCP-E-COVER', '', 'nobody holds all that is wanted');
    /** @type {Team[]} */
    this.teams = [...teams.values()].map(({ranks, requests, loads}) => ({ranks, requests, step: stepOf(loads)}));
  }

  /**
   * Tells who sends how many elements to whom, and what stays, of tensors that are spread alike.
   * @param {number} first turn of the first
   * @param {number} count
   * @param {(source: number, target: number, elements: number) => void} tell
   */
  count(first, count, tell) {
    for (const [rank, size] of this.kept) tell(rank, rank, size * count);
    for (const {ranks, step, requests} of this.teams) {
      const period = ranks.length / gcd(step, ranks.length);
      for (const {position, rank, size} of requests) {
        for (let phase = 0; phase < Math.min(period, count); phase += 1) {
          const times = Math.floor(count / period) + Number(phase < count % period);
          tell(ranks[(position + (first + phase) * step) % ranks.length], rank, size * times);
        }
      }
    }
  }
}
