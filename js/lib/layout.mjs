/**
 * Layouts (SPEC section 12): which are well formed, and what a coordinate keeps.
 *
 * Steps act on dimensions of the local tensor one by one, so that a layout falls into *phases*:
 * `view` and `permute`, which make the dimensions; then up to `flatten` each dimension on its own;
 * after it, the one dimension of the flat tensor.
 */

import {UcpError, refuseLayout} from './errors.mjs';
import {product} from './boxes.mjs';
import {
  coordinatesOf, countCoordinates, lookup, positionOf,
} from './mesh.mjs';
import {canReduce, canScale} from './numbers.mjs';
import {extentOf, keep, merge} from './spans.mjs';
import {viewed} from './views.mjs';

/** @typedef {import('./mesh.mjs').Mesh} Mesh */
/** @typedef {import('./spans.mjs').Span} Span */
/** @typedef {{kind: string, axis?: string, dim?: number, rule?: string, count?: number,
 *   sizes?: number[], steps?: (Step[] | null)[], coordinates?: number[], shape?: number[],
 *   order?: number[], to?: number, multiple?: number, group?: string, reduce?: string,
 *   exponent?: number, resize?: string, axes?: string[],
 *   entry?: (where: (axis: string) => [position: number, size: number]) => [offset: number, total: number]}} Step
 *   `axes` and `entry` are of a `concat` that has its place */
/** @typedef {Required<Omit<Step, 'sizes' | 'steps' | 'count' | 'rule' | 'to'>> & Pick<Step, 'sizes' | 'steps' | 'count' | 'rule' | 'to'>} KnownStep
 *   one whose kind is known, and with it which members it has */
/** @typedef {(axis: string) => [position: number, size: number]} Where what a coordinate says of an axis */
/** @typedef {{offsets: number[], totals: number[], axes?: string[]}} Place */

/** Most blocks of a rule (UCP-D-059). */
export const MAX_BLOCKS = 2 ** 20;
/** Most ranges that a coordinate keeps (UCP-D-066). */
export const MAX_RANGES = 2 ** 20;

/** The kinds of steps that are implemented. */
export const KINDS = new Set(['view', 'permute', 'shard', 'blocks', 'join', 'pad', 'flatten', 'only', 'concat', 'partial', 'scale',
  'local']);

/**
 * What of a layout is defined and not implemented here, or null.
 * @param {Step[]} steps that satisfy their schema
 * @returns {string | null}
 */
export function unsupportedIn(steps) {
  const step = steps.find(({kind}) => !KINDS.has(kind));
  return step ? `the step ${step.kind}` : null;
}

/**
 * Refuses steps that no tensor could have: those that break what the table of SPEC section 12 has
 * in its column "of the layout alone".
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {string} at
 * @param {number} [ndim] of the tensor, where it is known
 */
export function checkSteps(mesh, steps, at, ndim = Infinity) {
  const axes = new Map(mesh.axes.map((axis) => [axis.name, axis]));
  /** @type {Set<string>} */
  const used = new Set();
  /**
   * Open blocks by dimension: the axes that they have used in steps of their own, and whether all
   * have such steps.
   * @type {Map<number, {axes: Set<string>, all: boolean}>}
   */
  const open = new Map();
  let dims = ndim;
  let flat = false;
  let buffered = false;

  /** @param {KnownStep | Step} step */
  const checkShard = (step) => {
    const axis = axes.get(step.axis ?? '');
    if (!axis) refuseLayout(at, `there is no axis ${step.axis}`);
    if (step.sizes && axis.by !== undefined) refuseLayout(at, `a shard over ${step.axis} has sizes`);
    if (step.sizes && step.sizes.length !== axis.size) {
      refuseLayout(at, `sizes are not one per position of ${step.axis}`);
    }
  };
  /**
   * Refuses the use of an axis after one whose size it decides (UCP-D-047).
   * @param {string} axis
   * @param {Iterable<string>} earlier
   */
  const checkOrder = (axis, earlier) => {
    for (const name of earlier) {
      if (axes.get(name)?.by === axis) refuseLayout(at, `the axis ${axis} is used after ${name}`);
    }
  };
  /** @param {string} axis */
  const use = (axis) => {
    if (used.has(axis)) refuseLayout(at, `the axis ${axis} is used twice`);
    checkOrder(axis, used);
    used.add(axis);
  };
  const reductions = new Set(steps.filter(({kind}) => kind === 'partial').map(({reduce}) => reduce));
  if (reductions.size > 1) refuseLayout(at, 'two kinds of reductions');
  if (steps.filter(({kind}) => kind === 'scale').length > 1) refuseLayout(at, 'a second scale');
  if (steps.length > 1 && steps.some(({kind}) => kind === 'local')) refuseLayout(at, 'a local is not the only step');
  /** @type {Record<string, (step: KnownStep) => void>} */
  const handlers = {
    scale() {},
    local() {},
    partial(step) {
      const axis = axes.get(step.axis);
      if (!axis) refuseLayout(at, `there is no axis ${step.axis}`);
      if (axis.size === undefined) refuseLayout(at, `contributions along ${step.axis} are not equally many`);
      use(step.axis);
    },
    view(step) {
      dims = step.shape.length;
    },
    permute({order}) {
      if (dims !== Infinity && order.length !== dims) refuseLayout(at, `an order of ${order.length} of ${dims} dimensions`);
      dims = order.length;
      if (new Set(order).size !== dims || order.some((dim) => dim >= dims)) {
        refuseLayout(at, 'an order does not name every dimension once');
      }
    },
    pad(step) {
      if (open.has(step.dim)) refuseLayout(at, `the blocks of dimension ${step.dim} have not ended`);
    },
    shard(step) {
      checkShard(step);
      const own = open.get(step.dim);
      if (own?.all) refuseLayout(at, `all blocks of dimension ${step.dim} have steps of their own`);
      // UCP-D-046: what blocks used for themselves, the other blocks may use once.
      if (own?.axes.delete(step.axis)) {
        checkOrder(step.axis, used);
        return;
      }
      use(step.axis);
    },
    blocks(step) {
      if (open.has(step.dim)) refuseLayout(at, `the blocks of dimension ${step.dim} have not ended`);
      const own = new Set();
      if ((step.count ?? 0) > MAX_BLOCKS) throw new UcpError('UCP-E-LIMIT', at, `more than ${MAX_BLOCKS} blocks`);
      if (step.steps && step.steps.length !== (step.count ?? step.sizes?.length)) {
        refuseLayout(at, 'steps are not one per block');
      }
      for (const shards of step.steps ?? []) {
        const seen = new Set();
        for (const shard of /** @type {KnownStep[]} */ (shards ?? [])) {
          checkShard(shard);
          if (shard.dim !== step.dim) refuseLayout(at, 'a step of a block is on another dimension');
          if (seen.has(shard.axis)) refuseLayout(at, `a block uses the axis ${shard.axis} twice`);
          checkOrder(shard.axis, [...used, ...seen]);
          seen.add(shard.axis);
          own.add(shard.axis);
        }
      }
      for (const axis of own) {
        if (used.has(axis)) refuseLayout(at, `the axis ${axis} is used twice`);
      }
      own.forEach((axis) => used.add(axis)); // blocks stand beside each other, and not after
      const all = step.steps !== undefined && step.steps.every((shards) => shards !== null);
      open.set(step.dim, {axes: own, all});
    },
    join(step) {
      if (!open.delete(step.dim)) refuseLayout(at, `dimension ${step.dim} has no open blocks`);
    },
    concat() {
      if (!flat || open.size > 0) refuseLayout(at, 'a concat that is not of a flat tensor without open blocks');
      if (buffered) refuseLayout(at, 'a second concat');
      buffered = true;
    },
    flatten() {
      if (flat) refuseLayout(at, 'a second flatten');
      flat = true;
      dims = 1;
      open.clear();
    },
    only(step) {
      const axis = axes.get(step.axis);
      if (!axis) refuseLayout(at, `there is no axis ${step.axis}`);
      use(step.axis);
      const size = axis.size ?? /** @type {number[]} */ (axis.sizes).reduce((a, b) => Math.min(a, b));
      if (step.coordinates.some((position) => position >= size)) {
        refuseLayout(at, `a coordinate lies outside the axis ${step.axis}`);
      }
      if (step.coordinates.some((position, i) => i > 0 && position <= step.coordinates[i - 1])) {
        refuseLayout(at, 'coordinates are not ascending');
      }
    },
  };
  let began = false;
  for (const step of steps) {
    if (step.kind === 'view' || step.kind === 'permute') {
      if (began) refuseLayout(at, `${step.kind} comes behind another step`);
    } else if (!['only', 'partial', 'scale'].includes(step.kind)) began = true;
    if (step.dim !== undefined && step.dim >= dims) refuseLayout(at, `there is no dimension ${step.dim}`);
    handlers[step.kind](/** @type {KnownStep} */ (step));
  }
}

/**
 * What a place says of a coordinate (SPEC section 12.1): elements before the tensor, and of the buffer.
 * @param {Mesh} mesh
 * @param {Place} place that goes with it
 * @returns {(where: (axis: string) => [position: number, size: number]) => [offset: number, total: number]}
 */
export function entryOf(mesh, {axes = [], offsets, totals}) {
  const sizes = axes.map((name) => {
    const {size, sizes: ragged} = /** @type {import('./mesh.mjs').Axis} */ (mesh.axes.find((axis) => axis.name === name));
    return size ?? /** @type {number[]} */ (ragged).reduce((a, b) => Math.max(a, b));
  });
  return (where) => {
    const i = axes.reduce((index, axis, k) => index * sizes[k] + where(axis)[0], 0);
    return [offsets[i], totals[i]];
  };
}

/**
 * Refuses steps that a data type does not go with (UCP-D-078, UCP-D-082).
 * @param {Step[]} steps
 * @param {import('./dtypes.mjs').DataType} dtype
 * @param {string} at
 */
export function checkDtype(steps, dtype, at) {
  for (const {kind, reduce} of steps) {
    if (kind === 'partial' && !canReduce(dtype.name, reduce)) refuseLayout(at, `a ${reduce} of ${dtype.name}`);
    if (kind === 'scale' && !canScale(dtype.name)) refuseLayout(at, `a factor of ${dtype.name}`);
  }
}

/**
 * Steps with what the place says in the `concat`.
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {Place | null} place
 * @returns {Step[]}
 */
function withPlace(mesh, steps, place) {
  if (!place) return steps;
  return steps.map((step) => (
    step.kind === 'concat' ? {...step, axes: place.axes ?? [], entry: entryOf(mesh, place)} : step));
}

/**
 * The phases of a layout: steps by dimension before `flatten`, and those after it or null.
 * @param {Step[]} steps
 * @param {number} ndim
 */
function phasesOf(steps, ndim) {
  const flatten = steps.findIndex((step) => step.kind === 'flatten');
  /** @param {Step} step */
  const acts = (step) => ['shard', 'blocks', 'join', 'pad', 'concat'].includes(step.kind);
  const before = (flatten < 0 ? steps : steps.slice(0, flatten)).filter(acts);
  return {
    byDim: Array.from({length: ndim}, (_, dim) => before.filter((step) => step.dim === dim)),
    after: flatten < 0 ? null : steps.slice(flatten + 1).filter(acts),
  };
}

/**
 * Refuses a local tensor whose elements cannot be counted (UCP-D-065).
 * @param {number[]} extents
 * @param {string} at
 */
function checkCount(extents, at) {
  if (product(extents.map((extent) => Math.max(1, extent))) > Number.MAX_SAFE_INTEGER) {
    throw new UcpError('UCP-E-LIMIT', at, 'a local tensor has too many elements');
  }
}

/**
 * @typedef {object} Kept
 * @property {import('./views.mjs').Viewed} viewed
 * @property {Span[][]} dims spans of every dimension that `view` and `permute` make
 * @property {Span[] | null} flat spans of the flat tensor of what dims keep
 * @property {number[]} shape of the local tensor
 */

/**
 * What a coordinate keeps.
 * @param {Mesh} mesh
 * @param {Step[]} steps checked by {@link checkSteps}
 * @param {number[]} shape
 * @param {number[]} coordinate
 * @param {string} at
 * @param {Place | null} [place] that goes with the layout
 * @returns {Kept | null} null where it holds nothing
 */
export function keptAt(mesh, steps, shape, coordinate, at, place = null) {
  const where = lookup(mesh, coordinate);
  if (steps.some((step) => step.kind === 'only'
      && !step.coordinates?.includes(where(step.axis ?? '')[0]))) return null;
  if (steps[0]?.kind === 'local') {
    const entry = positionOf(mesh, coordinate);
    const inner = shape.slice(1);
    /** @type {Span[][]} */
    const dims = [[[entry, entry + 1]], ...inner.map((extent) => /** @type {Span[]} */ (extent > 0 ? [[0, extent]] : []))];
    return {viewed: viewed(shape, [], at), dims, flat: null, shape: inner};
  }
  const view = viewed(shape, steps, at);
  const {byDim, after} = phasesOf(withPlace(mesh, steps, place), view.extents.length);
  const dims = view.extents.map((extent, dim) => merge(keep(extent, byDim[dim], where, at)));
  const extents = dims.map(extentOf);
  checkCount(extents, at);
  if (after === null) return {viewed: view, dims, flat: null, shape: extents};
  const flat = merge(keep(product(extents), after, where, at));
  checkCount([extentOf(flat)], at);
  return {viewed: view, dims, flat, shape: [extentOf(flat)]};
}

/**
 * Steps whose fit depends on the extent.
 * @param {Step} step
 */
const fits = (step) => !step.sizes && step.rule !== 'even'
  && !['blocks', 'view', 'permute', 'pad', 'concat', 'local'].includes(step.kind);

/**
 * Refuses a layout that does not fit a shape at some coordinate (UCP-D-051, UCP-D-050, UCP-D-060, UCP-D-052, UCP-D-055),
 * or a buffer that does not fit a tensor (UCP-D-072); or that cuts it into too many ranges (UCP-D-066), or pads it too far (UCP-D-065).
 *
 * A dimension depends only on the axes that its own steps name, and on those that decide their
 * sizes. Where no size is decided so, no axis acts on two dimensions, and it is enough to visit the
 * positions of those axes, one dimension after the other.
 * An accepted layout covers its tensor (SPEC section 12): the parts of each step together are what it
 * cuts, at every position of the axes before, and `only` leaves a position wherever there is one.
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {number[]} shape
 * @param {string} at
 * @param {Place | null} [place] that goes with the layout
 */
export function checkFit(mesh, steps, shape, at, place = null) {
  if (steps.every(fits)) return;
  if (steps[0].kind === 'local') {
    if (shape[0] !== countCoordinates(mesh)) refuseLayout(at, `[${shape}] has not one entry for each coordinate`);
    return;
  }
  const {extents: begun} = viewed(shape, steps, at);
  const {byDim, after} = phasesOf(withPlace(mesh, steps, place), begun.length);
  const ragged = new Map(mesh.axes.map(({name, by}) => [name, by]));
  /** @param {Step[]} list */
  const namedBy = (list) => {
    const names = new Set(list.flatMap((step) => [step, ...(step.steps ?? []).flatMap((own) => own ?? [])])
      .flatMap(({axis, axes = []}) => [axis, ragged.get(axis ?? ''), ...axes]));
    return {axes: mesh.axes.filter(({name}) => names.has(name))};
  };
  /**
   * Runs a check at every coordinate that matters to steps.
   * @param {Step[]} list
   * @param {(where: Where) => void} check
   */
  const visit = (list, check) => {
    const part = namedBy(list);
    for (const coordinate of coordinatesOf(part)) {
      const where = lookup(part, coordinate);
      const holds = steps.every(({kind, axis = '', coordinates}) => kind !== 'only'
        || !part.axes.some(({name}) => name === axis) || coordinates?.includes(where(axis)[0]));
      if (holds) check(where);
    }
  };
  const tooMany = () => new UcpError('UCP-E-LIMIT', at, `more than ${MAX_RANGES} ranges`);
  /**
   * Maximal ranges, padding aside.
   * @param {Span[]} spans
   */
  const rangesOf = (spans) => merge(spans).filter(([, , padding]) => !padding).length;
  let ranges = 1;
  const found = begun.map((extent, dim) => {
    /** @type {Set<number>} */
    const extents = new Set();
    let most = 0;
    visit(byDim[dim], (where) => {
      const spans = keep(extent, byDim[dim], where, at);
      most = Math.max(most, rangesOf(spans));
      extents.add(extentOf(spans));
    });
    ranges *= most;
    return extents;
  });
  if (ranges > MAX_RANGES) throw tooMany();
  checkCount(found.map((extents) => [...extents].reduce((a, b) => Math.max(a, b), 0)), at);
  if (after === null) return;
  /** @type {(extent: number, where: Where) => void} */
  const checkFlat = (extent, where) => {
    const spans = keep(extent, after, where, at);
    if (rangesOf(spans) > MAX_RANGES) throw tooMany();
    checkCount([extentOf(spans)], at);
  };
  if (place || mesh.axes.some(({by}) => by !== undefined)) {
    visit([...byDim.flat(), ...after], (where) => checkFlat(product(
      begun.map((extent, dim) => extentOf(keep(extent, byDim[dim], where, at)))), where));
    return;
  }
  let sizes = new Set([1]);
  for (const extents of found) {
    sizes = new Set([...sizes].flatMap((size) => [...extents].map((extent) => size * extent)));
  }
  for (const size of sizes) visit(after, (where) => checkFlat(size, where));
}
