/**
 * A checkpoint that is open for reading: documents as they are needed (SPEC section 17.1).
 */

import {Problems, UcpError} from './errors.mjs';
import {place, plain} from './json.mjs';
import {
  checkState, fetchDocument, fetchReferenced, Names, readAtoms, readPacks,
} from './documents.mjs';
import {ROOT_KEY, compareUtf8} from './names.mjs';
import {kindsOfAtoms} from './pipeline.mjs';
import {MAX_TABLE, openRoot} from './root.mjs';
import {checkSegments} from './segments.mjs';
import {ChunkTable} from './table.mjs';

/** @typedef {import('./documents.mjs').Atom} Atom */
/** @typedef {import('./documents.mjs').Slot} Slot */

/**
 * What is made on first use, and kept.
 * @template T
 * @param {Map<string, unknown>} cache which has of each key what the same call makes
 * @param {string} key
 * @param {() => T} make
 * @returns {T}
 */
const once = (cache, key, make) => {
  if (!cache.has(key)) cache.set(key, make());
  return /** @type {T} */ (cache.get(key));
};

export class Checkpoint {
  /** @type {Map<string, unknown>} */
  #cache = new Map();

  /** @param {import('./stores.mjs').Store} store */
  constructor(store) {
    this.store = store;
    try {
      // Where problems are not collected, the first is raised, and there is a root behind it.
      this.root = /** @type {import('./root.mjs').Root} */ (openRoot(this.store, new Problems()));
    } catch (error) {
      this.store.close();
      throw error;
    }
  }

  get storage() {
    return this.root.storage;
  }

  /**
   * Fetches a document, reads it, and raises what both found.
   * @param {import('./root.mjs').Reference} reference
   * @template T
   * @param {string} schema
   * @param {(document: Map<string, any>, problems: Problems) => T} read
   */
  #document(reference, schema, read) {
    const problems = new Problems();
    const document = fetchDocument(this.store, reference, schema, problems);
    problems.raise();
    const result = read(/** @type {Map<string, any>} */ (document), problems);
    problems.raise();
    return result;
  }

  /**
   * The atoms of a part.
   * @param {number} i
   * @returns {Atom[]}
   */
  atomsOfPart(i) {
    return once(this.#cache, `atoms ${i}`, () => this.readAtomsOfPart(i));
  }

  /**
   * The same, read anew and not kept: for who goes through all parts and wants little of each atom.
   * @param {number} i
   */
  readAtomsOfPart(i) {
    const part = this.root.parts[i];
    // Where some atom is refused, that has been raised.
    return /** @type {Atom[]} */ (this.#document(part.index, 'index', (document, problems) => (
      readAtoms(document, part, place(ROOT_KEY, `/parts/${i}`), this.root, problems))));
  }

  /**
   * The atoms of all parts, in order.
   * @returns {Atom[]}
   */
  get atoms() {
    return once(this.#cache, 'atoms', () => {
      const names = new Names();
      const problems = new Problems();
      const atoms = this.root.parts.flatMap((_, i) => {
        const part = this.atomsOfPart(i);
        names.add(part, problems);
        return part;
      });
      problems.raise();
      return atoms;
    });
  }

  /** The packs, or null in storage plain. */
  get packs() {
    const reference = this.root.packs;
    return reference && once(this.#cache, 'packs', () => (
      this.#document(reference, 'packs', (document, problems) => (
        readPacks(document, reference.key, problems)))));
  }

  /**
   * The state document, or null.
   * @returns {Map<string, any> | null}
   */
  get state() {
    const reference = this.root.state;
    return reference && once(this.#cache, 'state', () => {
      const atoms = kindsOfAtoms(this.atoms);
      return this.#document(reference, 'state', (document, problems) => {
        checkState(document, reference.key, atoms, problems);
        return document;
      });
    });
  }

  /**
   * The process images that it carries, by name.
   * @returns {Map<string, any> | undefined}
   */
  get images() {
    return this.state?.get('images');
  }

  /**
   * The pipeline that was in flight when this was saved, or null.
   * @returns {Map<string, any> | null}
   */
  get pipeline() {
    return this.root.readFeatures.includes('weight-versions') ? this.state?.get('pipeline') ?? null : null;
  }

  /**
   * The chunk table of a part, checked (UCP-R-028).
   * @param {number} i
   * @returns {ChunkTable}
   */
  table(i) {
    return once(this.#cache, `table ${i}`, () => {
      const reference = this.root.parts[i].table;
      const slots = this.atomsOfPart(i).flatMap((atom) => atom.slots);
      const {packs} = this;
      const table = new ChunkTable(fetchReferenced(this.store, reference, MAX_TABLE), reference.key);
      const problems = new Problems();
      table.check(slots.map(({grid}) => ({ndim: grid.shape.length, total: grid.total})),
        this.storage, packs?.length ?? 0, problems);
      problems.raise();
      for (const slot of slots) checkSegments(table, slot, packs, problems);
      problems.raise();
      return table;
    });
  }

  /**
   * Finds an atom by its name or an alias: by the root's ranges of names first.
   * @param {string} name
   * @returns {{part: number, atom: Atom}}
   */
  find(name) {
    const within = this.root.parts.findIndex(({first, last}) => (
      compareUtf8(first, name) <= 0 && compareUtf8(name, last) <= 0));
    const order = [within, ...this.root.parts.keys()].filter((part, at) => (
      part >= 0 && (at === 0 || part !== within)));
    for (const part of order) {
      const atom = this.#names(part).get(name);
      if (atom) return {part, atom};
    }
    throw new UcpError('UCP-E-MISMATCH', '', `there is no atom ${name}`);
  }

  /**
   * Names and aliases of a part.
   * @param {number} part
   */
  #names(part) {
    return once(this.#cache, `names ${part}`, () => new Map(this.atomsOfPart(part).flatMap((atom) => (
      [atom.name, ...atom.aliases].map((name) => [name, atom])))));
  }

  /**
   * A slot with its table, to read it.
   * @param {string} atomName or an alias
   * @param {string} slotName
   * @returns {{atom: Atom, slot: Slot, table: ChunkTable}}
   */
  slot(atomName, slotName) {
    const {part, atom} = this.find(atomName);
    const slot = atom.slots.find(({name}) => name === slotName);
    if (!slot) throw new UcpError('UCP-E-MISMATCH', '', `${atomName} has no slot ${slotName}`);
    return {atom, slot, table: this.table(part)};
  }

  /**
   * The layout of a slot with its mesh, or null.
   * @param {Slot} slot
   */
  layoutOf(slot) {
    if (slot.layout === null) return null;
    const {mesh, steps} = this.root.layouts[slot.layout];
    return {mesh: this.root.meshes[mesh], steps};
  }

  /**
   * The bytes of a blob, checked.
   * @param {string} name
   * @returns {{mediaType: string, bytes: Uint8Array}}
   */
  readBlob(name) {
    const blob = this.state?.get('blobs').get(name);
    if (!blob) throw new UcpError('UCP-E-MISMATCH', '', `there is no blob ${name}`);
    const bytes = fetchReferenced(this.store, plain(blob.get('object')), Infinity);
    return {mediaType: blob.get('media_type'), bytes};
  }

  /**
   * The bytes of the files of a process image, checked.
   * @param {string} name
   * @returns {Uint8Array[]}
   */
  readImage(name) {
    return /** @type {Map<string, any>[]} */ (/** @type {Map<string, any>} */ (this.images).get(name).get('files'))
      .map((file) => fetchReferenced(this.store, plain(file.get('object')), Infinity));
  }

  close() {
    this.store.close();
  }
}
