/**
 * Writing update logs: a log and its epochs, and the batches of their ranks (SPEC-UPDATE-LOGS).
 */

import {Problems, UcpError} from './errors.mjs';
import {
  canonicalText, fromPlain, object, stringify,
} from './json.mjs';
import {bytesOf} from './bytes.mjs';
import {product} from './boxes.mjs';
import {crc32c} from './crc32c.mjs';
import {sha256} from './digest.mjs';
import {sizeOf} from './dtypes.mjs';
import {
  BLOCK_ELEMENTS, batchKey, blocksOf, checkHeader, framed,
} from './log-batch.mjs';
import {LOG_KEY, epochKey, epochOf} from './log-documents.mjs';
import {boxSum, sumText} from './log-replay.mjs';
import {UpdateLog, isLog, requireDocument} from './update-log.mjs';
import {FORMAT_VERSION} from './root.mjs';

/** @typedef {import('./log-documents.mjs').Epoch} Epoch */
/** @typedef {import('./json.mjs').Json} Json */
/** @typedef {() => import('./stores.mjs').Store} Opens the directory of a log, to read it */
/** @typedef {Map<string, Json> | Record<string, unknown>} Tagged values by name: as Maps, or as objects in their place */

/**
 * Where the objects of a log are created.
 * @typedef {object} LogSink
 * @property {(key: string) => boolean} has whether there is an object
 * @property {(key: string, chunks: Uint8Array[]) => void} create makes an object that appears whole
 *   and is durable then; UCP-E-EXISTS where there is one (UCP-W-036)
 */

/**
 * What an epoch is begun with; the members of its document have their names there.
 * @typedef {object} EpochInput
 * @property {number} firstStep
 * @property {number | null} after the epoch that it goes on from; null for the first of a new log
 * @property {number} [number] that it was to get when the log was recovered; one more than the
 *   greatest that is there, if absent
 * @property {number} ranks
 * @property {import('./log-documents.mjs').LoggedTensor[]} tensors
 * @property {import('./log-documents.mjs').LogPiece[]} pieces
 * @property {number[][]} groups
 * @property {{type: string, profile: Map<string, string> | Record<string, string>}} optimizer
 * @property {'bitwise' | 'tolerance' | 'lossy'} exactness
 */

/**
 * What a rank has of a piece: all elements; with `places`, those there, zero elsewhere; with `rows`,
 * those rows, the others untouched. Both ascend.
 * @typedef {{piece: number, bytes: Uint8Array, places?: number[], rows?: number[]}} PieceInput
 */

/**
 * A step of a rank: options of each group; pieces that have a gradient or a value.
 * @typedef {{options: Tagged[], skipped?: boolean, entries: PieceInput[]}} StepInput
 */

/** @typedef {{piece: number, slot: string, bytes: Uint8Array}} SumInput */

/**
 * @typedef {object} BatchInput
 * @property {StepInput[]} steps at least one
 * @property {Tagged[]} [options] of the state behind the last step, where a schedule has changed them
 * @property {Tagged} [values] the rank's own
 * @property {SumInput[]} [sums] elements of pieces in that
 *   state, of which sums are kept
 */

/** 32 digits, drawn at random (UCP-W-040). */
function drawnId() {
  const bytes = globalThis.crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * A document with its envelope, as bytes.
 * @type {(kind: string, members: Record<string, Json>) => Uint8Array}
 */
const documentOf = (kind, members) => bytesOf(stringify(object({
  format: 'ucp',
  format_version: FORMAT_VERSION,
  read_features: [],
  write_features: [],
  extensions: new Map(),
  annotations: new Map(),
  kind,
  ...members,
})));

/**
 * Begins an epoch, the first of a log or one that goes on from another (UCP-W-038).
 * @param {Opens} open
 * @param {LogSink} sink the same directory, to write
 * @param {EpochInput} input
 * @returns {EpochWriter}
 * @throws {UcpError} UCP-E-EXISTS without `after` where the log has epochs; UCP-E-FENCED where another
 *   process has begun that epoch; UCP-E-MISSING where only the document of the log is gone; what is wrong
 *   with the input
 */
export function beginEpoch(open, sink, input) {
  const isNew = input.after === null && !isLog(open());
  const found = isNew ? {id: drawnId(), next: 0, after: null} : foundLog(open, input);
  const number = input.number ?? found.next;
  const {
    ranks, tensors, pieces, groups, exactness, optimizer: {type, profile},
  } = input;
  const bytes = documentOf('update-log-epoch', {
    log: found.id,
    epoch: number,
    start: drawnId(),
    first_step: input.firstStep,
    after: found.after,
    ranks,
    tensors: fromPlain(tensors),
    pieces: fromPlain(pieces),
    groups,
    optimizer: object({type, profile: fromPlain(profile)}),
    exactness,
  });
  const epoch = epochOf(bytes, number, found.id);
  if (isNew) create(open, sink, found.id);
  try {
    sink.create(epochKey(number), [bytes]);
  } catch (error) {
    if (!(error instanceof UcpError && error.code === 'UCP-E-EXISTS')) throw error;
    throw new UcpError('UCP-E-FENCED', epochKey(number), 'another process has begun this epoch: recover again');
  }
  return new EpochWriter(sink, epoch);
}

/**
 * Creates a log, unless all but its document is there.
 * @param {Opens} open
 * @param {LogSink} sink
 * @param {string} id
 */
function create(open, sink, id) {
  const store = open();
  try {
    requireDocument(store);
  } finally {
    store.close();
  }
  sink.create(LOG_KEY, [documentOf('update-log', {id})]);
}

/**
 * What a new epoch takes from the log that it is of.
 * @param {Opens} open
 * @param {EpochInput} input
 */
function foundLog(open, {after, firstStep}) {
  const log = new UpdateLog(open());
  try {
    const last = log.numbers.at(-1);
    if (after === null && last !== undefined) {
      throw new UcpError('UCP-E-EXISTS', epochKey(last), 'the log has epochs; name the one to go on from');
    }
    const before = after === null ? null : log.epoch(after);
    if (before && before.first_step > firstStep) { // UCP-D-153
      throw new UcpError('UCP-E-LOG', before.key, `it begins with step ${before.first_step}, behind ${firstStep}`);
    }
    const named = before && object({epoch: before.epoch, digest: before.digest});
    return {id: log.id, next: last === undefined ? 0 : last + 1, after: named};
  } finally {
    log.close();
  }
}

/** Writes the batches of an epoch that this process has begun; each rank's in order. */
export class EpochWriter {
  #sink;
  /** @type {Map<number, {stop: number, previous: string}>} where ranks stand, and what they go on from */
  #ranks = new Map();
  /** @type {Map<number, UcpError>} why ranks write no more */
  #failed = new Map();

  /**
   * @param {LogSink} sink
   * @param {Epoch} epoch
   */
  constructor(sink, epoch) {
    this.#sink = sink;
    this.epoch = epoch;
  }

  /**
   * Writes a batch, which is durable when this returns.
   * @param {number} rank
   * @param {BatchInput} batch
   * @returns {number} the state behind it
   * @throws {UcpError} UCP-E-FENCED where another epoch has begun; UCP-E-EXISTS where there is such a
   *   batch; what is wrong with the input. A rank that has failed writes no more.
   */
  write(rank, batch) {
    const failure = this.#failed.get(rank);
    if (failure) throw failure;
    try {
      return this.#write(rank, batch);
    } catch (error) {
      if (error instanceof UcpError) this.#failed.set(rank, error);
      throw error;
    }
  }

  /**
   * @param {number} rank
   * @param {BatchInput} batch
   */
  #write(rank, batch) {
    const {epoch} = this;
    if (this.#sink.has(epochKey(epoch.epoch + 1))) { // UCP-W-039
      throw new UcpError('UCP-E-FENCED', epoch.key, `epoch ${epoch.epoch + 1} has begun: another process goes on`);
    }
    const {stop: first, previous} = this.#ranks.get(rank) ?? {stop: epoch.first_step, previous: epoch.digest};
    const {header, payload} = encoded(epoch, rank, first, previous, batch);
    const {bytes, digest} = framed(bytesOf(canonicalText(header)));
    this.#sink.create(batchKey(epoch.epoch, rank, first), [bytes, ...payload]);
    const stop = first + batch.steps.length;
    this.#ranks.set(rank, {stop, previous: digest});
    return stop;
  }
}

/**
 * The header of a batch, checked as readers do, and the bytes behind it.
 * @param {Epoch} epoch
 * @param {number} rank
 * @param {number} first
 * @param {string} previous digest of what it goes on from
 * @param {BatchInput} batch
 */
function encoded(epoch, rank, first, previous, {
  steps, options, values = new Map(), sums = [],
}) {
  /** @type {Uint8Array[]} */
  const payload = [];
  /** @type {string | null} */
  let before = null;
  const records = steps.map((step) => {
    const entries = step.entries.map((entry) => encodedEntry(epoch, entry));
    const chunks = entries.flatMap(({bytes}) => bytes);
    payload.push(...chunks);
    const stated = fromPlain(step.options);
    const text = canonicalText(stated);
    const isNew = text !== before;
    before = text;
    return object({
      options: isNew ? stated : undefined,
      skipped: step.skipped ? true : undefined,
      length: chunks.reduce((sum, chunk) => sum + chunk.length, 0),
      checksum: chunks.reduce((crc, chunk) => crc32c(chunk, crc), 0),
      entries: entries.map(({entry}) => entry),
    });
  });
  const found = sumsOf(epoch, sums);
  const header = object({
    log: epoch.log,
    epoch: epoch.epoch,
    rank,
    first_step: first,
    previous,
    steps: records,
    options: options && fromPlain(options),
    values: fromPlain(values),
    sums: found.length > 0 ? found : undefined,
  });
  const problems = new Problems();
  checkHeader(header, epoch, rank, first, previous, 0, problems);
  problems.raise();
  return {header, payload};
}

/**
 * An entry in the form that takes fewest bytes, and its bytes.
 * @param {Epoch} epoch
 * @param {PieceInput} input
 * @returns {{entry: Map<string, Json>, bytes: Uint8Array[]}}
 */
function encodedEntry(epoch, {
  piece: number, bytes, places, rows,
}) {
  const piece = pieceOf(epoch, number);
  const {role} = epoch.tensors[piece.tensor];
  const elements = product(piece.shape);
  const told = rows ? rows.length * product(piece.shape.slice(1)) : places?.length ?? elements;
  const limit = rows ? piece.shape[0] : elements;
  const listed = rows ?? places ?? [];
  const size = requireBytes(epoch, number, told, bytes);
  if (listed.some((place, i) => !Number.isInteger(place) || place >= limit || place <= (listed[i - 1] ?? -1))) {
    throw new UcpError('UCP-E-MISMATCH', epoch.key, `places that do not ascend, or leave piece ${number}`);
  }
  if (rows) {
    const entry = object({piece: number, form: 'rows', count: rows.length});
    return {entry, bytes: [littleEndian(rows, 4), bytes]};
  }
  const there = role === 'gradient' ? places ?? nonZero(bytes, size) : null;
  if (there && (places || 4 * blocksOf(elements) + there.length * (2 + size) < bytes.length)) {
    const counts = new Array(blocksOf(elements)).fill(0);
    for (const place of there) counts[Math.floor(place / BLOCK_ELEMENTS)] += 1;
    const within = there.map((place) => place % BLOCK_ELEMENTS);
    const values = places ? bytes : gathered(bytes, there, size);
    const entry = object({piece: number, form: 'sparse', count: there.length});
    return {entry, bytes: [littleEndian(counts, 4), littleEndian(within, 2), values]};
  }
  return {entry: object({piece: number, form: 'dense'}), bytes: [bytes]};
}

/**
 * A piece of an epoch by its number.
 * @param {Epoch} epoch
 * @param {number} number
 */
function pieceOf({pieces, key}, number) {
  if (!pieces[number]) throw new UcpError('UCP-E-LOG', key, `there is no piece ${number}`);
  return pieces[number];
}

/**
 * Refuses other bytes than so many elements of a piece have; returns those of one.
 * @param {Epoch} epoch
 * @param {number} number of the piece
 * @param {number} elements
 * @param {Uint8Array} bytes
 */
function requireBytes({tensors, pieces, key}, number, elements, {length}) {
  const {dtype} = tensors[pieces[number].tensor];
  const size = sizeOf(dtype);
  if (length !== elements * size) {
    throw new UcpError('UCP-E-MISMATCH', key, `${length} bytes for ${elements} elements of piece ${number}`);
  }
  return size;
}

/**
 * Places of the elements of which a bit is set.
 * @param {Uint8Array} bytes
 * @param {number} size of an element
 */
function nonZero(bytes, size) {
  const places = [];
  for (let at = 0; at < bytes.length; at += 1) {
    if (bytes[at] === 0) continue;
    const place = Math.floor(at / size);
    places.push(place);
    at = (place + 1) * size - 1;
  }
  return places;
}

/**
 * The elements at places, one behind the other.
 * @param {Uint8Array} bytes
 * @param {number[]} places
 * @param {number} size of an element
 */
function gathered(bytes, places, size) {
  const values = new Uint8Array(places.length * size);
  places.forEach((place, i) => values.set(bytes.subarray(place * size, (place + 1) * size), i * size));
  return values;
}

/**
 * @param {number[]} numbers
 * @param {2 | 4} size of each
 */
function littleEndian(numbers, size) {
  const bytes = new Uint8Array(numbers.length * size);
  const view = new DataView(bytes.buffer);
  numbers.forEach((number, i) => (size === 4 ? view.setUint32(4 * i, number, true) : view.setUint16(2 * i, number, true)));
  return bytes;
}

/**
 * The sum of each tensor and slot, of all pieces that are given (section 5).
 * @param {Epoch} epoch
 * @param {SumInput[]} given
 */
function sumsOf(epoch, given) {
  /** @type {Map<string, {tensor: number, slot: string, sum: bigint}>} */
  const found = new Map();
  for (const {piece: number, slot, bytes} of given) {
    const piece = pieceOf(epoch, number);
    requireBytes(epoch, number, product(piece.shape), bytes);
    const {tensor} = piece;
    const {shape, dtype} = epoch.tensors[tensor];
    const name = `${tensor} ${slot}`;
    const before = found.get(name)?.sum ?? 0n;
    found.set(name, {tensor, slot, sum: BigInt.asUintN(64, before + boxSum(bytes, piece, shape, dtype))});
  }
  return [...found.values()].map(({tensor, slot, sum}) => object({tensor, slot, sum: sumText(sum)}));
}
