/**
 * Files of a directory that was dropped or chosen, by their keys.
 */

/** @typedef {[path: string, file: File]} Named */

/**
 * @param {FileSystemDirectoryReader} reader
 * @returns {Promise<FileSystemEntry[]>}
 */
const entriesOf = (reader) => new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });

/**
 * @param {FileSystemFileEntry} entry
 * @returns {Promise<File>}
 */
const fileOf = (entry) => new Promise((resolve, reject) => { entry.file(resolve, reject); });

/**
 * Files below an entry of the file system, by their path.
 * @param {FileSystemEntry} entry
 * @param {string} path
 * @returns {AsyncGenerator<Named>}
 */
async function* filesBelow(entry, path) {
  if (entry.isFile) {
    yield [path, await fileOf(/** @type {FileSystemFileEntry} */ (entry))];
    return;
  }
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
  for (let batch = await entriesOf(reader); batch.length > 0; batch = await entriesOf(reader)) {
    for (const child of batch) yield* filesBelow(child, path === '' ? child.name : `${path}/${child.name}`);
  }
}

/** @typedef {FileSystemDirectoryHandle & {values: () => AsyncIterable<FileSystemHandle>}} Directory as browsers have it, of which the types lack the values */
/** @typedef {DataTransferItem & {getAsFileSystemHandle: () => Promise<FileSystemHandle>}} Item the same of what is dropped */

/**
 * The same below a handle.
 * @param {FileSystemHandle} handle
 * @param {string} path
 * @returns {AsyncGenerator<Named>}
 */
async function* filesOfHandle(handle, path) {
  if (handle.kind === 'file') {
    yield [path, await /** @type {FileSystemFileHandle} */ (handle).getFile()];
    return;
  }
  for await (const child of /** @type {Directory} */ (handle).values()) yield* filesOfHandle(child, `${path}/${child.name}`);
}

/**
 * Files that were dropped, by path.
 * @param {DataTransfer} transfer
 * @returns {Promise<Named[]>}
 */
export async function droppedFiles(transfer) {
  // Of a page that is a file itself, Chromium reads handles and no entries. They are there as long as the event is handled.
  const hasHandles = location.protocol === 'file:' && 'getAsFileSystemHandle' in DataTransferItem.prototype;
  const items = [...transfer.items].filter(({kind}) => kind === 'file');
  const walks = hasHandles
    ? items.map((item) => /** @type {Item} */ (item).getAsFileSystemHandle()).map(async (handle) => filesOfHandle(await handle, (await handle).name))
    : items.map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry !== null && entry !== undefined).map((entry) => filesBelow(entry, entry.name));
  /** @type {Named[]} */
  const files = [];
  for (const walk of walks) for await (const found of await walk) files.push(found);
  return files;
}

/**
 * Files of an input of type directory, by path.
 * @param {HTMLInputElement} input
 * @returns {Named[]}
 */
export const chosenFiles = (input) => [...input.files ?? []].map((file) => [file.webkitRelativePath || file.name, file]);

const ROOT = 'ucp.json';
const LOG = 'log.json';
const COLLATOR = new Intl.Collator('en', {numeric: true});

/**
 * The files below a directory, by key.
 * @param {Named[]} files
 * @param {string} base
 * @returns {Named[]}
 */
const below = (files, base) => files.filter(([path]) => path.startsWith(base)).map(([path, file]) => [path.slice(base.length), file]);

/**
 * Directories with a file of that name, each with a slash at its end, and none below another.
 * @param {Named[]} files
 * @param {string} name
 */
function directoriesWith(files, name) {
  const found = files.map(([path]) => path).filter((path) => path === name || path.endsWith(`/${name}`)).map((path) => path.slice(0, -name.length));
  const among = new Set(found);
  /** @param {string} base */
  const isBelow = (base) => [...base.slice(0, -1).matchAll(/\//g)].some(({index}) => among.has(base.slice(0, index + 1)))
    || (base !== '' && among.has(''));
  return found.filter((base) => !isBelow(base));
}

/**
 * The checkpoints among files, the last by name first, and the update log beside them.
 * @param {Named[]} files by path
 * @returns {{checkpoints: {label: string, files: Named[]}[], log: Named[] | null}} files by key
 */
export function checkpointsAmong(files) {
  const bases = directoriesWith(files, ROOT).sort((a, b) => COLLATOR.compare(b, a));
  const logs = directoriesWith(files, LOG).filter((base) => base.endsWith('.ucplog/'));
  return {
    checkpoints: bases.map((base) => ({label: base.replace(/\/$/, '') || 'directory', files: below(files, base)})),
    log: logs.length > 0 ? below(files, logs[0]) : null,
  };
}
