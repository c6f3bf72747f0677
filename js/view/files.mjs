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

/** Files that were dropped, by path. */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [];
  for (const entry of entries) for await (const found of filesBelow(entry, entry.name)) files.push(found);
  return files;
}

/** Files of an input of type directory, by path. */
export const chosenFiles = (input) => [...input.files].map((file) => [file.webkitRelativePath || file.name, file]);

/**
 * The checkpoint among files: those below the directory with the root document that is least deep.
 * @param {[string, Blob][]} files by path
 * @returns {{label: string, files: [string, Blob][]} | null} files by key
 */
export function checkpointAmong(files) {
  const [root] = files.map(([path]) => path)
    .filter((path) => path === 'ucp.json' || path.endsWith('/ucp.json'))
    .sort((a, b) => a.split('/').length - b.split('/').length || (a < b ? -1 : 1));
  if (root === undefined) return null;
  const base = root.slice(0, -'ucp.json'.length);
  return {
    label: base.replace(/\/$/, '') || 'directory',
    files: files.filter(([path]) => path.startsWith(base)).map(([path, file]) => [path.slice(base.length), file]),
  };
}
