/**
 * Files of a directory that was dropped or chosen, by their keys.
 */

const entriesOf = (reader) => new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
const fileOf = (entry) => new Promise((resolve, reject) => { entry.file(resolve, reject); });

/** Files below an entry of the file system, by their path. */
async function* filesBelow(entry, path) {
  if (entry.isFile) {
    yield [path, await fileOf(entry)];
    return;
  }
  const reader = entry.createReader();
  for (let batch = await entriesOf(reader); batch.length > 0; batch = await entriesOf(reader)) {
    for (const child of batch) yield* filesBelow(child, path === '' ? child.name : `${path}/${child.name}`);
  }
}

/** The same below a handle. */
async function* filesOfHandle(handle, path) {
  if (handle.kind === 'file') {
    yield [path, await handle.getFile()];
    return;
  }
  for await (const child of handle.values()) yield* filesOfHandle(child, `${path}/${child.name}`);
}

/** Files that were dropped, by path. */
export async function droppedFiles(transfer) {
  // Of a page that is a file itself, Chromium reads handles and no entries. They are there as long as the event is handled.
  const hasHandles = location.protocol === 'file:' && 'getAsFileSystemHandle' in DataTransferItem.prototype;
  const items = [...transfer.items].filter(({kind}) => kind === 'file');
  const walks = hasHandles
    ? items.map((item) => item.getAsFileSystemHandle()).map(async (handle) => filesOfHandle(await handle, (await handle).name))
    : items.map((item) => item.webkitGetAsEntry?.()).filter(Boolean).map((entry) => filesBelow(entry, entry.name));
  const files = [];
  for (const walk of walks) for await (const found of await walk) files.push(found);
  return files;
}

/** Files of an input of type directory, by path. */
export const chosenFiles = (input) => [...input.files].map((file) => [file.webkitRelativePath || file.name, file]);

const ROOT = 'ucp.json';
const LOG = 'log.json';
const COLLATOR = new Intl.Collator('en', {numeric: true});

/** The files below a directory, by key. */
const below = (files, base) => files.filter(([path]) => path.startsWith(base)).map(([path, file]) => [path.slice(base.length), file]);

/** Directories with a file of that name, each with a slash at its end, and none below another. */
function directoriesWith(files, name) {
  const found = files.map(([path]) => path).filter((path) => path === name || path.endsWith(`/${name}`)).map((path) => path.slice(0, -name.length));
  const among = new Set(found);
  const isBelow = (base) => [...base.slice(0, -1).matchAll(/\//g)].some(({index}) => among.has(base.slice(0, index + 1)))
    || (base !== '' && among.has(''));
  return found.filter((base) => !isBelow(base));
}

/**
 * The checkpoints among files, the last by name first, and the update log beside them.
 * @param {[string, Blob][]} files by path
 * @returns {{checkpoints: {label: string, files: [string, Blob][]}[], log: [string, Blob][] | null}} files by key
 */
export function checkpointsAmong(files) {
  const bases = directoriesWith(files, ROOT).sort((a, b) => COLLATOR.compare(b, a));
  const logs = directoriesWith(files, LOG).filter((base) => base.endsWith('.ucplog/'));
  return {
    checkpoints: bases.map((base) => ({label: base.replace(/\/$/, '') || 'directory', files: below(files, base)})),
    log: logs.length > 0 ? below(files, logs[0]) : null,
  };
}
