/**
 * Plans of what ranks send if a checkpoint goes from its layouts to others; runs in a worker.
 */

import {product} from '../lib/boxes.mjs';
import {checkPlace} from '../lib/buffers.mjs';
import {bytesOf} from '../lib/bytes.mjs';
import {UcpError} from '../lib/errors.mjs';
import {Exchange, ranksOf, regionsOf} from '../lib/exchange.mjs';
import {parse, plain} from '../lib/json.mjs';
import {checkFit, checkSteps} from '../lib/layout.mjs';
import {checkMesh} from '../lib/mesh.mjs';
import {checkForm, checkLayout} from '../lib/pieces.mjs';

/** @typedef {import('../lib/exchange.mjs').Layout} Layout */
/** @typedef {import('../lib/documents.mjs').Slot} Slot */
/** @typedef {import('../lib/checkpoint.mjs').Checkpoint} Checkpoint */
/** @typedef {{from: string, to: string, slots: number, bytes: number, ranks: number[], moved: [number, number, number][],
 *   left: [why: string, slots: number][]}} Plan `moved` has sources, targets and bytes; `left` what nothing is planned of */

/** Ranks of the largest matrix, as of `ucp plan`. */
const MOST_RANKS = 128;

/** Slots that are spread alike. */
class Kind {
  /** How many there are. */
  count = 0;

  /**
   * @param {Slot} slot
   * @param {number} layout number of the source's
   */
  constructor({shape, place, dtype}, layout) {
    this.shape = shape;
    this.place = place;
    this.size = dtype.size;
    this.layout = layout;
  }
}

/** Why a layout takes part in no plan here, or null. */
function leftOut(steps) {
  if (steps.some(({kind}) => kind === 'partial')) return 'contributions that are not reduced yet';
  return steps.some(({kind}) => kind === 'local') ? 'entries of each rank’s own, which nobody else can take' : null;
}

/** Bytes from rank to rank. */
class Matrix {
  /** @type {Map<string, [number, number, number]>} */
  cells = new Map();

  /** Adds what of kinds goes: those of one layout take turns one after the other. */
  add(kind, first, source, target) {
    new Exchange(regionsOf(source, kind.shape), regionsOf(target, kind.shape)).count(first, kind.count, (giver, taker, elements) => {
      const key = `${giver} ${taker}`;
      const cell = this.cells.get(key) ?? [giver, taker, 0];
      cell[2] += elements * kind.size;
      this.cells.set(key, cell);
    });
  }
}

/** The ranks of meshes, ascending. */
function ranksOfAll(meshes) {
  const ranks = [...new Set(meshes.flatMap(ranksOf))].sort((a, b) => a - b);
  if (ranks.length > MOST_RANKS) {
    throw new UcpError('UCP-E-LIMIT', '', `${ranks.length} ranks are too many for a matrix of ${MOST_RANKS}: ucp plan says what each moves`);
  }
  return ranks;
}

const meshText = ({axes}) => axes.map(({name, size, sizes}) => `${name} ${size ?? sizes?.join('+')}`).join(' × ') || 'one rank';

/**
 * The plan of one slot to a layout that somebody entered.
 * @param {Checkpoint} checkpoint
 * @param {Slot} slot
 * @param {string} text JSON of the mesh, the steps and maybe the place
 * @returns {Plan}
 */
export function planOfSlot(checkpoint, slot, text) {
  const source = checkpoint.layoutOf(slot);
  if (source === null || slot.layout === null) throw new UcpError('UCP-E-MISMATCH', '', 'nothing says who held it');
  const why = leftOut(source.steps);
  if (why) throw new UcpError('UCP-E-LAYOUT', '', why);
  const {mesh = null, steps = null, place = null} = plain(parse(bytesOf(text), 'layout')) ?? {};
  checkForm({mesh, steps, place});
  const wrong = leftOut(steps);
  if (wrong) throw new UcpError('UCP-E-LAYOUT', '', wrong);
  checkLayout(mesh, steps, slot.shape, 'layout', place, slot.dtype);
  const ranks = ranksOfAll([source.mesh, mesh]);
  const kind = new Kind(slot, slot.layout);
  kind.count = 1;
  const matrix = new Matrix();
  matrix.add(kind, 0, {...source, place: slot.place}, {mesh, steps, place});
  return {
    from: meshText(source.mesh), to: meshText(mesh), slots: 1, bytes: product(slot.shape) * slot.dtype.size, ranks, moved: [...matrix.cells.values()], left: [],
  };
}

/**
 * The plan of all slots to their own layouts over meshes of other sizes.
 * @param {Checkpoint} checkpoint
 * @param {(number | null)[][]} sizes of the axes of each mesh; null of those that have no size of their own
 * @returns {Plan}
 */
export function planOfAll(checkpoint, sizes) {
  const {meshes, layouts} = checkpoint.root;
  const others = meshes.map((mesh, i) => {
    if (mesh.axes.every(({size}, k) => size === undefined || size === sizes[i][k])) return mesh;
    // Ranks of another job are counted along its axes.
    const changed = {axes: mesh.axes.map((axis, k) => (axis.size === undefined ? axis : {...axis, size: sizes[i][k] ?? axis.size}))};
    checkMesh(changed, `mesh ${i}`);
    return changed;
  });
  const ranks = ranksOfAll([...meshes, ...others]);
  const left = new Map();
  const leave = (why, count) => left.set(why, (left.get(why) ?? 0) + count);
  /** @type {Map<string, Kind>} */
  const kinds = new Map();
  for (const slot of checkpoint.atoms.flatMap(({slots}) => slots)) {
    const why = slot.layout === null ? 'no layout' : leftOut(layouts[slot.layout].steps);
    if (slot.layout === null || why) {
      leave(why, 1);
      continue;
    }
    const key = JSON.stringify([slot.layout, slot.shape, slot.place, slot.dtype.name]);
    const kind = kinds.get(key) ?? new Kind(slot, slot.layout);
    kind.count += 1;
    kinds.set(key, kind);
  }
  const matrix = new Matrix();
  const turns = layouts.map(() => 0);
  let slots = 0;
  let bytes = 0;
  for (const kind of kinds.values()) {
    const {shape, place, layout} = kind;
    const {mesh, steps} = layouts[layout];
    const target = others[mesh];
    try {
      checkSteps(target, steps, '', shape.length);
      checkPlace(target, steps, place, '');
      checkFit(target, steps, shape, '', place);
      matrix.add(kind, turns[layout], {mesh: meshes[mesh], steps, place}, {mesh: target, steps, place});
    } catch (error) {
      if (!(error instanceof UcpError)) throw error;
      leave(error.detail, kind.count);
      continue;
    }
    turns[layout] += kind.count;
    slots += kind.count;
    bytes += kind.count * product(shape) * kind.size;
  }
  return {
    from: meshes.map(meshText).join('; '), to: others.map(meshText).join('; '), slots, bytes, ranks, moved: [...matrix.cells.values()], left: [...left],
  };
}
