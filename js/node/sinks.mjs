/**
 * Where a writer puts chunks: objects of their own, or packs (SPEC sections 16.3 and 16.4).
 *
 * Both have `putChunk(atom, slot, index, box, bytes)`, which returns the segment for the chunk
 * table, or null for a zero entry; `finishSlot`, `finishAtom` and `finish`.
 */

import {copyBox, stridesOf} from '../lib/boxes.mjs';
import {zarrCrc} from '../lib/codec.mjs';
import {blockChecksums} from '../lib/digest.mjs';
import {fromPlain} from '../lib/json.mjs';
import {compress} from './compress.mjs';
import {OWN_OBJECT} from '../lib/table.mjs';
import {
  ATOMS_KEY, arrayMetadata, atomMetadataKey, chunkKey, groupMetadata, slotMetadataKey,
} from '../lib/zarr.mjs';

/** @typedef {Pick<import('../lib/documents.mjs').Atom, 'key'>} Atom */
/** @typedef {Pick<import('../lib/documents.mjs').Slot, 'name' | 'dtype' | 'grid' | 'compressor'>} Slot */
/** @typedef {import('../lib/boxes.mjs').Box} Box */
/** @typedef {{container: number, offset: number, length: number, checksums: number[]}} Segment as the chunk table has it */

/** @param {Uint8Array} bytes */
const isZero = (bytes) => {
  for (let at = 0; at < bytes.length; at += 1) if (bytes[at] !== 0) return false;
  return true;
};

/** Chunks as objects of a Zarr v3 hierarchy. */
export class PlainSink {
  /** @param {import('./store.mjs').DirectoryWriter} writer */
  constructor(writer) {
    this.writer = writer;
    writer.claim('atoms'); // keys are fixed: an attempt begins in a place of its own (section 8)
  }

  /**
   * @param {Atom} atom
   * @param {Slot} slot
   * @param {number} index
   * @param {Box} box
   * @param {Uint8Array | null} bytes
   * @returns {Segment | null}
   */
  putChunk(atom, slot, index, box, bytes) {
    if (bytes === null || isZero(bytes)) return null;
    const {grid} = slot;
    let raw = bytes;
    if (bytes.length !== grid.chunkBytes) { // UCP-D-095: an edge chunk, stored whole
      raw = Buffer.alloc(grid.chunkBytes);
      copyBox({bytes: raw, start: 0, strides: stridesOf(grid.chunk)},
        {bytes, start: 0, strides: stridesOf(box.shape)}, box.shape, grid.itemSize);
    }
    const encoded = compress(slot.compressor, raw);
    const stored = Buffer.concat([encoded, zarrCrc(encoded)]);
    this.writer.put(chunkKey(atom.key, slot.name, grid, index), stored);
    return {
      container: OWN_OBJECT, offset: 0, length: stored.length, checksums: blockChecksums(encoded),
    };
  }

  /**
   * @param {Atom} atom
   * @param {Slot} slot
   */
  finishSlot(atom, slot) {
    this.writer.put(slotMetadataKey(atom.key, slot.name), arrayMetadata(slot));
  }

  /** @param {Atom} atom */
  finishAtom(atom) {
    this.writer.put(atomMetadataKey(atom.key), groupMetadata());
  }

  /** @returns {null} */
  finish() {
    this.writer.put(ATOMS_KEY, groupMetadata());
    return null;
  }
}

/** Chunks as segments of packs, one writer's. */
export class PackedSink {
  /** @typedef {{key: string, fd: number, length: number}} Pack */
  /** @type {Pack[]} */
  #packs = [];
  /** @type {Pack | null} the one that chunks go to */
  #open = null;

  /**
   * @param {import('./store.mjs').DirectoryWriter} writer
   * @param {string} attempt
   * @param {number} packBytes length after which a new pack begins
   */
  constructor(writer, attempt, packBytes) {
    this.writer = writer;
    this.attempt = attempt;
    this.packBytes = packBytes;
  }

  /**
   * @param {Atom} atom
   * @param {Slot} slot
   * @param {number} index
   * @param {Box} box
   * @param {Uint8Array | null} bytes
   * @returns {Segment | null}
   */
  putChunk(atom, slot, index, box, bytes) {
    if (bytes === null || isZero(bytes)) return null;
    const stored = compress(slot.compressor, bytes);
    if (this.#open && this.#open.length >= this.packBytes) this.#close();
    if (!this.#open) {
      const key = `packs/${this.attempt}-0-${this.#packs.length}.pack`;
      this.#open = {key, fd: this.writer.create(key), length: 0};
      this.#packs.push(this.#open);
    }
    const pack = this.#open;
    const alignment = stored.length >= 65536 ? 4096 : 64; // UCP-D-107
    const padding = Buffer.alloc((alignment - (pack.length % alignment)) % alignment);
    const offset = pack.length + padding.length;
    this.writer.append(pack.key, pack.fd, padding);
    this.writer.append(pack.key, pack.fd, stored);
    pack.length = offset + stored.length;
    return {
      container: this.#packs.length - 1, offset, length: stored.length,
      checksums: blockChecksums(stored),
    };
  }

  #close() {
    const {key, fd} = /** @type {Pack} */ (this.#open);
    this.#open = null;
    this.writer.finish(key, fd);
  }

  finishSlot() {}

  finishAtom() {}

  /** @returns {Map<string, any>} the pack list */
  finish() {
    if (this.#open) this.#close();
    return fromPlain({packs: this.#packs.map(({key, length}) => ({key, length}))});
  }
}

