/**
 * Batches of an update log: a header, and the bytes of entries (SPEC-UPDATE-LOGS section 3).
 */

import {Problems, UcpError} from './errors.mjs';
import {parse, place, token} from './json.mjs';
import {bytesOf, sameBytes} from './bytes.mjs';
import {product} from './boxes.mjs';
import {crc32c} from './crc32c.mjs';
import {sha256} from './digest.mjs';
import {sizeOf} from './dtypes.mjs';
import {MAX_DOCUMENT} from './root.mjs';
import {checkSchema} from './schema.mjs';
import {checkValue} from './values.mjs';

/** @typedef {import('./log-documents.mjs').Epoch} Epoch */
/** @typedef {{piece: number, form: 'dense' | 'rows' | 'sparse', count: number | undefined, length: number}} Entry `count` of rows or places */
/** @typedef {Map<string, any>} Members of an object of a header, as its schema has them */
/** @typedef {(pointer: string, detail: string) => void} Report */

/**
 * @typedef {object} Step
 * @property {boolean} skipped
 * @property {Members[]} options that hold for the step, whichever step of the batch has stated them
 * @property {Entry[]} entries
 * @property {number} start where its bytes begin in the object
 * @property {number} length
 * @property {number} checksum
 * @property {string} at
 */

/**
 * @typedef {object} Batch
 * @property {string} key
 * @property {string} digest of the header
 * @property {number} rank
 * @property {number} first
 * @property {number} stop
 * @property {Step[]} steps
 * @property {{tensor: number, slot: string, sum: bigint}[]} sums
 */

const MAGIC = bytesOf('UCPBATCH');
const PREFIX = MAGIC.length + 8 + 32;
/** Elements among which two bytes tell a place. */
export const BLOCK_ELEMENTS = 65536;

/** @type {(epoch: number, rank: number, first: number) => string} */
export const batchKey = (epoch, rank, first) => `batches/${epoch}/${rank}/${first}.batch`;

/** A batch is shorter than it says, as a crash leaves it. */
export class TornError extends UcpError {
  /** @param {string} key */
  constructor(key) {
    super('UCP-E-LOG', key, 'the batch is shorter than it says');
  }
}

/**
 * In how many blocks places are told of a piece with so many elements.
 * @param {number} elements
 */
export const blocksOf = (elements) => Math.ceil(elements / BLOCK_ELEMENTS);

/**
 * Bytes of an entry.
 * @param {Pick<Entry, 'form' | 'count'>} entry
 * @param {number[]} shape of its piece
 * @param {number} size of an element
 */
function entryLength({form, count = 0}, shape, size) {
  const elements = product(shape);
  if (form === 'dense') return elements * size;
  if (form === 'sparse') return 4 * blocksOf(elements) + count * (2 + size);
  return count * (4 + (elements / shape[0]) * size);
}

/**
 * Reads the header: its JSON, its digest, and where the payload begins.
 * @param {import('./stores.mjs').Store} store
 * @param {string} key
 * @param {number} length of the object
 */
function readHeader(store, key, length) {
  const head = store.read(key, 0, Math.min(length, PREFIX));
  const known = Math.min(length, MAGIC.length);
  if (!sameBytes(head.subarray(0, known), MAGIC.subarray(0, known))) {
    throw new UcpError('UCP-E-LOG', key, 'this is not a batch');
  }
  if (length < PREFIX) throw new TornError(key);
  const view = new DataView(head.buffer, head.byteOffset, head.byteLength);
  const size = view.getBigUint64(MAGIC.length, true);
  if (size > MAX_DOCUMENT) throw new UcpError('UCP-E-LIMIT', key, `a header of ${size} bytes`);
  const start = PREFIX + Number(size);
  if (length < start) throw new TornError(key);
  const bytes = store.read(key, PREFIX, Number(size));
  const digest = sha256(bytes);
  if (!sameBytes(digestBytes(digest), head.subarray(PREFIX - 32))) throw new UcpError('UCP-E-LOG', key, 'the header has another SHA-256');
  return {header: /** @type {Members} */ (parse(bytes, key)), digest, start};
}

/**
 * Values of a header are canonical (UCP-R-023).
 * @param {Members} header
 * @param {string} key
 * @param {Problems} problems
 */
function checkValues(header, key, problems) {
  /** @type {(members: Members, pointer: string) => void} */
  const named = (members, pointer) => {
    for (const [name, value] of members) checkValue(value, key, pointer + token(name), problems);
  };
  /** @type {(groups: Members[] | undefined, pointer: string) => void} */
  const options = (groups, pointer) => groups?.forEach((group, i) => named(group, `${pointer}/options/${i}`));
  named(header.get('values'), '/values');
  options(header.get('options'), '');
  /** @type {Members[]} */ (header.get('steps')).forEach((step, i) => options(step.get('options'), `/steps/${i}`));
}

/**
 * @param {Members} value
 * @param {number} before greatest piece of the entries before
 * @param {boolean} skipped
 * @param {number} rank
 * @param {Epoch} epoch
 * @param {Report} report
 * @returns {Entry | null} null where it is refused
 */
function readEntry(value, before, skipped, rank, epoch, report) {
  const [number, form] = [value.get('piece'), value.get('form')];
  if (number <= before) report('/piece', 'entries do not ascend by their pieces'); // UCP-D-160
  const piece = epoch.pieces[number];
  if (piece?.rank !== rank) {
    report('/piece', 'not a piece of this rank');
    return null;
  }
  const tensor = epoch.tensors[piece.tensor];
  if (tensor.role !== 'gradient' && form !== 'dense') report('/form', `a ${tensor.role} that is not dense`); // UCP-D-166
  if (tensor.role === 'gradient' && skipped) report('', 'a gradient of a step that was skipped'); // UCP-D-165
  if (form === 'rows' && piece.shape.length === 0) {
    report('/form', 'rows of a piece without dimensions');
    return null;
  }
  const count = value.get('count');
  const length = entryLength({form, count}, piece.shape, sizeOf(tensor.dtype));
  return {piece: number, form, count, length};
}

/**
 * @param {Members} header
 * @param {Epoch} epoch
 * @param {string} key
 * @param {number} payload where the bytes of steps begin in the object
 * @param {Problems} problems
 * @returns {Step[]}
 */
function readSteps(header, epoch, key, payload, problems) {
  /** @type {Members[] | undefined} */
  let options;
  let start = payload;
  return /** @type {Members[]} */ (header.get('steps')).map((step, i) => {
    /** @type {Report} */
    const report = (pointer, detail) => problems.add('UCP-E-LOG', place(key, `/steps/${i}${pointer}`), detail);
    options = step.get('options') ?? options;
    if (!options) report('', 'the first step has no options'); // UCP-D-164
    if (step.has('options') && step.get('options').length !== epoch.groups.length) { // UCP-D-169
      report('/options', `the epoch has ${epoch.groups.length} groups`);
    }
    const skipped = step.has('skipped');
    let before = -1;
    const read = /** @type {Members[]} */ (step.get('entries')).map((value, j) => {
      const entry = readEntry(value, before, skipped, header.get('rank'), epoch,
        (pointer, detail) => report(`/entries/${j}${pointer}`, detail));
      before = Math.max(before, value.get('piece'));
      return entry;
    });
    const length = step.get('length');
    const entries = read.filter((entry) => entry !== null);
    if (entries.length === read.length && entries.reduce((sum, entry) => sum + entry.length, 0) !== length) { // UCP-D-161
      report('/length', 'not the length of its entries');
    }
    const at = place(key, `/steps/${i}`);
    const found = {
      skipped, options: options ?? [], entries, start, length, checksum: step.get('checksum'), at,
    };
    start += length;
    return found;
  });
}

/**
 * The steps and sums of a header; what is wrong with it is added to the problems.
 * @param {Members} header
 * @param {Epoch} epoch
 * @param {number} rank
 * @param {number} first
 * @param {string | null} previous what it goes on from; null where that was removed
 * @param {number} payload where the bytes of steps begin in the object
 * @param {Problems} problems
 */
export function checkHeader(header, epoch, rank, first, previous, payload, problems) {
  const key = batchKey(epoch.epoch, rank, first);
  checkSchema('update-log-batch', header, key, problems);
  problems.raise();
  checkValues(header, key, problems);
  /** @type {Report} */
  const report = (pointer, detail) => problems.add('UCP-E-LOG', place(key, pointer), detail);
  const stated = {epoch: epoch.epoch, rank, first_step: first};
  for (const [name, wanted] of Object.entries(stated)) { // UCP-D-151
    if (header.get(name) !== wanted) report(`/${name}`, 'not what its key says');
  }
  if (header.get('log') !== epoch.log) report('/log', 'a batch of another log'); // UCP-D-158
  if (rank >= epoch.ranks) report('/rank', `the epoch has ${epoch.ranks} ranks`);
  if (first < epoch.first_step) report('/first_step', `the epoch begins with step ${epoch.first_step}`);
  if (previous !== null && header.get('previous') !== previous) report('/previous', 'it goes on from another'); // UCP-D-159
  const behind = header.get('options');
  if (behind && behind.length !== epoch.groups.length) report('/options', `the epoch has ${epoch.groups.length} groups`);
  const sums = /** @type {Members[]} */ (header.get('sums') ?? []).map((sum, i) => {
    if (sum.get('tensor') >= epoch.tensors.length) report(`/sums/${i}/tensor`, 'there is no such tensor');
    return {tensor: sum.get('tensor'), slot: sum.get('slot'), sum: BigInt(`0x${sum.get('sum')}`)};
  });
  return {steps: readSteps(header, epoch, key, payload, problems), sums};
}

/**
 * A batch, every byte of which was looked at.
 * @param {import('./stores.mjs').Store} store
 * @param {Epoch} epoch
 * @param {number} rank
 * @param {number} first
 * @param {string | null} previous what it goes on from; null where that was removed
 * @returns {Batch}
 * @throws {UcpError} what is wrong with it, {@link TornError} among that
 */
export function readBatch(store, epoch, rank, first, previous) {
  const key = batchKey(epoch.epoch, rank, first);
  const length = store.lengthOf(key);
  const {header, digest, start} = readHeader(store, key, length);
  const problems = new Problems();
  const {steps, sums} = checkHeader(header, epoch, rank, first, previous, start, problems);
  problems.raise();
  const end = start + steps.reduce((sum, step) => sum + step.length, 0);
  if (length < end) throw new TornError(key);
  if (length > end) throw new UcpError('UCP-E-LOG', key, 'it is longer than its steps'); // UCP-D-157
  const batch = {key, digest, rank, first, stop: first + steps.length, steps, sums};
  for (const step of steps) stepBytes(store, batch, step);
  return batch;
}

/**
 * What a batch begins with, and the digest that the next one names as `previous`.
 * @param {Uint8Array} header its bytes
 */
export function framed(header) {
  const digest = sha256(header);
  const bytes = new Uint8Array(PREFIX + header.length);
  bytes.set(MAGIC);
  new DataView(bytes.buffer).setBigUint64(MAGIC.length, BigInt(header.length), true);
  bytes.set(digestBytes(digest), PREFIX - 32);
  bytes.set(header, PREFIX);
  return {bytes, digest};
}

/**
 * The 32 bytes of a digest.
 * @param {string} digest
 */
const digestBytes = (digest) => Uint8Array.from({length: 32},
  (_, i) => parseInt(digest.slice(7 + 2 * i, 9 + 2 * i), 16));

/**
 * The bytes of a step, checked (UCP-D-162).
 * @param {import('./stores.mjs').Store} store
 * @param {Batch} batch
 * @param {Step} step
 */
export function stepBytes(store, {key}, {start, length, checksum, at}) {
  const bytes = store.read(key, start, length);
  if (crc32c(bytes) !== checksum) throw new UcpError('UCP-E-CHECKSUM', at, 'another CRC-32C than recorded');
  return bytes;
}

/**
 * Where the elements or rows of an entry belong in its piece; null of a dense one (UCP-D-163).
 * @param {Entry} entry
 * @param {Uint8Array} bytes of the entry
 * @param {number[]} shape of the piece
 * @param {string} at place of the step
 * @returns {{places: number[] | null, values: Uint8Array}} values lie one behind the other
 */
export function placesOf({form, count = 0}, bytes, shape, at) {
  if (form === 'dense') return {places: null, values: bytes};
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  /** @type {number[]} */
  const places = [];
  const [limit, table] = form === 'rows' ? [shape[0], 0] : [product(shape), blocksOf(product(shape))];
  if (form === 'rows') {
    for (let i = 0; i < count; i += 1) places.push(view.getUint32(4 * i, true));
  } else {
    for (let block = 0; block < table; block += 1) {
      const end = places.length + view.getUint32(4 * block, true);
      if (end > count) throw new UcpError('UCP-E-LOG', at, `more than ${count} places`);
      while (places.length < end) {
        places.push(block * BLOCK_ELEMENTS + view.getUint16(4 * table + 2 * places.length, true));
      }
    }
    if (places.length !== count) throw new UcpError('UCP-E-LOG', at, `${places.length} places, not ${count}`);
  }
  places.forEach((here, i) => {
    if (here >= limit || (i > 0 && here <= places[i - 1])) {
      throw new UcpError('UCP-E-LOG', at, 'places that do not ascend, or leave the piece');
    }
  });
  return {places, values: bytes.subarray(form === 'rows' ? 4 * count : 4 * table + 2 * count)};
}
