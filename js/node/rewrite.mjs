/**
 * Rewriting (SPEC section 17.5).
 */

import {UcpError} from '../lib/errors.mjs';
import {Checkpoint} from '../lib/checkpoint.mjs';
import {place} from '../lib/json.mjs';
import {ROOT_KEY} from '../lib/names.mjs';
import {readerOf} from '../lib/read.mjs';
import {slotSource} from './sources.mjs';
import {DirectoryStore} from './store.mjs';
import {write} from './write.mjs';

/**
 * Writes what a checkpoint holds again, in a storage of choice (UCP-W-027).
 * @param {string} from path of the source
 * @param {string} path of the target
 * @param {'plain' | 'packed'} storage
 * @returns {{digest: string}}
 */
export function rewrite(from, path, storage) {
  const source = new Checkpoint(new DirectoryStore(from));
  try {
    const {root, state} = source;
    if (root.writeFeatures.length > 0) { // UCP-W-001
      throw new UcpError('UCP-E-FEATURE', place(ROOT_KEY, '/write_features'), 'not implemented');
    }
    const copied = [...root.document.get('extensions')] // UCP-W-031, UCP-W-032
      .filter(([, extension]) => extension.get('safe_to_copy') === true);
    /** @param {import('../lib/documents.mjs').Slot} slot */
    const layoutOf = (slot) => {
      const layout = source.layoutOf(slot);
      return layout && {...layout, place: slot.place};
    };
    /** @type {(atom: import('../lib/documents.mjs').Atom, slot: import('../lib/documents.mjs').Slot) => import('./write.mjs').SlotInput} */
    const slotInput = (atom, slot) => ({
      dtype: slot.dtype.name,
      shape: slot.shape,
      layout: layoutOf(slot),
      compressor: slot.compressor,
      annotations: slot.annotations,
      content: slot.content,
      open: () => slotSource(readerOf(source, atom.name, slot.name)),
    });
    return write({
      path,
      storage,
      chunkBytes: root.chunkBytes,
      step: root.step,
      log: root.log,
      atoms: source.atoms.map((atom) => ({
        name: atom.name,
        key: atom.key,
        aliases: atom.aliases,
        annotations: atom.annotations,
        slots: new Map(atom.slots.map((slot) => [slot.name, slotInput(atom, slot)])),
      })),
      values: state?.get('values'),
      optimizers: state?.get('optimizers'),
      blobs: new Map([...(state?.get('blobs') ?? new Map()).keys()]
        .map((name) => [name, source.readBlob(name)])),
      annotations: root.document.get('annotations'),
      extensions: new Map(copied),
      stateAnnotations: state?.get('annotations'),
      pipeline: state?.get('pipeline'),
      images: new Map([...source.images ?? []]
        .map(([name, image]) => [name, {image, contents: source.readImage(name)}])),
    });
  } finally {
    source.close();
  }
}
