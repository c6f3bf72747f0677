/**
 * What an update log has, epoch by epoch, by its documents and the names of its batches alone.
 */

import {UpdateLog} from '../lib/update-log.mjs';
import {batchKey} from '../lib/log-batch.mjs';
import {UcpError} from '../lib/errors.mjs';

/**
 * An epoch of a log: `last_batch` is where the last of its batches begins, and `stop_step` is null where they have not been read.
 * @typedef {{epoch: number, first_step: number | null, stop_step: number | null, last_batch?: number | null, ranks: number,
 *   batches: number, bytes: number, optimizer: string, counts: boolean}} EpochRow
 */
/** @typedef {{id: string | null, epochs: EpochRow[], problem: {code: string | null, at: string, message: string} | null}} LogOverview `problem` is why it cannot be read */

/**
 * @param {import('../lib/stores.mjs').Store} store of the log's own directory
 * @returns {LogOverview} without `stop_step` of the last epoch: batches are not read
 */
export function logOverview(store) {
  const log = new UpdateLog(store);
  const counted = new Map(log.branch().map(({epoch, stop}) => [epoch.epoch, stop]));
  const epochs = log.numbers.map((number) => {
    const ranks = [...log.there.get(number) ?? []];
    const firsts = ranks.flatMap(([, list]) => list);
    const bytes = ranks.reduce((sum, [rank, list]) => sum + list.reduce((all, first) => all + store.lengthOf(batchKey(number, rank, first)), 0), 0);
    const row = {
      epoch: number, batches: firsts.length, bytes, last_batch: firsts.reduce((/** @type {number | null} */ last, first) => Math.max(last ?? first, first), null), counts: counted.has(number),
    };
    try {
      const {first_step: first, ranks: count, optimizer: {type}} = log.epoch(number);
      return {
        ...row, first_step: first, ranks: count, optimizer: type, stop_step: counted.get(number) ?? null,
      };
    } catch (error) {
      if (!(error instanceof UcpError)) throw error;
      return {
        ...row, first_step: null, ranks: ranks.length, optimizer: `${error.code}: ${error.detail}`, stop_step: null,
      };
    }
  });
  return {id: log.id, epochs, problem: null};
}
