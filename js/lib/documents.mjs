/**
 * Referenced documents: index parts, the state document, the pack list (SPEC section 17.1, step 8).
 */

import {UcpError} from './errors.mjs';
import {parse, place, plain, token} from './json.mjs';
import {checkSchema} from './schema.mjs';
import {sha256} from './digest.mjs';
import {product} from './boxes.mjs';
import {DTYPES} from './dtypes.mjs';
import {makeGrid} from './grid.mjs';
import {
  compareUtf8, foldKey, isAtomKey, isKey, isName, isSlotName,
} from './names.mjs';
import {MAX_DOCUMENT, checkKey, KeySet} from './root.mjs';
import {checkImages, objectsOf} from './images.mjs';
import {checkPipeline} from './pipeline.mjs';
import {checkValue, checkValueForm} from './values.mjs';

/** @typedef {import('./errors.mjs').Problems} Problems */

const MAX_NDIM = 32;

/**
 * @typedef {object} Slot
 * @property {string} name
 * @property {import('./dtypes.mjs').DataType} dtype
 * @property {number[]} shape
 * @property {number | null} layout index into the root's layouts
 * @property {import('./layout.mjs').Place | null} place in a flat buffer
 * @property {Map<string, any> | null} compressor
 * @property {string | null} content
 * @property {Map<string, any> | undefined} annotations
 * @property {import('./grid.mjs').Grid} grid
 * @property {number} firstChunk chunk of the part's table at which the slot begins
 * @property {string} label for messages
 * @property {string} at place in the index part
 */
/** @typedef {{name: string, key: string, aliases: string[], annotations: Map<string, any> | undefined,
 *   slots: Slot[], at: string}} Atom */

/**
 * Fetches an object that a reference names and checks length and digest (UCP-R-013).
 * @param {import('./stores.mjs').Store} store
 * @param {import('./root.mjs').Reference} reference
 * @param {number} limit of its length
 * @param {{recorded?: boolean}} [options] recorded: false where length and digest are not looked at
 * @returns {Uint8Array}
 */
export function fetchReferenced(store, {key, length, digest}, limit, {recorded = true} = {}) {
  if (!isKey(key)) throw new UcpError('UCP-E-KEY', key.slice(0, 300), 'not a safe key');
  const actual = store.lengthOf(key);
  if ((recorded ? length : actual) > limit) throw new UcpError('UCP-E-LIMIT', key, `longer than ${limit} bytes`);
  if (recorded && actual !== length) {
    throw new UcpError('UCP-E-LENGTH', key, `has ${actual} bytes and not ${length}`);
  }
  const bytes = store.read(key, 0, actual);
  if (recorded && sha256(bytes) !== digest) throw new UcpError('UCP-E-DIGEST', key, 'another SHA-256 than recorded');
  return bytes;
}

/**
 * Fetches and parses a document and checks its structure.
 * @param {import('./stores.mjs').Store} store
 * @param {import('./root.mjs').Reference} reference
 * @param {string} schema
 * @param {Problems} problems gets what breaks the schema
 * @param {{recorded?: boolean}} [options] of {@link fetchReferenced}
 * @returns {Map<string, any> | null} null where it breaks the schema
 */
export function fetchDocument(store, reference, schema, problems, options) {
  const document = /** @type {Map<string, any>} */ (parse(fetchReferenced(store, reference, MAX_DOCUMENT, options), reference.key));
  return checkSchema(schema, document, reference.key, problems) ? document : null;
}

/**
 * Whether a shape is possible (UCP-D-033, UCP-D-034).
 * @param {number[]} shape
 * @param {number} itemSize
 */
export function isPossibleShape(shape, itemSize) {
  // The product of doubles is exact up to 2^53, and beyond it never falls below again.
  return shape.length <= MAX_NDIM
    && product(shape.map((extent) => Math.max(1, extent))) * itemSize <= Number.MAX_SAFE_INTEGER;
}

/**
 * @param {string} name
 * @param {Map<string, any>} members
 * @param {string} at
 * @param {string} key
 * @param {Pick<import('./root.mjs').Root, 'layouts' | 'chunkBytes'>} root
 * @param {Problems} problems
 * @returns {Slot | null} null where its data type or shape is refused
 */
function readSlot(name, members, at, key, root, problems) {
  /** @type {(code: string, member: string, detail: string) => void} */
  const report = (code, member, detail) => problems.add(code, place(key, at + member), detail);
  if (!isSlotName(name)) report('UCP-E-KEY', '', 'not the name of a slot');
  const layout = members.get('layout') ?? null;
  if (layout !== null && layout >= root.layouts.length) {
    report('UCP-E-REFERENCE', '/layout', 'there is no such layout');
  }
  const dtype = DTYPES.get(members.get('dtype'));
  const shape = members.get('shape');
  if (!dtype) report('UCP-E-DTYPE', '/dtype', `${members.get('dtype').slice(0, 100)} is unknown`);
  if (!isPossibleShape(shape, dtype?.size ?? 1)) {
    report('UCP-E-SHAPE', '/shape', 'too many dimensions or bytes');
    return null;
  }
  if (!dtype) return null;
  return {
    name,
    dtype,
    shape,
    layout,
    place: plain(members.get('place')) ?? null,
    compressor: members.get('compressor') ?? null,
    content: members.get('content') ?? null,
    annotations: members.get('annotations'),
    grid: makeGrid(shape, dtype.size, root.chunkBytes),
    firstChunk: 0,
    label: '',
    at: place(key, at),
  };
}

/**
 * @param {Map<string, any>} members
 * @param {string} at
 * @param {string} key
 * @param {Pick<import('./root.mjs').Root, 'layouts' | 'chunkBytes'>} root
 * @param {Problems} problems
 * @returns {Atom | null} null where one of its slots is refused
 */
function readAtom(members, at, key, root, problems) {
  /** @type {(code: string, member: string, detail: string) => void} */
  const report = (code, member, detail) => problems.add(code, place(key, at + member), detail);
  const name = members.get('name');
  /** @type {string[]} */
  const aliases = members.get('aliases') ?? [];
  if (!isName(name)) report('UCP-E-NAME', '/name', 'not a name');
  aliases.forEach((alias, i) => {
    if (!isName(alias)) report('UCP-E-NAME', `/aliases/${i}`, 'not a name');
  });
  if (!isAtomKey(members.get('key'))) report('UCP-E-KEY', '/key', 'not the key of an atom');
  const slots = [];
  const seen = new KeySet();
  const sorted = [...members.get('slots')].sort(([a], [b]) => compareUtf8(a, b)); // UCP-D-029
  for (const [slotName, slot] of sorted) {
    const slotAt = `${at}/slots${token(slotName)}`;
    seen.add(slotName, place(key, slotAt), problems); // UCP-D-031
    const found = readSlot(slotName, slot, slotAt, key, root, problems);
    if (found) slots.push(found);
  }
  if (slots.length < sorted.length) return null;
  for (const slot of slots) slot.label = `${name}, ${slot.name}`;
  return {
    name, key: members.get('key'), aliases, annotations: members.get('annotations'), slots,
    at: place(key, at),
  };
}

/**
 * Reads the atoms of an index part.
 * @param {Map<string, any>} document that satisfies its schema
 * @param {Pick<import('./root.mjs').Part, 'first' | 'last' | 'atoms'> & {index: {key: string}}} part
 * @param {string} partAt place of the part in the root
 * @param {Pick<import('./root.mjs').Root, 'layouts' | 'chunkBytes'>} root
 * @param {Problems} problems
 * @returns {Atom[] | null} null where some slot's data type or shape is refused
 */
export function readAtoms(document, part, partAt, root, problems) {
  const {key} = part.index;
  /** @type {Map<string, any>[]} */
  const members = document.get('atoms');
  /** @type {(Atom | null)[]} */
  const read = members.map((atom, i) => readAtom(atom, `/atoms/${i}`, key, root, problems));
  /** @type {string[]} */
  const names = members.map((atom) => atom.get('name'));
  names.forEach((name, i) => {
    if (i > 0 && compareUtf8(names[i - 1], name) >= 0) {
      problems.add('UCP-E-NAME', place(key, `/atoms/${i}/name`), 'atoms are not sorted by name');
    }
  });
  if (names.length !== part.atoms || names[0] !== part.first || names.at(-1) !== part.last) {
    problems.add('UCP-E-NAME', partAt, 'first, last or atoms differ from the index part'); // UCP-D-026
  }
  const atoms = read.filter((atom) => atom !== null);
  if (atoms.length < read.length) return null;
  let chunk = 0;
  for (const atom of atoms) {
    for (const slot of atom.slots) {
      slot.firstChunk = chunk;
      chunk += slot.grid.total;
    }
  }
  return atoms;
}

/** Checks names and keys over all parts (UCP-D-017, UCP-D-028). */
export class Names {
  #names = new Set();
  #keys = new Set();

  /**
   * @param {Problems} problems
   * @param {Atom[]} atoms
   */
  add(atoms, problems) {
    for (const atom of atoms) {
      for (const name of [atom.name, ...atom.aliases]) {
        if (this.#names.has(name)) problems.add('UCP-E-NAME', atom.at, `the name ${name} is used twice`);
        this.#names.add(name);
      }
      const folded = foldKey(atom.key);
      if (this.#keys.has(folded)) problems.add('UCP-E-KEY', atom.at, `the key ${atom.key} is used twice`);
      this.#keys.add(folded);
    }
  }
}

/**
 * Reads the pack list.
 * @param {Map<string, any>} document
 * @param {string} key
 * @param {Problems} problems
 * @returns {{key: string, length: number, shared: boolean}[]}
 */
export function readPacks(document, key, problems) {
  const keys = new KeySet();
  return /** @type {Map<string, any>[]} */ (document.get('packs')).map((pack, i) => {
    const at = place(key, `/packs/${i}/key`);
    checkKey(pack.get('key'), 'packs/', at, problems);
    keys.add(pack.get('key'), at, problems);
    return {key: pack.get('key'), length: pack.get('length'), shared: pack.has('shared')};
  });
}

/**
 * The tagged values of a state document, with their pointers.
 * @param {Map<string, any>} document
 * @returns {Generator<{value: import('./json.mjs').Json, at: string}>}
 */
function* valuesOf(document) {
  /** @type {(members: Map<string, import('./json.mjs').Json>, at: string) => Generator<{value: import('./json.mjs').Json, at: string}>} */
  const named = function* named(members, at) {
    for (const [name, value] of members) yield {value, at: at + token(name)};
  };
  yield* named(document.get('values'), '/values');
  for (const [name, optimizer] of document.get('optimizers')) {
    for (const [i, group] of optimizer.get('groups').entries()) {
      yield* named(group.get('options'), `/optimizers${token(name)}/groups/${i}/options`);
    }
  }
}

/**
 * Checks the values of a state document as far as their schema goes.
 * @param {Map<string, any>} document
 * @param {string} key
 * @param {Problems} problems
 */
export function checkStateForm(document, key, problems) {
  for (const {value, at} of valuesOf(document)) checkValueForm(value, key, at, problems);
}

/**
 * Checks the content of the state document.
 * @param {Map<string, any>} document that satisfies its schema
 * @param {string} key
 * @param {Map<string, Map<string, string>> | null} atoms slot kinds of all atoms, where they are known
 * @param {Problems} problems
 */
export function checkState(document, key, atoms, problems) {
  for (const {value, at} of valuesOf(document)) checkValue(value, key, at, problems);
  for (const [name, optimizer] of document.get('optimizers')) {
    const seen = new Set();
    /** @type {Map<string, any>[]} */ (optimizer.get('groups')).forEach((group, i) => {
      const at = `/optimizers${token(name)}/groups/${i}`;
      /** @type {string[]} */ (group.get('atoms')).forEach((atom, j) => {
        const atomAt = place(key, `${at}/atoms/${j}`);
        if (atoms && !atoms.has(atom)) problems.add('UCP-E-REFERENCE', atomAt, 'not an atom');
        if (seen.has(atom)) problems.add('UCP-E-NAME', atomAt, 'twice in the groups'); // UCP-D-087
        seen.add(atom);
      });
    });
  }
  if (document.has('pipeline')) checkPipeline(document.get('pipeline'), key, atoms, problems);
  const keys = new KeySet();
  for (const {at, reference} of objectsOf(document)) {
    checkKey(reference.key, 'blobs/', place(key, `${at}/key`), problems);
    keys.add(reference.key, place(key, `${at}/key`), problems);
  }
  checkImages(document.get('images') ?? new Map(), key, problems);
}

