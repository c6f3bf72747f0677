/**
 * Process images (SPEC section 15.4).
 */

import {UcpError} from './errors.mjs';
import {place, plain, token} from './json.mjs';
import {foldKey, isKey} from './names.mjs';

/**
 * The objects of blobs and of files of images, each after its place in the state document.
 * @param {Map<string, any>} state
 * @returns {{at: string, reference: {key: string, length: number, digest: string}}[]}
 */
export function objectsOf(state) {
  const found = [...state.get('blobs')].map(([name, blob]) => (
    {at: `/blobs${token(name)}/object`, reference: plain(blob.get('object'))}));
  for (const [name, image] of state.get('images') ?? []) {
    /** @type {Map<string, any>[]} */ (image.get('files')).forEach((file, i) => found.push(
      {at: `/images${token(name)}/files/${i}/object`, reference: plain(file.get('object'))}));
  }
  return found;
}

/**
 * Whether an image of a state document is required.
 * @param {Map<string, any> | undefined} images
 */
export function isImageRequired(images) {
  return [...images?.values() ?? []].some((image) => image.get('required'));
}

/**
 * Checks paths of images (UCP-D-148, UCP-D-149).
 * @param {Map<string, any>} images
 * @param {string} key of the state document
 * @param {import('./errors.mjs').Problems} problems
 */
export function checkImages(images, key, problems) {
  for (const [name, image] of images) {
    const seen = new Set();
    const above = new Set();
    /** @type {Map<string, any>[]} */ (image.get('files')).forEach((file, i) => {
      const at = place(key, `/images${token(name)}/files/${i}/path`);
      const path = foldKey(file.get('path'));
      if (!isKey(file.get('path'))) {
        problems.add('UCP-E-KEY', at, 'no safe path');
        return;
      }
      const parts = path.split('/');
      const directories = parts.slice(1).map((_, n) => parts.slice(0, n + 1).join('/'));
      if (seen.has(path) || above.has(path) || directories.some((one) => seen.has(one))) {
        problems.add('UCP-E-KEY', at, 'in the way of another file of the image');
      }
      seen.add(path);
      for (const one of directories) above.add(one);
    });
  }
}

/**
 * Refuses to go on without an image that is required (UCP-R-035).
 * @param {Map<string, any> | undefined} images
 * @param {string[]} restored
 */
export function requireRestored(images, restored) {
  for (const [name, image] of images ?? []) {
    if (image.get('required') && !restored.includes(name)) {
      throw new UcpError('UCP-E-MISMATCH', '', `the process image ${name} is to be restored first`);
    }
  }
}
