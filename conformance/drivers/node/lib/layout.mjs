/**
 * Meshes and layouts (SPEC section 12): which are well formed, and what a coordinate keeps.
 *
 * Steps act on dimensions of the local tensor one by one, so that a layout falls into *phases*:
 * before `flatten`, each dimension of the logical tensor on its own; after it, the one dimension
 * of the flat tensor.
 */

import {UcpError} from './errors.mjs';
import {product} from './boxes.mjs';
import {ceilDiv, floorDiv} from './grid.mjs';

/** @typedef {{name: string, size?: number, by?: string, sizes?: number[]}} Axis size, or by and sizes */
/** @typedef {{axes: Axis[], ranks?: number[]}} Mesh */
/** @typedef {{kind: string, axis?: string, dim?: number, rule?: string, count?: number,
 *   sizes?: number[], steps?: (Step[] | null)[], coordinates?: number[]}} Step */
/** @typedef {[start: number, stop: number]} Span of a dimension */
/** @typedef {{spans: Span[], own: boolean}} Block */

/** Most coordinates of a mesh (UCP-D-071). */
export const MAX_COORDINATES = 2 ** 20;
/** Most blocks of a rule (UCP-D-090). */
export const MAX_BLOCKS = 2 ** 20;
/** Most boxes of a slot at a coordinate, before they are joined (UCP-D-091). */
export const MAX_BOXES = 2 ** 20;

const refuse = (at, detail) => {
  throw new UcpError('UCP-E-LAYOUT', at, detail);
};

const KINDS = new Set(['shard', 'blocks', 'join', 'flatten', 'only']);

/**
 * What of a layout is defined and not implemented here, or null.
 * @param {{steps: Step[]}} layout that satisfies its schema
 * @returns {string | null}
 */
export function unsupportedIn({steps}) {
  const step = steps.find(({kind}) => !KINDS.has(kind));
  return step ? `the step ${step.kind}` : null;
}

/** The size of an axis at a coordinate, of which the positions before the axis are enough. */
function sizeAt(mesh, i, coordinate) {
  const {size, by, sizes} = mesh.axes[i];
  return size ?? sizes[coordinate[mesh.axes.findIndex(({name}) => name === by)]];
}

/** The number of coordinates: an axis and those whose sizes it decides count together. */
function countCoordinates({axes}) {
  return product(axes.filter(({size}) => size !== undefined).map(({name, size}) => {
    const ragged = axes.filter(({by}) => by === name);
    if (ragged.length === 0) return size;
    const at = (position) => product(ragged.map(({sizes}) => sizes[position]));
    return ragged[0].sizes.reduce((sum, _, position) => sum + at(position), 0);
  }));
}

/** Refuses a mesh that breaks UCP-D-059, UCP-D-060, UCP-D-071, UCP-D-082 or UCP-D-083. */
export function checkMesh(mesh, at) {
  const names = mesh.axes.map((axis) => axis.name);
  if (names.includes('')) refuse(at, 'an axis has an empty name');
  if (new Set(names).size !== names.length) refuse(at, 'two axes have the same name');
  mesh.axes.forEach(({by, sizes}, i) => {
    if (by === undefined) return;
    const earlier = mesh.axes.slice(0, i).find(({name}) => name === by);
    if (earlier?.size === undefined) refuse(at, `${by} is no earlier axis with a size`);
    if (sizes.length !== earlier.size) refuse(at, `sizes are not one per position of ${by}`);
  });
  const coordinates = countCoordinates(mesh);
  if (coordinates > MAX_COORDINATES) {
    throw new UcpError('UCP-E-LIMIT', at, `more than ${MAX_COORDINATES} coordinates`);
  }
  if (mesh.ranks && (mesh.ranks.length !== coordinates
      || new Set(mesh.ranks).size !== coordinates)) {
    refuse(at, `ranks are not ${coordinates} distinct integers`);
  }
}

/** All coordinates of a mesh, in row-major order. */
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

/** Whether a mesh has a coordinate. */
export function hasCoordinate(mesh, coordinate) {
  return coordinate.length === mesh.axes.length
    && coordinate.every((position, i) => position < sizeAt(mesh, i, coordinate));
}

/** What a coordinate says of an axis: its position, and how many there are. */
function lookup(mesh, coordinate) {
  return (name) => {
    const i = mesh.axes.findIndex((axis) => axis.name === name);
    return [coordinate[i], sizeAt(mesh, i, coordinate)];
  };
}

/**
 * Refuses steps that no tensor could have: UCP-D-062, UCP-D-063, UCP-D-065, UCP-D-066, UCP-D-077
 * to UCP-D-080, UCP-D-084, UCP-D-085, UCP-D-090.
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {string} at
 * @param {number} [ndim] of the tensor, where it is known
 */
export function checkSteps(mesh, steps, at, ndim = Infinity) {
  const axes = new Map(mesh.axes.map((axis) => [axis.name, axis]));
  const used = new Set();
  /**
   * Open blocks by dimension: the axes that they have used in steps of their own, and whether all
   * have such steps.
   * @type {Map<number, {axes: Set<string>, all: boolean}>}
   */
  const open = new Map();
  let dims = ndim;
  let flat = false;

  const checkShard = (step) => {
    const axis = axes.get(step.axis);
    if (!axis) refuse(at, `there is no axis ${step.axis}`);
    if (step.sizes && axis.by !== undefined) refuse(at, `a shard over ${step.axis} has sizes`);
    if (step.sizes && step.sizes.length !== axis.size) {
      refuse(at, `sizes are not one per position of ${step.axis}`);
    }
  };
  /** Refuses the use of an axis after one whose size it decides (UCP-D-084). */
  const checkOrder = (axis, earlier) => {
    for (const name of earlier) {
      if (axes.get(name).by === axis) refuse(at, `the axis ${axis} is used after ${name}`);
    }
  };
  const use = (axis) => {
    if (used.has(axis)) refuse(at, `the axis ${axis} is used twice`);
    checkOrder(axis, used);
    used.add(axis);
  };
  const handlers = {
    shard(step) {
      checkShard(step);
      const own = open.get(step.dim);
      if (own?.all) refuse(at, `all blocks of dimension ${step.dim} have steps of their own`);
      // UCP-D-063: what blocks used for themselves, the other blocks may use once.
      if (own?.axes.delete(step.axis)) {
        checkOrder(step.axis, used);
        return;
      }
      use(step.axis);
    },
    blocks(step) {
      if (open.has(step.dim)) refuse(at, `the blocks of dimension ${step.dim} have not ended`);
      const own = new Set();
      if (step.count > MAX_BLOCKS) throw new UcpError('UCP-E-LIMIT', at, `more than ${MAX_BLOCKS} blocks`);
      if (step.steps && step.steps.length !== (step.count ?? step.sizes.length)) {
        refuse(at, 'steps are not one per block');
      }
      for (const shards of step.steps ?? []) {
        const seen = new Set();
        for (const shard of shards ?? []) {
          checkShard(shard);
          if (shard.dim !== step.dim) refuse(at, 'a step of a block is on another dimension');
          if (seen.has(shard.axis)) refuse(at, `a block uses the axis ${shard.axis} twice`);
          checkOrder(shard.axis, [...used, ...seen]);
          seen.add(shard.axis);
          own.add(shard.axis);
        }
      }
      for (const axis of own) {
        if (used.has(axis)) refuse(at, `the axis ${axis} is used twice`);
      }
      own.forEach((axis) => used.add(axis)); // blocks stand beside each other, and not after
      const all = step.steps !== undefined && step.steps.every((shards) => shards !== null);
      open.set(step.dim, {axes: own, all});
    },
    join(step) {
      if (!open.delete(step.dim)) refuse(at, `dimension ${step.dim} has no open blocks`);
    },
    flatten() {
      if (flat) refuse(at, 'a second flatten');
      flat = true;
      dims = 1;
      open.clear();
    },
    only(step) {
      const axis = axes.get(step.axis);
      if (!axis) refuse(at, `there is no axis ${step.axis}`);
      use(step.axis);
      const size = axis.size ?? axis.sizes.reduce((a, b) => Math.min(a, b));
      if (step.coordinates.some((position) => position >= size)) {
        refuse(at, `a coordinate lies outside the axis ${step.axis}`);
      }
      if (step.coordinates.some((position, i) => i > 0 && position <= step.coordinates[i - 1])) {
        refuse(at, 'coordinates are not ascending');
      }
    },
  };
  for (const step of steps) {
    if (step.dim !== undefined && step.dim >= dims) refuse(at, `there is no dimension ${step.dim}`);
    handlers[step.kind](step);
  }
}

/** The i-th part of `extent` elements that a shard step cuts, as [start, stop). */
function partOf(step, size, i, extent, at) {
  if (step.sizes) {
    if (step.sizes.reduce((a, b) => a + b, 0) !== extent) {
      refuse(at, `sizes of a shard do not sum to ${extent}`);
    }
    const start = step.sizes.slice(0, i).reduce((a, b) => a + b, 0);
    return [start, start + step.sizes[i]];
  }
  if (step.rule === 'ceil') {
    const c = ceilDiv(extent, size);
    return [Math.min(extent, i * c), Math.min(extent, (i + 1) * c)];
  }
  const base = floorDiv(extent, size);
  const extra = extent % size;
  if (step.rule === 'even' && extra !== 0) refuse(at, `${extent} is not divisible by ${size}`);
  const start = i * base + Math.min(i, extra);
  return [start, start + base + (i < extra ? 1 : 0)];
}

const extentOf = (spans) => spans.reduce((sum, [start, stop]) => sum + stop - start, 0);

/** Elements [start, stop) of the concatenation of spans. */
function slice(spans, start, stop) {
  const kept = [];
  let before = 0;
  for (const [from, to] of spans) {
    const first = Math.max(from, from + start - before);
    const last = Math.min(to, from + stop - before);
    if (first < last) kept.push([first, last]);
    before += to - from;
  }
  return kept;
}

/** Consecutive blocks of the concatenation of spans, in one pass over both. */
function cut(spans, sizes) {
  let next = 0;
  let within = 0;
  return sizes.map((size) => {
    const block = [];
    for (let left = size; left > 0;) {
      const [from, to] = spans[next];
      const take = Math.min(left, to - from - within);
      block.push([from + within, from + within + take]);
      left -= take;
      within += take;
      if (from + within === to) {
        next += 1;
        within = 0;
      }
    }
    return block;
  });
}

/** The sizes of blocks, which a rule may leave to the extent. */
function blockSizes(step, extent, at) {
  if (step.sizes) {
    const total = step.sizes.reduce((a, b) => a + b, 0);
    if (total !== extent) refuse(at, `sizes of blocks do not sum to ${extent}`);
    return step.sizes;
  }
  return Array.from({length: step.count}, (_, i) => {
    const [start, stop] = partOf(step, step.count, i, extent, at);
    return stop - start;
  });
}

/** Sorted spans, with those that touch merged. */
function merge(spans) {
  const merged = [];
  for (const span of spans) {
    const last = merged.at(-1);
    if (last && last[1] === span[0]) last[1] = span[1];
    else merged.push([...span]);
  }
  return merged;
}

/**
 * What is kept of a dimension, after the steps of one phase that act on it.
 * @param {number} extent
 * @param {Step[]} steps of kind shard, blocks and join, all on this dimension
 * @param {(axis: string) => [position: number, size: number]} where
 * @param {string} at
 * @returns {Span[]} disjoint, ascending, not empty; those of neighbouring blocks may touch
 */
function keep(extent, steps, where, at) {
  /** @type {Block[]} */
  let blocks = [{spans: extent > 0 ? [[0, extent]] : [], own: false}];
  const shard = (spans, step) => {
    const [position, size] = where(step.axis);
    return slice(spans, ...partOf(step, size, position, extentOf(spans), at));
  };
  for (const step of steps) {
    if (step.kind === 'shard') {
      blocks = blocks.map((block) => (
        block.own ? block : {spans: shard(block.spans, step), own: false}));
    } else if (step.kind === 'join') {
      blocks = [{spans: blocks.flatMap((block) => block.spans), own: false}];
    } else {
      const [{spans}] = blocks;
      blocks = cut(spans, blockSizes(step, extentOf(spans), at)).map((part, i) => {
        const own = step.steps?.[i] ?? null;
        return own === null ? {spans: part, own: false} : {spans: own.reduce(shard, part), own: true};
      });
    }
  }
  return blocks.flatMap((block) => block.spans);
}

/** The phases of a layout: steps by dimension before `flatten`, and those after it or null. */
function phasesOf(steps, ndim) {
  const flatten = steps.findIndex((step) => step.kind === 'flatten');
  const acts = (step) => ['shard', 'blocks', 'join'].includes(step.kind);
  const before = (flatten < 0 ? steps : steps.slice(0, flatten)).filter(acts);
  return {
    byDim: Array.from({length: ndim}, (_, dim) => before.filter((step) => step.dim === dim)),
    after: flatten < 0 ? null : steps.slice(flatten + 1).filter(acts),
  };
}

/**
 * What a coordinate keeps: spans of every dimension, and spans of the flat tensor or null.
 * @param {Mesh} mesh
 * @param {Step[]} steps checked by {@link checkSteps}
 * @param {number[]} shape
 * @param {number[]} coordinate
 * @param {string} at
 * @returns {{dims: Span[][], flat: Span[] | null, shape: number[]} | null} null where it holds nothing
 */
export function keptAt(mesh, steps, shape, coordinate, at) {
  const where = lookup(mesh, coordinate);
  if (steps.some((step) => step.kind === 'only'
      && !step.coordinates.includes(where(step.axis)[0]))) return null;
  const {byDim, after} = phasesOf(steps, shape.length);
  const dims = shape.map((extent, dim) => merge(keep(extent, byDim[dim], where, at)));
  const extents = dims.map(extentOf);
  if (after === null) return {dims, flat: null, shape: extents};
  const flat = merge(keep(product(extents), after, where, at));
  return {dims, flat, shape: [extentOf(flat)]};
}

/**
 * Refuses a layout that does not fit a shape at some coordinate (UCP-D-064), or cuts it into too
 * many boxes (UCP-D-091).
 *
 * A dimension depends only on the axes that its own steps name, and on those that decide their
 * sizes. Where no size is decided so, no axis acts on two dimensions, and it is enough to visit the
 * positions of those axes, one dimension after the other.
 * An accepted layout covers its tensor (UCP-D-070): the parts of each step together are what it
 * cuts, at every position of the axes before, and `only` leaves a position wherever there is one.
 */
export function checkFit(mesh, steps, shape, at) {
  if (steps.every((step) => step.kind !== 'blocks' && !step.sizes && step.rule !== 'even')) return;
  const {byDim, after} = phasesOf(steps, shape.length);
  const ragged = new Map(mesh.axes.map(({name, by}) => [name, by]));
  const namedBy = (list) => {
    const names = new Set(list.flatMap((step) => [step, ...(step.steps ?? []).flatMap((own) => own ?? [])])
      .flatMap(({axis}) => (axis === undefined ? [] : [axis, ragged.get(axis)])));
    return {axes: mesh.axes.filter(({name}) => names.has(name))};
  };
  /** Runs a check at every coordinate that matters to steps. */
  const visit = (list, check) => {
    const part = namedBy(list);
    for (const coordinate of coordinatesOf(part)) check(lookup(part, coordinate));
  };
  let boxes = 1;
  const found = shape.map((extent, dim) => {
    const extents = new Set();
    let most = 0;
    visit(byDim[dim], (where) => {
      const spans = keep(extent, byDim[dim], where, at);
      most = Math.max(most, spans.length);
      extents.add(extentOf(spans));
    });
    boxes *= most;
    return extents;
  });
  if (boxes > MAX_BOXES) throw new UcpError('UCP-E-LIMIT', at, `more than ${MAX_BOXES} boxes`);
  if (after === null) return;
  const checkFlat = (extent, where) => {
    if (keep(extent, after, where, at).length > MAX_BOXES) {
      throw new UcpError('UCP-E-LIMIT', at, `more than ${MAX_BOXES} boxes`);
    }
  };
  if (mesh.axes.some(({by}) => by !== undefined)) {
    visit([...byDim.flat(), ...after], (where) => checkFlat(product(
      shape.map((extent, dim) => extentOf(keep(extent, byDim[dim], where, at)))), where));
    return;
  }
  let sizes = new Set([1]);
  for (const extents of found) {
    sizes = new Set([...sizes].flatMap((size) => [...extents].map((extent) => size * extent)));
  }
  for (const size of sizes) visit(after, (where) => checkFlat(size, where));
}
