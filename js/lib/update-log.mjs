/**
 * Update logs: which of their steps count (SPEC-UPDATE-LOGS section 4), and what is wrong with them.
 */

import {Problems, UcpError} from './errors.mjs';
import {canonicalText, place} from './json.mjs';
import {
  TornError, batchKey, placesOf, readBatch, stepBytes,
} from './log-batch.mjs';
import {
  LOG_KEY, epochKey, readEpoch, readLogDocument,
} from './log-documents.mjs';

/** @typedef {import('./log-documents.mjs').Epoch} Epoch */
/** @typedef {import('./log-batch.mjs').Batch} Batch */

/**
 * The batches of a rank that count.
 * @typedef {object} Chain
 * @property {number} first where the first that is there begins
 * @property {number} stop the state behind the last one
 * @property {Batch[]} batches
 * @property {(import('./errors.mjs').Problem & {torn: boolean}) | null} fault what ends it
 * @property {boolean} broken whether batches lie behind the fault
 */

/** Steps `first_step` to `stop` of an epoch; `stop` is null of the last one. @typedef {{epoch: Epoch, stop: number | null}} Stretch */

/** What all ranks have of a step. @typedef {{step: number, ranks: import('./log-batch.mjs').Step[], entries: Map<number, {entry: import('./log-batch.mjs').Entry, bytes: Uint8Array, at: string}>}} WholeStep */

const KEY = /^(?:epochs\/(0|[1-9][0-9]*)\.json|batches\/(0|[1-9][0-9]*)\/(0|[1-9][0-9]*)\/(0|[1-9][0-9]*)\.batch)$/;

export class UpdateLog {
  /** @type {Map<number, Epoch>} */
  #epochs = new Map();
  /** @type {Map<string, Chain>} */
  #chains = new Map();

  /** @param {import('./stores.mjs').Store} store of the log's own directory */
  constructor(store) {
    this.store = store;
    /** @type {number[]} of epochs */
    this.numbers = [];
    /** @type {Map<number, Map<number, number[]>>} first steps of batches, by epoch and rank */
    this.there = new Map();
    try {
      /** @type {string} */
      this.id = identity(store);
      this.#list();
    } catch (error) {
      store.close();
      throw error;
    }
  }

  /** What lies there, by keys; others are ignored (UCP-R-038). */
  #list() {
    const keys = [...this.store.list()];
    if (!keys.includes(LOG_KEY)) {
      throw new UcpError('UCP-E-STORE', LOG_KEY, 'nothing is listed here, as on web servers, and the keys of a log have to be: open a copy');
    }
    for (const key of keys) {
      const [, number, ...batch] = KEY.exec(key) ?? [];
      if (number !== undefined && Number.isSafeInteger(Number(number))) this.numbers.push(Number(number));
      if (batch[0] === undefined || !batch.every((text) => Number.isSafeInteger(Number(text)))) continue;
      const [epoch, rank, first] = batch.map(Number);
      /** @type {Map<number, number[]>} */
      const ranks = this.there.get(epoch) ?? new Map();
      const firsts = ranks.get(rank) ?? [];
      firsts.push(first);
      this.there.set(epoch, ranks.set(rank, firsts));
    }
    this.numbers.sort((a, b) => a - b);
    for (const ranks of this.there.values()) for (const firsts of ranks.values()) firsts.sort((a, b) => a - b);
  }

  /**
   * @param {number} number
   * @returns {Epoch}
   */
  epoch(number) {
    const epoch = this.#epochs.get(number) ?? readEpoch(this.store, number, this.id);
    this.#epochs.set(number, epoch);
    return epoch;
  }

  /**
   * The epoch that another goes on from, or null; they fit together (UCP-D-153).
   * @param {Epoch} epoch
   */
  before(epoch) {
    if (epoch.after === null) return null;
    const before = this.epoch(epoch.after.epoch);
    if (before.digest !== epoch.after.digest) {
      throw new UcpError('UCP-E-LOG', place(epoch.key, '/after/digest'), 'another document has that digest');
    }
    if (before.first_step > epoch.first_step) {
      throw new UcpError('UCP-E-LOG', place(epoch.key, '/first_step'), `epoch ${before.epoch} begins behind it`);
    }
    return before;
  }

  /**
   * The epochs whose steps count, the earliest first.
   * @returns {Stretch[]}
   */
  branch() {
    /** @type {Stretch[]} */
    const found = [];
    let stop = null;
    for (let epoch = this.numbers.length > 0 ? this.epoch(this.numbers[this.numbers.length - 1]) : null; epoch; epoch = this.before(epoch)) {
      found.unshift({epoch, stop});
      stop = epoch.first_step;
    }
    return found;
  }

  /**
   * The batches of a rank that count from a state on: up to the first that is missing, torn or damaged.
   * @param {Epoch} epoch
   * @param {number} rank
   * @param {number} state
   * @returns {Chain}
   */
  chain(epoch, rank, state) {
    const name = `${epoch.epoch}/${rank}/${state}`;
    const chain = this.#chains.get(name) ?? this.#walk(epoch, rank, state);
    this.#chains.set(name, chain);
    return chain;
  }

  /**
   * @param {Epoch} epoch
   * @param {number} rank
   * @param {number} state
   */
  #walk(epoch, rank, state) {
    const there = this.there.get(epoch.epoch)?.get(rank) ?? [];
    // What ends before the state may be removed or damaged, and is of no concern.
    const firsts = there.slice(Math.max(0, there.filter((one) => one <= state).length - 1));
    const first = firsts[0] ?? epoch.first_step;
    /** @type {Chain} */
    const chain = {first, stop: first, batches: [], fault: null, broken: false};
    let previous = first === epoch.first_step ? epoch.digest : null;
    for (const here of firsts) {
      /** @type {(at: string, detail: string) => Chain['fault']} */
      const fault = (at, detail) => ({code: 'UCP-E-LOG', at, detail, torn: false});
      if (here > chain.stop) {
        chain.fault = fault(batchKey(epoch.epoch, rank, chain.stop), 'the batch is missing, and others lie behind it');
        chain.broken = true;
      } else if (here < chain.stop) {
        chain.fault = fault(batchKey(epoch.epoch, rank, here), 'it begins within the batch before it');
      } else {
        try {
          const batch = readBatch(this.store, epoch, rank, here, previous);
          chain.batches.push(batch);
          previous = batch.digest;
          chain.stop = batch.stop;
        } catch (error) {
          if (!(error instanceof UcpError)) throw error;
          const {code, at, detail} = error;
          chain.fault = {code, at, detail, torn: error instanceof TornError};
        }
      }
      if (chain.fault) {
        chain.broken ||= here !== firsts.at(-1);
        break;
      }
    }
    return chain;
  }

  /**
   * The same of all ranks.
   * @param {Epoch} epoch
   * @param {number} [state]
   */
  chains(epoch, state = 0) {
    return Array.from({length: epoch.ranks}, (_, rank) => this.chain(epoch, rank, state));
  }

  /**
   * Where a recovery ends that begins with a state on the branch (UCP-R-039, UCP-R-040).
   * @param {{epoch: number, step: number}} from
   * @param {{allowLoss?: boolean}} [options] whether steps that were durable may be lost
   * @returns {{step: number, stretches: {epoch: Epoch, from: number, stop: number}[]}} the state at
   *   the end, and the steps to replay
   */
  recovery(from, {allowLoss = false} = {}) {
    const branch = this.branch();
    const begin = branch.findIndex(({epoch}) => epoch.epoch === from.epoch);
    /** @type {(at: string, detail: string) => never} */
    const refuse = (at, detail) => {
      throw new UcpError('UCP-E-LOG', at, detail);
    };
    if (begin < 0) refuse(epochKey(from.epoch), 'the checkpoint is of an epoch that is not on the branch');
    const {epoch: own, stop: end} = branch[begin];
    if (from.step < own.first_step || (end !== null && from.step > end)) {
      refuse(own.key, `the branch has not the state ${from.step} of the epoch`);
    }
    let {step} = from;
    const stretches = [];
    for (const {epoch, stop} of branch.slice(begin)) {
      if (stop !== null && step >= stop) continue;
      const chains = this.chains(epoch, step);
      const removed = chains.find(({first}) => first > step);
      if (removed) refuse(epoch.key, `steps behind state ${step} are no longer there`);
      const durable = Math.min(...chains.map((chain) => chain.stop));
      const through = stop !== null && durable >= stop;
      const to = through ? stop : Math.max(step, commonEnd(chains, durable));
      if (to > step) stretches.push({epoch, from: step, stop: to});
      step = to;
      if (through) continue;
      const broken = chains.find((chain) => chain.broken);
      if ((broken || stop !== null) && !allowLoss) {
        const fault = broken?.fault ?? chains.find((chain) => chain.fault)?.fault;
        refuse(fault?.at ?? epoch.key, `durable steps behind state ${step} would be lost`);
      }
      break;
    }
    return {step, stretches};
  }

  /**
   * Steps with what all ranks have of them.
   * @param {Epoch} epoch
   * @param {number} from
   * @param {number} stop
   * @returns {Generator<WholeStep>}
   */
  * steps(epoch, from, stop) {
    const chains = this.chains(epoch, from);
    const at = chains.map(() => 0);
    for (let step = from; step < stop; step += 1) {
      /** @type {WholeStep['entries']} */
      const entries = new Map();
      const ranks = chains.map(({batches}, rank) => {
        while (batches[at[rank]].stop <= step) at[rank] += 1;
        const batch = batches[at[rank]];
        const record = batch.steps[step - batch.first];
        const bytes = stepBytes(this.store, batch, record);
        let start = 0;
        for (const entry of record.entries) {
          entries.set(entry.piece, {entry, bytes: bytes.subarray(start, start + entry.length), at: record.at});
          start += entry.length;
        }
        return record;
      });
      yield {step, ranks, entries};
    }
  }

  /**
   * The sums that all ranks together have of a state behind another, by tensor and slot; none where a batch goes on.
   * @param {Epoch} epoch
   * @param {number} from
   * @param {number} state
   */
  sumsOf(epoch, from, state) {
    const ends = this.chains(epoch, from).map(({batches}) => batches.find(({stop}) => stop === state));
    /** @type {Map<number, Map<string, bigint>>} */
    const sums = new Map();
    if (ends.includes(undefined)) return sums;
    for (const {tensor, slot, sum} of ends.flatMap((batch) => batch?.sums ?? [])) {
      /** @type {Map<string, bigint>} */
      const of = sums.get(tensor) ?? new Map();
      sums.set(tensor, of.set(slot, BigInt.asUintN(64, (of.get(slot) ?? 0n) + sum)));
    }
    return sums;
  }

  close() {
    this.store.close();
  }
}

/**
 * The last state, not behind the durable one, where all ranks have the end of a batch.
 * @param {Chain[]} chains
 * @param {number} durable
 */
function commonEnd(chains, durable) {
  const [one, ...others] = chains.map(({first, batches}) => new Set([first, ...batches.map(({stop}) => stop)]));
  const common = [...one].filter((end) => end <= durable && others.every((ends) => ends.has(end)));
  return Math.max(-1, ...common);
}

/**
 * What ranks say of a step together (UCP-D-167, UCP-D-168), and places in its pieces (UCP-D-163).
 * @param {Epoch} epoch
 * @param {WholeStep} step
 */
export function checkStep({tensors, pieces}, {ranks, entries}) {
  const [first] = ranks;
  const options = canonicalText(first.options);
  for (const other of ranks) {
    if (other.skipped !== first.skipped) throw new UcpError('UCP-E-LOG', other.at, 'some ranks skip the step');
    if (other !== first && canonicalText(other.options) !== options) {
      throw new UcpError('UCP-E-LOG', other.at, 'ranks have other options of the step');
    }
  }
  const forms = tensors.map(() => /** @type {Set<string | undefined>} */ (new Set()));
  pieces.forEach(({tensor}, piece) => forms[tensor].add(entries.get(piece)?.entry.form));
  tensors.forEach(({atom, role}, i) => {
    const isWhole = !forms[i].has(undefined) && !(forms[i].has('rows') && forms[i].size > 1);
    if (role !== 'value' && !isWhole && !(forms[i].has(undefined) && forms[i].size === 1)) {
      throw new UcpError('UCP-E-LOG', first.at, `a ${role} of ${atom} of some pieces, or of rows of some`);
    }
  });
  for (const [piece, {entry, bytes, at}] of entries) placesOf(entry, bytes, pieces[piece].shape, at);
}

/**
 * The `id` of a log.
 * @param {import('./stores.mjs').Store} store
 */
function identity(store) {
  try {
    return readLogDocument(store);
  } catch (error) {
    if (error instanceof UcpError && error.code === 'UCP-E-NOT-FOUND') requireDocument(store);
    throw error;
  }
}

/**
 * Refuses what is left of a log whose document is gone (section 4).
 * @param {import('./stores.mjs').Store} store
 */
export function requireDocument(store) {
  // In this order, since who creates a log begins with its document.
  if ([...store.list()].some((key) => KEY.test(key)) && !hasDocument(store)) {
    throw new UcpError('UCP-E-MISSING', LOG_KEY, 'the document of the log is gone, and epochs or batches are there');
  }
}

/** @param {import('./stores.mjs').Store} store */
function hasDocument(store) {
  try {
    return store.lengthOf(LOG_KEY) >= 0;
  } catch (error) {
    if (!(error instanceof UcpError)) throw error;
    return false;
  }
}

/**
 * Whether an update log lies in a store, which is closed.
 * @param {import('./stores.mjs').Store} store
 */
export function isLog(store) {
  try {
    return hasDocument(store);
  } finally {
    store.close();
  }
}

/**
 * Everything that is wrong with a log that can be reached (UCP-V-004).
 * @param {import('./stores.mjs').Store} store
 * @returns {import('./errors.mjs').Problem[]}
 */
export function validateLog(store) {
  const problems = new Problems();
  const log = problems.guard(() => new UpdateLog(store));
  if (!log) return problems.list;
  try {
    for (const number of log.numbers) problems.guard(() => validateEpoch(log, number, problems));
    for (const number of log.there.keys()) {
      if (!log.numbers.includes(number)) {
        problems.add('UCP-E-MISSING', epochKey(number), 'there are batches of the epoch, and no document');
      }
    }
    return problems.list;
  } finally {
    log.close();
  }
}

/**
 * @param {UpdateLog} log
 * @param {number} number
 * @param {Problems} problems
 */
function validateEpoch(log, number, problems) {
  const epoch = log.epoch(number);
  try {
    log.before(epoch);
  } catch (error) {
    // What is wrong with the other epoch by itself is told once.
    if (!(error instanceof UcpError)) throw error;
    if (error.code === 'UCP-E-MISSING' || error.at.startsWith(epoch.key)) problems.catch(error);
  }
  for (const [rank, firsts] of log.there.get(number) ?? []) {
    if (rank >= epoch.ranks) {
      problems.add('UCP-E-LOG', batchKey(number, rank, firsts[0]), `the epoch has ${epoch.ranks} ranks`);
    }
  }
  const chains = log.chains(epoch);
  for (const {fault, broken} of chains) {
    if (fault?.torn && !broken) problems.add('UCP-W-UNREFERENCED', fault.at, fault.detail);
    else if (fault) problems.add(fault.code, fault.at, fault.detail);
  }
  const from = Math.max(...chains.map(({first}) => first));
  const stop = Math.min(...chains.map((chain) => chain.stop));
  for (const step of log.steps(epoch, from, stop)) problems.guard(() => checkStep(epoch, step));
}
