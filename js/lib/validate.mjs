/**
 * Validation (SPEC section 18): every problem that can be reached.
 *
 * The levels: *structure* applies the schemas; *semantics* adds the content of documents and
 * tables, Zarr metadata, and unreferenced objects; *integrity* adds chunk objects, packs and blobs.
 */

import {sameBytes} from './bytes.mjs';
import {Problems} from './errors.mjs';
import {place} from './json.mjs';
import {
  checkState, checkStateForm, fetchDocument, fetchReferenced, Names, readAtoms, readPacks,
} from './documents.mjs';
import {checkIntegrity} from './integrity.mjs';
import {bufferFaults, checkPlace, tensorOf} from './buffers.mjs';
import {checkDtype, checkFit, checkSteps} from './layout.mjs';
import {ROOT_KEY, isKey} from './names.mjs';
import {isImageRequired, objectsOf} from './images.mjs';
import {isInFlight, kindsOfAtoms} from './pipeline.mjs';
import {MAX_TABLE, READ_FEATURES, openRoot} from './root.mjs';
import {PackUse, checkSegments} from './segments.mjs';
import {ChunkTable} from './table.mjs';
import {
  ATOMS_KEY, arrayMetadata, atomMetadataKey, chunkKey, groupMetadata, slotMetadataKey,
} from './zarr.mjs';

/** @typedef {{part: import('./root.mjs').Part, atoms: import('./documents.mjs').Atom[],
 *   table: ChunkTable | null}} LoadedPart */

class Validation {
  /**
   * @param {import('./stores.mjs').Store} store
   * @param {'structure' | 'semantics' | 'integrity'} level
   */
  constructor(store, level) {
    this.structure = level === 'structure';
    this.integrity = level === 'integrity';
    this.problems = new Problems();
    this.store = store;
    /** @type {import('./root.mjs').Root} before anything else is looked at */
    this.root;
    /** @type {LoadedPart[]} */
    this.parts = [];
    /** @type {import('./segments.mjs').Pack[] | null} */
    this.packs = null;
    /** @type {boolean[] | null} packs that are there with their length */
    this.soundPacks = null;
    /** @type {PackUse | null} */
    this.use = null;
    /** @type {import('./root.mjs').Reference[]} blobs that are there with their length */
    this.blobs = [];
    /** @type {Set<string>} objects of chunks that are there with their length, in storage plain */
    this.soundChunks = new Set();
    /** Objects that the root document reaches (UCP-V-002). */
    this.reached = new Set([ROOT_KEY]);
    /** @type {Map<string, string>} objects that are reached, but must not exist (UCP-D-096), and the place of their table */
    this.forbidden = new Map();
    /** Whether a part of the checkpoint could not be read, so that what it reaches is unknown. */
    this.blind = false;
  }

  /**
   * Runs a step that may refuse.
   * @template T
   * @param {() => T} check
   */
  guard(check) {
    return this.problems.guard(check);
  }

  /**
   * A document that satisfies its schema, or null.
   * @param {import('./root.mjs').Reference} reference
   * @param {string} schema
   */
  document(reference, schema) {
    this.reached.add(reference.key);
    const document = this.guard(() => fetchDocument(this.store, reference, schema, this.problems,
      {recorded: !this.structure}));
    if (!document) this.blind = true;
    return document ?? null;
  }

  run() {
    const {problems, structure} = this;
    const root = this.guard(() => openRoot(this.store, problems, {collect: true, structure}));
    if (!root) return;
    this.root = root;
    const packs = root.packs && this.document(root.packs, 'packs');
    const state = root.state && this.document(root.state, 'state');
    const indexes = root.parts.map((part) => this.document(part.index, 'index'));
    if (structure) {
      if (root.state && state) checkStateForm(state, root.state.key, problems);
      return;
    }
    this.packs = root.packs && packs && readPacks(packs, root.packs.key, problems);
    this.packs?.forEach(({key}) => this.reached.add(key));
    this.parts = root.parts.map((part, i) => this.part(part, i, indexes[i]));
    this.names(indexes.every((index) => index !== null), state);
    this.slotLayouts();
    this.features(state);
    this.objects(state);
    if (this.integrity) checkIntegrity(this);
  }

  /** Whether the layout of each slot fits it (those that fit cover). */
  slotLayouts() {
    const {meshes, layouts, soundLayouts} = this.root;
    const fit = new Set();
    const placed = [];
    for (const slot of this.parts.flatMap(({atoms}) => atoms.flatMap((atom) => atom.slots))) {
      if (slot.layout === null && slot.place) {
        this.problems.add('UCP-E-LAYOUT', slot.at, 'a place without a layout');
      }
      if (slot.layout === null || !soundLayouts[slot.layout]) continue;
      const id = JSON.stringify([slot.layout, slot.shape, slot.place, slot.dtype.name]);
      const {mesh, steps} = layouts[slot.layout];
      const ok = fit.has(id) || this.guard(() => {
        checkSteps(meshes[mesh], steps, `${slot.at}/layout`, slot.shape.length);
        checkPlace(meshes[mesh], steps, slot.place, slot.at);
        checkDtype(steps, slot.dtype, `${slot.at}/layout`);
        checkFit(meshes[mesh], steps, slot.shape, slot.place ? slot.at : `${slot.at}/layout`, slot.place);
        return true;
      });
      if (ok) fit.add(id);
      if (ok && slot.place) placed.push(tensorOf({...slot, place: slot.place}, layouts[slot.layout], meshes));
    }
    for (const {at, detail} of bufferFaults(placed)) this.problems.add('UCP-E-LAYOUT', at, detail);
  }

  /**
   * @param {import('./root.mjs').Part} part
   * @param {number} i
   * @param {Map<string, any> | null} index
   * @returns {LoadedPart}
   */
  part(part, i, index) {
    const {root, problems} = this;
    this.reached.add(part.table.key);
    const table = this.guard(() => new ChunkTable(
      fetchReferenced(this.store, part.table, MAX_TABLE), part.table.key)) ?? null;
    const atoms = index && readAtoms(index, part, place(ROOT_KEY, `/parts/${i}`), root, problems);
    if (!atoms || !table || (root.storage === 'packed' && !this.packs)) {
      this.blind = true;
      return {part, atoms: atoms ?? [], table: null};
    }
    const found = new Problems();
    const slots = atoms.flatMap((atom) => atom.slots);
    table.check(slots.map(({grid}) => ({ndim: grid.shape.length, total: grid.total})),
      root.storage, this.packs?.length ?? 0, found);
    const sound = found.empty;
    if (sound) for (const slot of slots) checkSegments(table, slot, this.packs, found);
    const usable = found.empty;
    problems.list.push(...found.list);
    if (!sound) this.blind = true;
    return {part, atoms, table: usable ? table : null};
  }

  /**
   * Names and keys over all parts, and the state document's references to them.
   * @param {boolean} complete whether all parts could be read
   * @param {Map<string, any> | null} state
   */
  names(complete, state) {
    const names = new Names();
    for (const {atoms} of this.parts) names.add(atoms, this.problems);
    if (!state) return;
    const known = kindsOfAtoms(this.parts.flatMap(({atoms}) => atoms));
    checkState(state, /** @type {import('./root.mjs').Reference} */ (this.root.state).key, complete && !this.blind ? known : null, this.problems);
  }

  /**
   * Declared against needed features (UCP-D-009).
   * @param {Map<string, any> | null} state
   */
  features(state) {
    if (this.parts.some(({atoms}) => atoms.length === 0) || (this.root.packs && !this.packs)) return;
    const {readFeatures, writeFeatures} = this.root;
    const needed = new Set(this.parts
      .flatMap(({atoms}) => atoms.flatMap((atom) => atom.slots))
      .map((slot) => slot.compressor?.get('name'))
      .filter((name) => READ_FEATURES.has(name)));
    if (this.packs?.some(({shared}) => shared)) needed.add('incremental');
    if (this.parts.some(({table}) => table !== null && table.rowBytes.length > 0)) needed.add('row-overwrite');
    const isNeeded = {
      'weight-versions': isInFlight(state?.get('pipeline')),
      'process-images': isImageRequired(state?.get('images')),
    };
    const isUnknown = this.root.state && !state;
    for (const [name, needs] of Object.entries(isNeeded)) {
      if (needs || (isUnknown && readFeatures.includes(name))) needed.add(name);
    }
    if (readFeatures.length !== needed.size || !readFeatures.every((name) => needed.has(name))) {
      this.problems.add('UCP-E-FEATURE-SET', place(ROOT_KEY, '/read_features'), `needed: [${[...needed]}]`);
    }
    if (writeFeatures.length > 0) {
      this.problems.add('UCP-E-FEATURE-SET', place(ROOT_KEY, '/write_features'), 'none is needed');
    }
  }

  /**
   * An object that has to exist with its length; looked for at level integrity.
   * @param {string} key
   * @param {number} length
   */
  object(key, length) {
    this.reached.add(key);
    if (!this.integrity || !isKey(key)) return false;
    return this.guard(() => {
      const actual = this.store.lengthOf(key);
      if (actual === length) return true;
      this.problems.add('UCP-E-LENGTH', key, `has ${actual} bytes and not ${length}`);
      return false;
    }) ?? false;
  }

  /**
   * Derived metadata with exactly their bytes (UCP-D-094).
   * @param {string} key
   * @param {Uint8Array} bytes
   */
  metadata(key, bytes) {
    this.reached.add(key);
    this.guard(() => {
      if (this.store.lengthOf(key) !== bytes.length
          || !sameBytes(this.store.read(key, 0, bytes.length), bytes)) {
        this.problems.add('UCP-E-ZARR', key, 'differs from the derived document');
      }
    });
  }

  /**
   * Packs, blobs, chunk objects and Zarr metadata; objects that nothing reaches (UCP-V-002).
   * @param {Map<string, any> | null} state
   */
  objects(state) {
    const {problems, root} = this;
    this.soundPacks = this.packs?.map(({key, length}) => this.object(key, length)) ?? null;
    if (this.packs) {
      this.use = new PackUse(this.packs);
      for (const {table} of this.parts) if (table) this.use.add(table);
      if (this.parts.every(({table}) => table)) this.use.check(problems);
    }
    this.blobs = (state ? objectsOf(state) : []).map(({reference}) => reference)
      .filter(({key, length}) => this.object(key, length));
    if (root.storage === 'plain') this.hierarchy();
    this.debris();
  }

  hierarchy() {
    this.metadata(ATOMS_KEY, groupMetadata());
    for (const {atoms, table} of this.parts) {
      for (const atom of atoms) {
        if (!isKey(atom.key)) continue;
        this.metadata(atomMetadataKey(atom.key), groupMetadata());
        for (const slot of atom.slots) {
          if (!isKey(slot.name)) continue;
          this.metadata(slotMetadataKey(atom.key, slot.name), arrayMetadata(slot));
          if (table) this.chunkObjects(atom, slot, table);
        }
      }
    }
  }

  /**
   * @param {import('./documents.mjs').Atom} atom
   * @param {import('./documents.mjs').Slot} slot
   * @param {ChunkTable} table
   */
  chunkObjects(atom, slot, table) {
    for (let index = 0; index < slot.grid.total; index += 1) {
      const key = chunkKey(atom.key, slot.name, slot.grid, index);
      const segment = table.firstSegment[slot.firstChunk + index];
      if (segment === table.firstSegment[slot.firstChunk + index + 1]) {
        this.forbidden.set(key, table.key);
      } else if (this.object(key, table.lengths[segment])) {
        this.soundChunks.add(key);
      }
    }
  }

  debris() {
    this.guard(() => {
      for (const key of this.store.list()) {
        if (this.reached.has(key)) continue;
        if (this.integrity && this.forbidden.has(key)) {
          this.problems.add('UCP-E-LENGTH', key, 'the object of a chunk that has a zero entry');
        } else if (!this.blind) {
          this.problems.add('UCP-W-UNREFERENCED', key, 'the root document does not reach it');
        }
      }
    });
  }
}

/**
 * Validates a checkpoint.
 * @param {import('./stores.mjs').Store} store closed in the end
 * @param {'structure' | 'semantics' | 'integrity'} [level]
 * @returns {import('./errors.mjs').Problem[]} warnings included
 */
export function validate(store, level = 'integrity') {
  const validation = new Validation(store, level);
  try {
    validation.run();
  } finally {
    validation.store.close();
  }
  return validation.problems.list;
}

