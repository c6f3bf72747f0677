/**
 * The library: {@link open}, {@link read}, {@link validate} and what layouts say, on any store.
 */

import {Checkpoint} from './checkpoint.mjs';
import {readBox} from './read.mjs';

export {UcpError} from './errors.mjs';
export {PatternResolver, parsePatterns} from './patterns.mjs';
export {lower} from './pieces.mjs';
export {replay} from './log-replay.mjs';
export {beginEpoch} from './log-writer.mjs';
export {UpdateLog, isLog, validateLog} from './update-log.mjs';
export {readLocals} from './read.mjs';
export {validate} from './validate.mjs';

/**
 * Opens a checkpoint (SPEC section 17.1).
 * @param {import('./stores.mjs').Store} store
 * @returns {Checkpoint}
 */
export const open = (store) => new Checkpoint(store);

/**
 * Reads a slot, whole or a box of it (SPEC section 17.3).
 * @param {Checkpoint} checkpoint
 * @param {string} atom name or alias
 * @param {string} slot
 * @param {import('./boxes.mjs').Box} [box]
 */
export const read = (checkpoint, atom, slot, box) => readBox(checkpoint, atom, slot, box);
