/**
 * Flat buffers of several tensors (SPEC section 12.1): where a slot lies, and that slots do not overlap.
 */

import {refuseLayout} from './errors.mjs';
import {isEqual} from './bytes.mjs';
import {product} from './boxes.mjs';
import {entryOf, keptAt} from './layout.mjs';
import {coordinatesOf, lookup} from './mesh.mjs';

/** @typedef {import('./layout.mjs').Mesh} Mesh */
/** @typedef {import('./layout.mjs').Step} Step */
/** @typedef {import('./layout.mjs').Place} Place */
/** @typedef {{mesh: Mesh, buffer: string, steps: Step[], place: Place, shape: number[], at: string}} Tensor one in a buffer; `buffer` is equal for those of one */

/** @param {Step[]} steps */
const concatIn = (steps) => steps.findIndex(({kind}) => kind === 'concat');

/**
 * The shards of steps, those of blocks included.
 * @param {Step[]} steps
 */
const shardsOf = (steps) => steps.flatMap((step) => [step, ...(step.steps ?? []).flatMap((own) => own ?? [])])
  .filter(({kind}) => kind === 'shard');

/**
 * Refuses a place that does not go with a layout (UCP-D-067, UCP-D-069 to UCP-D-071).
 * @param {Mesh} mesh
 * @param {Step[]} steps
 * @param {Place | null} place
 * @param {string} at
 */
export function checkPlace(mesh, steps, place, at) {
  const concat = concatIn(steps);
  if (concat < 0 && place) refuseLayout(at, 'a place without a concat');
  if (concat < 0) return;
  if (!place) refuseLayout(at, 'a concat without a place');
  const {axes = [], offsets, totals} = place;
  if (new Set(axes).size !== axes.length) refuseLayout(at, 'an axis of a place is named twice');
  const found = axes.map((name) => mesh.axes.find((axis) => axis.name === name)
    ?? refuseLayout(at, `there is no axis ${name}`));
  for (const {axis} of shardsOf(steps.slice(concat + 1))) {
    if (axis !== undefined && axes.includes(axis)) refuseLayout(at, `the buffer is split over ${axis}, an axis of the place`);
  }
  for (const {kind, axis} of steps) {
    if (kind === 'partial' && axis !== undefined && axes.includes(axis)) refuseLayout(at, `copies along ${axis} lie alike in the buffer`);
  }
  for (const {name, by} of found) {
    if (by !== undefined && !axes.includes(by)) refuseLayout(at, `${name} stands without ${by}`);
  }
  const entries = product(found.map(({size, sizes}) => size ?? /** @type {number[]} */ (sizes).reduce((a, b) => Math.max(a, b))));
  if (offsets.length !== entries || totals.length !== entries) refuseLayout(at, `a place without ${entries} entries`);
}

/**
 * Layouts of one mesh and one group that differ behind the `concat` (UCP-D-075).
 * @param {{mesh: number, steps: Step[]}[]} layouts
 * @returns {number[]} indices of those that differ from the first of their group
 */
export function unlikeInGroup(layouts) {
  /** @type {Map<string, Step[]>} of the first layout of each group */
  const tails = new Map();
  return [...layouts.keys()].filter((i) => {
    const {mesh, steps} = layouts[i];
    const concat = concatIn(steps);
    if (concat < 0) return false;
    const key = `${mesh} ${steps[concat].group}`;
    const tail = steps.slice(concat + 1);
    const first = tails.get(key) ?? tail;
    tails.set(key, first);
    return !isEqual(first, tail);
  });
}

/**
 * What a tensor takes of its buffer at a coordinate of a mesh, or null where it is not held.
 * @param {Tensor} tensor
 * @param {Mesh} part the axes that matter
 * @param {number[]} coordinate
 */
function takenAt({mesh, steps, place, shape, at}, part, coordinate) {
  const concat = concatIn(steps);
  const before = steps.filter(({kind}, i) => i < concat || kind === 'only');
  const kept = keptAt(part, before, shape, coordinate, at);
  if (kept === null) return null;
  const [start, total] = entryOf(mesh, place)(lookup(part, coordinate));
  return {start, stop: start + product(kept.shape), total};
}

/**
 * The axes on which it depends what tensors take, as a mesh.
 * @param {Tensor[]} tensors
 * @returns {Mesh}
 */
function axesOf(tensors) {
  const [{mesh}] = tensors;
  const names = new Set(tensors.flatMap(({steps, place}) => [
    ...(place.axes ?? []), ...[...shardsOf(steps), ...steps].map(({axis}) => axis)]));
  for (const {name, by} of mesh.axes) if (names.has(name)) names.add(by);
  return {axes: mesh.axes.filter(({name}) => names.has(name))};
}

/**
 * The tensors of one buffer that do not go with one before them.
 * @param {Tensor[]} tensors
 * @returns {Generator<{order: number, detail: string}>}
 */
function* faults(tensors) {
  const part = axesOf(tensors);
  for (const coordinate of coordinatesOf(part)) {
    const held = tensors.flatMap((tensor, order) => {
      const taken = takenAt(tensor, part, coordinate);
      return taken === null ? [] : [{order, ...taken}];
    });
    for (const {order, total} of held) {
      if (total !== held[0].total) yield {order, detail: 'another slot of the buffer says another length of it'};
    }
    const sorted = held.filter(({start, stop}) => start < stop).sort((a, b) => a.start - b.start);
    let last = null;
    for (const range of sorted) {
      if (last && range.start < last.stop) {
        yield {order: Math.max(range.order, last.order), detail: 'another slot takes the same elements of the buffer'};
      }
      if (!last || range.stop > last.stop) last = range;
    }
  }
}

/**
 * Slots that take what another takes of their buffer, or say another length of it (UCP-D-073,
 * UCP-D-074).
 * @param {Tensor[]} tensors in order of table rows, each with a sound layout and place
 * @returns {{at: string, detail: string}[]} for each pair the later, once
 */
export function bufferFaults(tensors) {
  /** @type {Map<string, Tensor[]>} */
  const buffers = new Map();
  for (const tensor of tensors) {
    const buffer = buffers.get(tensor.buffer) ?? [];
    buffer.push(tensor);
    buffers.set(tensor.buffer, buffer);
  }
  return [...buffers.values()].flatMap((buffer) => {
    /** @type {Map<number, string>} details by order: of several the last */
    const found = new Map();
    if (buffer.length > 1) for (const {order, detail} of faults(buffer)) found.set(order, detail);
    return [...found].map(([order, detail]) => ({at: buffer[order].at, detail}));
  });
}

/**
 * A slot with a place, as {@link bufferFaults} takes it: slots of one name, mesh and group are in one buffer.
 * @param {{name: string, place: Place, shape: number[], at: string}} slot
 * @param {{mesh: number, steps: Step[]}} layout
 * @param {Mesh[]} meshes
 */
export function tensorOf({name, place, shape, at}, {mesh, steps}, meshes) {
  const buffer = JSON.stringify([name, mesh, steps[concatIn(steps)].group]);
  return {mesh: meshes[mesh], buffer, steps, place, shape, at};
}
