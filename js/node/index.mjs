/**
 * The library for Node: the core on directories, and what only Node can: {@link write}, {@link rewrite}.
 */

import * as core from '../lib/index.mjs';
import {DirectoryLogSink} from './log-sink.mjs';
import {DirectoryStore} from './store.mjs';

export {
  UcpError, lower, read, readLocals, replay,
} from '../lib/index.mjs';
export {bufferSource, fileSource, localsSource} from './sources.mjs';
export {write} from './write.mjs';
export {rewrite} from './rewrite.mjs';

/**
 * Opens a checkpoint (SPEC section 17.1).
 * @param {string} path
 */
export const open = (path) => core.open(new DirectoryStore(path));

/**
 * Validates a checkpoint (SPEC section 18).
 * @param {string} path
 * @param {'structure' | 'semantics' | 'integrity'} [level]
 */
export const validate = (path, level) => core.validate(new DirectoryStore(path), level);

/**
 * Opens an update log (SPEC-UPDATE-LOGS).
 * @param {string} path
 */
export const openLog = (path) => new core.UpdateLog(new DirectoryStore(path));

/**
 * Begins an epoch of an update log, whose batches the writer that this returns writes.
 * @param {string} path
 * @param {import('../lib/log-writer.mjs').EpochInput} input
 */
export const beginEpoch = (path, input) => (
  core.beginEpoch(() => new DirectoryStore(path), new DirectoryLogSink(path), input));

/**
 * Everything that is wrong with an update log that can be reached.
 * @param {string} path
 */
export const validateLog = (path) => core.validateLog(new DirectoryStore(path));

/**
 * Whether an update log lies at a path.
 * @param {string} path
 */
export const isLog = (path) => core.isLog(new DirectoryStore(path));
