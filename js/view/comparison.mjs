/**
 * What became of slots, atoms and modules between two checkpoints; no part of a page.
 */

import {counted} from './dom.mjs';

/** @typedef {import('./tree.mjs').AtomRow} AtomRow */
/** @typedef {import('./tree.mjs').SlotRow} SlotRow */
/** @typedef {import('./tree.mjs').Module} Module */
/** @typedef {'same' | 'changed' | 'added' | 'removed' | 'unknown'} Change what became of something between two checkpoints */
/** @typedef {{atoms: number, changed: number, bytes: number}} Changes of what is below a module; bytes of what changed */

/**
 * Whether elements of a slot can be compared with those of another, one by one: data type and shape are the same.
 * @param {SlotRow} mine
 * @param {SlotRow} other
 */
export const isAlike = (mine, other) => mine.dtype === other.dtype && mine.shape.join() === other.shape.join();

/**
 * What became of a slot between two checkpoints, by its content digests.
 * @param {SlotRow} mine
 * @param {SlotRow | undefined} other
 * @returns {Exclude<Change, 'removed'>}
 */
export function changeOfSlot(mine, other) {
  if (!other) return 'added';
  if (!isAlike(mine, other)) return 'changed';
  const [digest, before] = [mine.content ?? null, other.content ?? null];
  if (digest === null || before === null) return 'unknown';
  return digest === before ? 'same' : 'changed';
}

/**
 * What became of the slots of an atom between two checkpoints.
 * @param {Pick<AtomRow, 'slots'> | undefined} mine
 * @param {Pick<AtomRow, 'slots'> | undefined} other
 * @returns {Change}
 */
export function change(mine, other) {
  if (!mine) return 'removed';
  if (!other) return 'added';
  if (mine.slots.length !== other.slots.length) return 'changed';
  const others = new Map(other.slots.map((slot) => [slot.name, slot]));
  const changes = mine.slots.map((slot) => changeOfSlot(slot, others.get(slot.name)));
  if (changes.some((one) => one === 'changed' || one === 'added')) return 'changed';
  return changes.includes('unknown') ? 'unknown' : 'same';
}

/** @typedef {{atoms: Map<string, AtomRow>, aliases: Map<string, string>}} Side atoms by name, and names of atoms by alias */

/**
 * A side of a comparison.
 * @param {Map<string, AtomRow>} atoms
 * @returns {Side}
 */
export const sideOf = (atoms) => ({
  atoms, aliases: new Map([...atoms.values()].flatMap(({name, aliases}) => aliases.map((alias) => [alias, name]))),
});

/**
 * What is behind a name: an atom, by its name or by an alias.
 * @param {Side} side
 * @param {string} name
 */
export const behind = ({atoms, aliases}, name) => atoms.get(name) ?? atoms.get(aliases.get(name) ?? '');

/**
 * What became of the atom of a name between two checkpoints. A weight that is tied in one and stored apart in the other is
 * an alias there and an atom here.
 * @param {string} name of an atom of one of them at least
 * @param {Side} mine
 * @param {Side} other with which it is compared
 * @returns {{state: Change, told: string}} told: in words
 */
export function changeOf(name, mine, other) {
  const slots = change(behind(mine, name), behind(other, name));
  const was = other.aliases.get(name);
  const is = mine.aliases.get(name);
  /** @type {string[]} */
  const words = slots === 'same' ? [] : [slots];
  if (was !== undefined && mine.atoms.has(name)) words.unshift(`no longer an alias of ${was}`);
  else if (is !== undefined && other.atoms.has(name)) words.unshift(`an alias of ${is} now`);
  else if (mine.atoms.has(name) && other.atoms.has(name)) {
    // Names that are atoms on one of the sides say so themselves.
    /** @type {(side: Side, others: Side) => string} */
    const tied = (side, others) => (side.atoms.get(name)?.aliases ?? []).filter((alias) => !others.atoms.has(alias)).sort().join('\n');
    if (tied(mine, other) !== tied(other, mine)) words.push('other aliases');
  }
  return {state: slots === 'same' && words.length > 0 ? 'changed' : slots, told: words.join(', ')};
}

/** A checkpoint beside the one that it is compared with. */
export class Comparison {
  /** @type {WeakMap<Module, Changes>} */
  #known = new WeakMap();

  /**
   * @param {Map<string, AtomRow>} mine by name
   * @param {Map<string, AtomRow>} other
   */
  constructor(mine, other) {
    this.mine = sideOf(mine);
    this.other = sideOf(other);
  }

  /**
   * What became of an atom.
   * @param {string} name
   */
  changeOf(name) {
    return changeOf(name, this.mine, this.other);
  }

  /**
   * What became of what is below a module.
   * @param {Module} module
   * @returns {Changes}
   */
  changesOf(module) {
    const known = this.#known.get(module);
    if (known) return known;
    const found = {atoms: 0, changed: 0, bytes: 0};
    if (module.atom) {
      const {state} = this.changeOf(module.atom.name);
      const isSame = state === 'same' || state === 'unknown';
      Object.assign(found, {atoms: 1, changed: isSame ? 0 : 1, bytes: isSame ? 0 : module.bytes});
    } else {
      for (const child of module.children.values()) {
        const {atoms, changed, bytes} = this.changesOf(child);
        found.atoms += atoms;
        found.changed += changed;
        found.bytes += bytes;
      }
    }
    this.#known.set(module, found);
    return found;
  }

  /**
   * What became of a module or an atom, in words; nothing where that is nothing.
   * @param {Module} module
   */
  told(module) {
    if (module.atom) return this.changeOf(module.atom.name).told;
    const {atoms, changed} = this.changesOf(module);
    return changed === 0 ? '' : `${changed === atoms ? 'all' : changed.toLocaleString('en')} of ${counted(atoms, 'atom')} changed`;
  }
}
