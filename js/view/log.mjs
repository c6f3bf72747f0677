/**
 * What an update log has, epoch by epoch, by its documents and the names of its batches alone.
 */

import {UpdateLog} from '../lib/update-log.mjs';
import {batchKey} from '../lib/log-batch.mjs';
import {UcpError} from '../lib/errors.mjs';

/**
 * @param {import('../lib/stores.mjs').Store} store of the log's own directory
 * @returns {{id: string, epochs: object[], problem: null}} `stop_step` is null: batches are not read
 */
export function logOverview(store) {
  const log = new UpdateLog(store);
  const counted = new Map(log.branch().map(({epoch, stop}) => [epoch.epoch, stop]));
  const epochs = log.numbers.map((number) => {
    const ranks = [...log.there.get(number) ?? []];
    const firsts = ranks.flatMap(([, list]) => list);
    const bytes = ranks.reduce((sum, [rank, list]) => sum + list.reduce((all, first) => all + store.lengthOf(batchKey(number, rank, first)), 0), 0);
    const row = {
      epoch: number, batches: firsts.length, bytes, last_batch: firsts.reduce((a, b) => Math.max(a, b), 0), counts: counted.has(number),
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
