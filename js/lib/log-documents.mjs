/**
 * Documents of an update log: its own, and those of epochs (SPEC-UPDATE-LOGS section 2).
 */

import {Problems, UcpError} from './errors.mjs';
import {place, plain} from './json.mjs';
import {fits, tiles} from './boxes.mjs';
import {sha256} from './digest.mjs';
import {isPossibleShape} from './documents.mjs';
import {DTYPES} from './dtypes.mjs';
import {isName} from './names.mjs';
import {MAX_DOCUMENT, parseStandalone} from './root.mjs';

/** @typedef {{atom: string, role: 'gradient' | 'residual' | 'value', dtype: string, shape: number[]}} LoggedTensor */
/** @typedef {{tensor: number, rank: number, offset: number[], shape: number[]}} LogPiece */

/**
 * @typedef {object} Epoch
 * @property {string} log
 * @property {number} epoch
 * @property {number} first_step
 * @property {{epoch: number, digest: string} | null} after
 * @property {number} ranks
 * @property {LoggedTensor[]} tensors
 * @property {LogPiece[]} pieces
 * @property {number[][]} groups
 * @property {{type: string, profile: Map<string, string>}} optimizer
 * @property {'bitwise' | 'tolerance' | 'lossy'} exactness
 * @property {string} digest of the document
 * @property {string} key of the document
 */

/** @typedef {(code: string, pointer: string, detail: string) => void} Report */

export const LOG_KEY = 'log.json';
/** @param {number} epoch */
export const epochKey = (epoch) => `epochs/${epoch}.json`;

/**
 * The bytes of a document.
 * @param {import('./stores.mjs').Store} store
 * @param {string} key
 */
function bytesAt(store, key) {
  const length = store.lengthOf(key);
  if (length > MAX_DOCUMENT) throw new UcpError('UCP-E-LIMIT', key, `longer than ${MAX_DOCUMENT} bytes`);
  return store.read(key, 0, length);
}

/**
 * The `id` of a log.
 * @param {import('./stores.mjs').Store} store
 * @returns {string}
 */
export function readLogDocument(store) {
  try {
    return parseStandalone(bytesAt(store, LOG_KEY), LOG_KEY, 'update-log').get('id');
  } catch (error) {
    if (!(error instanceof UcpError && error.code === 'UCP-E-MISSING')) throw error;
    throw new UcpError('UCP-E-NOT-FOUND', LOG_KEY, 'there is no log');
  }
}

/**
 * An epoch; refuses what contradicts itself, its key or its log.
 * @param {import('./stores.mjs').Store} store
 * @param {number} number
 * @param {string} log `id` of the log
 * @returns {Epoch}
 */
export const readEpoch = (store, number, log) => epochOf(bytesAt(store, epochKey(number)), number, log);

/**
 * The epoch of a document.
 * @param {Uint8Array} bytes
 * @param {number} number
 * @param {string} log `id` of the log
 * @returns {Epoch}
 */
export function epochOf(bytes, number, log) {
  const key = epochKey(number);
  const document = parseStandalone(bytes, key, 'update-log-epoch');
  const problems = new Problems();
  // Names of options of a profile may be anything, and nothing looks them up as members.
  const profile = document.get('optimizer').get('profile');
  /** @type {Epoch} */
  const epoch = {
    ...plain(new Map([...document].filter(([name]) => name !== 'optimizer'))),
    optimizer: {type: document.get('optimizer').get('type'), profile},
    digest: sha256(bytes),
    key,
  };
  /** @type {Report} */
  const report = (code, pointer, detail) => problems.add(code, place(key, pointer), detail);
  if (epoch.log !== log) report('UCP-E-LOG', '/log', 'an epoch of another log'); // UCP-D-152
  if (epoch.epoch !== number) report('UCP-E-LOG', '/epoch', `the document of epoch ${epoch.epoch}`); // UCP-D-151
  if ((epoch.after === null) !== (epoch.epoch === 0)) { // UCP-D-153
    report('UCP-E-LOG', '/after', 'the first epoch alone goes on from none');
  } else if (epoch.after !== null && epoch.after.epoch >= epoch.epoch) {
    report('UCP-E-LOG', '/after/epoch', 'not an earlier epoch');
  }
  checkTensors(epoch, report);
  checkPieces(epoch, report);
  checkGroups(epoch, report);
  problems.raise();
  return epoch;
}

/**
 * @param {Epoch} epoch
 * @param {Report} report
 */
function checkTensors({tensors}, report) {
  const names = new Set();
  tensors.forEach(({atom, dtype, shape}, i) => {
    if (!isName(atom)) report('UCP-E-NAME', `/tensors/${i}/atom`, 'not a name');
    if (names.has(atom)) report('UCP-E-NAME', `/tensors/${i}/atom`, 'a second tensor of that name'); // UCP-D-154
    names.add(atom);
    const type = DTYPES.get(dtype);
    if (!type) report('UCP-E-DTYPE', `/tensors/${i}/dtype`, `${dtype.slice(0, 100)} is unknown`);
    if (!isPossibleShape(shape, type?.size ?? 1)) {
      report('UCP-E-SHAPE', `/tensors/${i}/shape`, 'too many dimensions or bytes');
    }
  });
}

/**
 * The pieces of each tensor have every element once (UCP-D-155).
 * @param {Epoch} epoch
 * @param {Report} report
 */
function checkPieces({tensors, pieces, ranks}, report) {
  const boxes = tensors.map(() => /** @type {LogPiece[]} */ ([]));
  const broken = new Set();
  pieces.forEach((piece, i) => {
    const tensor = tensors[piece.tensor];
    if (piece.rank >= ranks) report('UCP-E-LOG', `/pieces/${i}/rank`, `there are ${ranks} ranks`);
    if (!tensor) report('UCP-E-LOG', `/pieces/${i}/tensor`, 'there is no such tensor');
    else if (piece.shape.includes(0) || !fits(piece, tensor.shape)) {
      report('UCP-E-LOG', `/pieces/${i}`, 'empty, or not within its tensor');
      broken.add(piece.tensor);
    } else boxes[piece.tensor].push(piece);
  });
  tensors.forEach(({shape}, i) => {
    const isEmpty = shape.includes(0);
    if (!broken.has(i) && (isEmpty ? boxes[i].length > 0 : !tiles(boxes[i], shape))) {
      report('UCP-E-LOG', `/tensors/${i}`, 'its pieces lack elements, or have some twice');
    }
  });
}

/**
 * The groups have each tensor with gradients once (UCP-D-156).
 * @param {Epoch} epoch
 * @param {Report} report
 */
function checkGroups({tensors, groups}, report) {
  const seen = new Set();
  groups.forEach((group, i) => group.forEach((tensor, j) => {
    if (tensors[tensor]?.role !== 'gradient') {
      report('UCP-E-LOG', `/groups/${i}/${j}`, 'not a tensor that has gradients');
    } else if (seen.has(tensor)) report('UCP-E-LOG', `/groups/${i}/${j}`, 'in a group already');
    seen.add(tensor);
  }));
  tensors.forEach(({role}, i) => {
    if (role === 'gradient' && !seen.has(i)) report('UCP-E-LOG', `/tensors/${i}`, 'in no group');
  });
}
