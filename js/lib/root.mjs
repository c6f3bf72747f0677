/**
 * Opening: the root document (SPEC sections 7, 10 and 17.1, steps 1 to 7).
 */

import {Problems, UcpError} from './errors.mjs';
import {parse, place, plain} from './json.mjs';
import {checkSchema} from './schema.mjs';
import {rootDigestProblem} from './digest.mjs';
import {unlikeInGroup} from './buffers.mjs';
import {checkSteps, unsupportedIn} from './layout.mjs';
import {checkMesh} from './mesh.mjs';
import {CLAIM_KEY, ROOT_KEY, compareUtf8, foldKey, isKey, isName} from './names.mjs';

/** Longest root document (SPEC section 19). */
export const MAX_ROOT = 4 << 20;
/** Longest other JSON document, and longest table (SPEC section 19). */
export const MAX_DOCUMENT = 256 * 2 ** 20;
export const MAX_TABLE = 2 ** 30;
/** The version that is implemented. */
export const FORMAT_VERSION = 0;
/** Read features that are implemented. */
export const READ_FEATURES = new Set([
  'blosc', 'incremental', 'process-images', 'row-overwrite', 'weight-versions', 'zstd',
]);

/** @typedef {{key: string, length: number, digest: string}} Reference */
/** @typedef {{first: string, last: string, atoms: number, index: Reference, table: Reference}} Part */

/**
 * @typedef {object} Root
 * @property {Map<string, any>} document
 * @property {string[]} readFeatures
 * @property {string[]} writeFeatures
 * @property {'plain' | 'packed'} storage
 * @property {number} chunkBytes
 * @property {number | null} step
 * @property {Map<string, any> | null} log position in an update log
 * @property {import('./mesh.mjs').Mesh[]} meshes
 * @property {{mesh: number, steps: import('./layout.mjs').Step[]}[]} layouts
 * @property {Reference | null} packs
 * @property {Reference | null} state
 * @property {Part[]} parts
 * @property {boolean[]} soundLayouts those that are implemented and have no problem of their own
 */

/**
 * Step 1: the bytes of the root document.
 * @param {import('./stores.mjs').Store} store
 */
function readRoot(store) {
  let length;
  try {
    length = store.lengthOf(ROOT_KEY);
  } catch (error) {
    if (!(error instanceof UcpError && error.code === 'UCP-E-MISSING')) throw error;
    throw new UcpError('UCP-E-NOT-FOUND', ROOT_KEY, 'there is no root document');
  }
  if (length > MAX_ROOT) throw new UcpError('UCP-E-LIMIT', ROOT_KEY, `longer than ${MAX_ROOT} bytes`);
  return store.read(ROOT_KEY, 0, length);
}

/**
 * Step 6: read features (UCP-R-008) and extensions (UCP-R-030).
 * @param {Map<string, any>} document
 * @param {Set<string>} known features that are not refused
 * @param {Problems} problems
 * @param {string} [key] of the document
 */
export function checkNegotiation(document, known, problems, key = ROOT_KEY) {
  /** @type {string[]} */ (document.get('read_features')).forEach((feature, i) => {
    if (!known.has(feature)) {
      problems.add('UCP-E-FEATURE', place(key, `/read_features/${i}`), `${feature} is not supported`);
    }
  });
  for (const [name, extension] of document.get('extensions')) {
    if (!(extension instanceof Map) || extension.get('must_understand') !== false) {
      problems.add('UCP-E-EXTENSION', place(key, '/extensions'), `${name} is not supported`);
    }
  }
}

/**
 * Parses a document that stands alone, and refuses it by its envelope, its kind and its schema (UCP-R-022): none of them
 * needs a feature.
 * @param {Uint8Array} bytes
 * @param {string} key of the document
 * @param {string} kind and name of its schema
 * @returns {Map<string, any>}
 */
export function parseStandalone(bytes, key, kind) {
  const document = /** @type {Map<string, any>} */ (parse(bytes, key));
  const problems = new Problems();
  checkSchema('envelope', document, key, problems, 'UCP-E-FORMAT');
  problems.raise();
  if (document.get('format_version') !== FORMAT_VERSION) {
    throw new UcpError('UCP-E-VERSION', place(key, '/format_version'), 'another version');
  }
  checkNegotiation(document, new Set(), problems, key);
  problems.raise();
  checkSchema(kind, document, key, problems);
  problems.raise();
  for (const name of ['read_features', 'write_features']) {
    if (document.get(name).length > 0) {
      problems.add('UCP-E-FEATURE-SET', place(key, `/${name}`), 'the document needs no feature');
    }
  }
  problems.raise();
  return document;
}

/**
 * Reports what is wrong with a key (UCP-R-010, UCP-D-010, UCP-D-011, UCP-D-013, UCP-D-014).
 * @param {string} key
 * @param {string} prefix
 * @param {string} at
 * @param {Problems} problems
 */
export function checkKey(key, prefix, at, problems) {
  if (!isKey(key)) problems.add('UCP-E-KEY', at, `${JSON.stringify(key).slice(0, 300)} is no safe key`);
  else if (!key.startsWith(prefix)) problems.add('UCP-E-KEY', at, `does not begin with ${prefix}`);
  else if (foldKey(key) === CLAIM_KEY) problems.add('UCP-E-KEY', at, `${CLAIM_KEY} is the key of a writer's claim`);
}

/** Keys that have been seen, to find those that are not unique (UCP-D-011). */
export class KeySet {
  #seen = new Set();

  /**
   * @param {string} key
   * @param {string} at
   * @param {Problems} problems
   */
  add(key, at, problems) {
    const folded = foldKey(key);
    if (this.#seen.has(folded)) problems.add('UCP-E-KEY', at, `${key} is used twice`);
    this.#seen.add(folded);
  }
}

/**
 * @param {Map<string, any>} document
 * @returns {Root}
 */
function toRoot(document) {
  /** @param {string} name */
  const member = (name) => plain(document.get(name)) ?? null;
  return {
    storage: member('storage'),
    meshes: member('meshes'),
    layouts: member('layouts'),
    packs: member('packs'),
    state: member('state'),
    parts: member('parts'),
    soundLayouts: [],
    document,
    readFeatures: document.get('read_features'),
    writeFeatures: document.get('write_features'),
    chunkBytes: document.get('chunk_bytes'),
    step: document.get('progress')?.get('step') ?? null,
    log: document.get('progress')?.get('log') ?? null,
  };
}

/**
 * Every document that the root refers to, with its place.
 * @param {Root} root
 */
export function referencesOf(root) {
  /** @type {{pointer: string, reference: Reference, limit?: number}[]} */
  const references = [];
  if (root.packs) references.push({pointer: '/packs', reference: root.packs});
  if (root.state) references.push({pointer: '/state', reference: root.state});
  root.parts.forEach((part, i) => {
    references.push({pointer: `/parts/${i}/index`, reference: part.index});
    references.push({pointer: `/parts/${i}/table`, reference: part.table, limit: MAX_TABLE});
  });
  return references;
}

/**
 * The feature lists (UCP-D-007, UCP-D-008).
 * @param {Root} root
 * @param {Problems} problems
 */
function checkFeatureLists({readFeatures, writeFeatures}, problems) {
  /** @type {(name: string, detail: string) => void} */
  const report = (name, detail) => problems.add('UCP-E-FEATURE-SET', place(ROOT_KEY, `/${name}`), detail);
  for (const [name, features] of Object.entries({read_features: readFeatures, write_features: writeFeatures})) {
    if (features.some((feature, i) => i > 0 && compareUtf8(features[i - 1], feature) >= 0)) {
      report(name, 'not sorted or not unique');
    }
  }
  if (readFeatures.some((feature) => writeFeatures.includes(feature))) {
    report('write_features', 'a feature has two classes');
  }
}

/**
 * Meshes and layouts, as far as they say something without a shape; which of them are sound.
 * @param {Root} root
 * @param {Problems} problems
 */
function checkLayouts({meshes, layouts}, problems) {
  /** @param {() => unknown} check */
  const sound = (check) => problems.guard(() => {
    check();
    return true;
  }) ?? false;
  const meshesOk = meshes.map((mesh, i) => sound(() => checkMesh(mesh, place(ROOT_KEY, `/meshes/${i}`))));
  for (const i of unlikeInGroup(layouts)) {
    problems.add('UCP-E-LAYOUT', place(ROOT_KEY, `/layouts/${i}`), 'another of its group differs behind the concat');
  }
  return layouts.map(({mesh, steps}, i) => meshesOk[mesh] === true
    && !unsupportedIn(steps)
    && sound(() => checkSteps(meshes[mesh], steps, place(ROOT_KEY, `/layouts/${i}`))));
}

/**
 * Step 7 behind the schema.
 * @param {Root} root
 * @param {Problems} problems
 */
function checkContent(root, problems) {
  const keys = new KeySet();
  for (const {pointer, reference, limit = MAX_DOCUMENT} of referencesOf(root)) {
    if (reference.length > limit) {
      problems.add('UCP-E-LIMIT', place(ROOT_KEY, `${pointer}/length`), `more than ${limit} bytes`);
    }
    const at = place(ROOT_KEY, `${pointer}/key`);
    checkKey(reference.key, 'index/', at, problems);
    keys.add(reference.key, at, problems);
  }
  root.parts.forEach((part, i) => {
    /** @type {(name: string, detail: string) => void} */
    const report = (name, detail) => problems.add('UCP-E-NAME', place(ROOT_KEY, `/parts/${i}/${name}`), detail);
    for (const name of /** @type {const} */ (['first', 'last'])) if (!isName(part[name])) report(name, 'not a name');
    if (compareUtf8(part.first, part.last) > 0) report('last', 'less than the first name');
    if (i > 0 && compareUtf8(root.parts[i - 1].last, part.first) >= 0) {
      report('first', 'not greater than the last name of the part before');
    }
  });
  root.layouts.forEach((layout, i) => {
    if (layout.mesh >= root.meshes.length) {
      problems.add('UCP-E-REFERENCE', place(ROOT_KEY, `/layouts/${i}/mesh`), 'there is no such mesh');
    }
  });
  checkFeatureLists(root, problems);
  root.soundLayouts = checkLayouts(root, problems);
}

/**
 * Reads and checks the root document, step by step; problems of the steps that need not end a
 * validation are kept, and a reader raises after each.
 * @param {import('./stores.mjs').Store} store
 * @param {Problems} problems
 * @param {{collect?: boolean, structure?: boolean}} [options] collect: go on where that is
 *   possible, behind features that are defined and not implemented as well; structure: apply the
 *   schema, and look neither at digests nor at features nor at content (section 18)
 * @returns {Root | null} null where a problem ends the procedure; what other problems say is
 *   wrong with a root stays in it, and whoever collects them has to expect it
 */
export function openRoot(store, problems, {collect = false, structure = false} = {}) {
  const bytes = readRoot(store);
  const document = /** @type {Map<string, any>} */ (parse(bytes, ROOT_KEY));
  const step = new Problems();
  const ends = () => {
    if (!collect) step.raise();
    return !step.empty;
  };
  try {
    checkSchema('envelope', document, ROOT_KEY, step, 'UCP-E-FORMAT'); // UCP-R-006
    if (ends()) return null;
    if (document.get('format_version') !== FORMAT_VERSION) {
      step.add('UCP-E-VERSION', place(ROOT_KEY, '/format_version'), 'another version');
    }
    if (ends()) return null;
    if (!structure) {
      const digestProblem = rootDigestProblem(bytes, document.get('digest'));
      if (digestProblem) step.add('UCP-E-DIGEST', place(ROOT_KEY, '/digest'), digestProblem);
      ends();
      const before = step.list.length;
      checkNegotiation(document, READ_FEATURES, step);
      ends();
      if (step.list.length > before) return null;
    }
    const sound = checkSchema('root', document, ROOT_KEY, step);
    ends();
    if (!sound) return null;
    const root = toRoot(document);
    if (structure) return root;
    checkContent(root, step);
    ends();
    return root;
  } finally {
    problems.list.push(...step.list);
  }
}
