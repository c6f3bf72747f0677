/**
 * Plans of what ranks send if a checkpoint goes from its layouts to others; runs in a worker.
 */

import {product} from '../lib/boxes.mjs';
import {bytesOf} from '../lib/bytes.mjs';
import {UcpError} from '../lib/errors.mjs';
import {Exchange, ranksOf, regionsOf} from '../lib/exchange.mjs';
import {parse, plain} from '../lib/json.mjs';
import {checkMesh} from '../lib/mesh.mjs';
import {PatternResolver, parsePatterns} from '../lib/patterns.mjs';
import {checkForm, checkLayout} from '../lib/pieces.mjs';
import {meshText} from './layouts.mjs';

/** @typedef {import('../lib/exchange.mjs').Layout} Layout */
/** @typedef {import('../lib/documents.mjs').Slot} Slot */
/** @typedef {import('../lib/checkpoint.mjs').Checkpoint} Checkpoint */
/** @typedef {{from: string, to: string, slots: number, bytes: number, ranks: number[], moved: [number, number, number][],
 *   left: [why: string, slots: number][]}} Plan `moved` has sources, targets and bytes; `left` what nothing is planned of */

/** @typedef {Layout & {number: number}} Target a layout, and its number among those of its side */

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

/**
 * Why a layout takes part in no plan here, or null.
 * @param {import('../lib/layout.mjs').Step[]} steps
 */
function leftOut(steps) {
  if (steps.some(({kind}) => kind === 'partial')) return 'contributions that are not reduced yet';
  return steps.some(({kind}) => kind === 'local') ? 'entries of each rank’s own, which nobody else can take' : null;
}

/** Bytes from rank to rank. */
class Matrix {
  /** @type {Map<string, [number, number, number]>} */
  cells = new Map();

  /**
   * Adds what of kinds goes: those of one layout take turns one after the other.
   * @param {Kind} kind
   * @param {number} first turn of the first of them
   * @param {Layout} source
   * @param {Layout} target
   */
  add(kind, first, source, target) {
    new Exchange(regionsOf(source, kind.shape), regionsOf(target, kind.shape)).count(first, kind.count, (giver, taker, elements) => {
      const key = `${giver} ${taker}`;
      const cell = this.cells.get(key) ?? [giver, taker, 0];
      cell[2] += elements * kind.size;
      this.cells.set(key, cell);
    });
  }
}

/**
 * The ranks of meshes, ascending.
 * @param {import('../lib/mesh.mjs').Mesh[]} meshes
 */
function ranksOfAll(meshes) {
  const ranks = [...new Set(meshes.flatMap(ranksOf))].sort((a, b) => a - b);
  if (ranks.length > MOST_RANKS) {
    throw new UcpError('UCP-E-LIMIT', '', `${ranks.length} ranks are too many for a matrix of ${MOST_RANKS}: ucp plan says what each moves`);
  }
  return ranks;
}

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
 * A plan of all slots that have somewhere to go.
 * @param {Checkpoint} checkpoint
 * @param {number[]} ranks
 * @param {(name: string, slot: Slot) => Target | string} targetOf where a slot goes, or why nowhere
 */
function planned(checkpoint, ranks, targetOf) {
  const {meshes, layouts} = checkpoint.root;
  /** @type {Map<string, number>} slots by why they are left out */
  const left = new Map();
  /** @type {(why: string, count: number) => void} */
  const leave = (why, count) => {
    left.set(why, (left.get(why) ?? 0) + count);
  };
  /** @type {Map<string, {kind: Kind, target: Target}>} */
  const kinds = new Map();
  for (const {name, slots} of checkpoint.atoms) {
    for (const slot of slots) {
      const {layout} = slot;
      const target = layout === null ? 'no layout' : leftOut(layouts[layout].steps) ?? targetOf(name, slot);
      if (layout === null || typeof target === 'string') {
        leave(/** @type {string} */ (target), 1);
        continue;
      }
      const key = JSON.stringify([slot.layout, slot.shape, slot.place, slot.dtype.name, target.number, target.place]);
      const found = kinds.get(key) ?? {kind: new Kind(slot, layout), target};
      found.kind.count += 1;
      kinds.set(key, found);
    }
  }
  const matrix = new Matrix();
  /** @type {Map<string, number>} how many slots have gone each route before */
  const turns = new Map();
  let slots = 0;
  let bytes = 0;
  for (const {kind, target} of kinds.values()) {
    const {mesh, steps} = layouts[kind.layout];
    const route = `${kind.layout} ${target.number}`;
    const turn = turns.get(route) ?? 0;
    try {
      checkLayout(target.mesh, target.steps, kind.shape, '', target.place);
      matrix.add(kind, turn, {mesh: meshes[mesh], steps, place: kind.place}, target);
    } catch (error) {
      if (!(error instanceof UcpError)) throw error;
      leave(error.detail, kind.count);
      continue;
    }
    turns.set(route, turn + kind.count);
    slots += kind.count;
    bytes += kind.count * product(kind.shape) * kind.size;
  }
  return {
    slots, bytes, ranks, moved: [...matrix.cells.values()], left: [...left],
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
  const plan = planned(checkpoint, ranksOfAll([...meshes, ...others]), (_, {layout, place}) => {
    const {mesh, steps} = layouts[layout ?? 0];
    return {
      number: layout ?? 0, mesh: others[mesh], steps, place,
    };
  });
  return {...plan, from: meshes.map((mesh) => meshText(mesh)).join('; '), to: others.map((mesh) => meshText(mesh)).join('; ')};
}

/**
 * The plan of all slots to the layouts that another checkpoint has recorded for them.
 * @param {Checkpoint} checkpoint
 * @param {Checkpoint} other
 * @returns {Plan}
 */
export function planToOther(checkpoint, other) {
  const there = new Map(other.atoms.map((atom) => [atom.name, atom]));
  const plan = planned(checkpoint, ranksOfAll([...checkpoint.root.meshes, ...other.root.meshes]), (name, {name: slotName, shape}) => {
    const found = there.get(name)?.slots.find((slot) => slot.name === slotName);
    if (!found) return 'not in the other checkpoint';
    if (found.shape.join() !== shape.join()) return 'another shape there';
    const layout = other.layoutOf(found);
    if (found.layout === null || layout === null) return 'no layout there';
    return leftOut(layout.steps) ?? {number: found.layout, ...layout, place: found.place};
  });
  return {...plan, from: 'the layouts of this checkpoint', to: 'those of the one that it is compared with'};
}

/**
 * The parameters of a pattern document, for a form.
 * @param {string} text of the document
 */
export const parametersOf = (text) => parsePatterns(bytesOf(text), 'patterns').parameters
  .map(({name, type, description, default: made}) => ({
    name, type, description, hasDefault: made !== null,
  }));

/**
 * The plan of all slots to the layouts that patterns have for them.
 * @param {Checkpoint} checkpoint
 * @param {string} text of the pattern document
 * @param {[name: string, value: number | number[]][]} settings
 * @param {string} label what to call them
 * @returns {Plan}
 */
export function planByPatterns(checkpoint, text, settings, label) {
  const resolver = new PatternResolver(parsePatterns(bytesOf(text), 'patterns'), new Map(settings));
  /** @type {Map<import('../lib/patterns.mjs').Layout, number>} */
  const numbers = new Map();
  /** @type {Map<Slot, import('../lib/patterns.mjs').Layout | null>} */
  const targets = new Map();
  for (const {name, slots} of checkpoint.atoms) {
    for (const slot of slots) {
      const layout = resolver.layoutOf(name, slot.name, slot.shape);
      targets.set(slot, layout);
      if (layout && !numbers.has(layout)) numbers.set(layout, numbers.size);
    }
  }
  const meshes = [...new Set([...numbers.keys()].map(({mesh}) => mesh))];
  const plan = planned(checkpoint, ranksOfAll([...checkpoint.root.meshes, ...meshes]), (_, slot) => {
    const layout = targets.get(slot);
    if (!layout) return 'the patterns leave it alone';
    return leftOut(layout.steps) ?? {number: numbers.get(layout) ?? 0, ...layout, place: slot.place};
  });
  return {...plan, from: 'the layouts of this checkpoint', to: [label, ...settings.map(([name, value]) => `${name}=${value}`)].join(' ')};
}
