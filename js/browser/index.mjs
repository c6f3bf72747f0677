/**
 * The library for browsers: the core, and stores for a worker.
 */

export * from '../lib/index.mjs';
export {FilesStore, HttpStore} from './stores.mjs';
