/**
 * Validation of every stored byte (SPEC section 18, level integrity).
 */

import {Sha256} from '#platform';
import {copyBox, product, stridesOf} from './boxes.mjs';
import {sameBytes} from './bytes.mjs';
import {zarrCrc} from './codec.mjs';
import {UcpError} from './errors.mjs';
import {ContentDigest} from './digest.mjs';
import {unusedBitsAreZero} from './dtypes.mjs';
import {chunkBox} from './grid.mjs';
import {SlotReader} from './read.mjs';
import {ZARR_CRC} from './zarr.mjs';

/**
 * What validation up to level semantics has found, of which every byte is checked.
 * @typedef {object} Sound
 * @property {import('./stores.mjs').Store} store
 * @property {import('./errors.mjs').Problems} problems
 * @property {import('./root.mjs').Root} root
 * @property {{atoms: import('./documents.mjs').Atom[], table: import('./table.mjs').ChunkTable | null}[]} parts
 * @property {import('./segments.mjs').Pack[] | null} packs null in storage plain
 * @property {boolean[] | null} soundPacks which of them are there with their length
 * @property {import('./segments.mjs').PackUse | null} use of the packs
 * @property {Set<string>} soundChunks objects of chunks that are there with their length, in storage plain
 * @property {import('./root.mjs').Reference[]} blobs that are there with their length
 */

const READ_SIZE = 1 << 22;

/** @param {Uint8Array} bytes */
const isZero = (bytes) => bytes.every((byte) => byte === 0);

/**
 * Ranges of at most READ_SIZE bytes.
 * @param {number} start
 * @param {number} stop
 */
function* pieces(start, stop) {
  for (let at = start; at < stop; at += READ_SIZE) yield [at, Math.min(stop, at + READ_SIZE)];
}

/**
 * Whether elements of a whole chunk beyond the shape are zero (UCP-D-095).
 * @param {Uint8Array} raw
 * @param {import('./grid.mjs').Grid} grid
 * @param {number[]} shape
 */
function edgeIsZero(raw, grid, shape) {
  const beyond = new Uint8Array(raw);
  copyBox({bytes: beyond, start: 0, strides: stridesOf(grid.chunk)},
    {bytes: new Uint8Array(grid.itemSize), start: 0, strides: shape.map(() => 0)}, shape, grid.itemSize);
  return isZero(beyond);
}

/** Checks the bytes of one slot. */
class SlotCheck {
  /**
   * @param {Sound} validation
   * @param {import('./documents.mjs').Atom} atom
   * @param {import('./documents.mjs').Slot} slot
   * @param {import('./table.mjs').ChunkTable} table
   */
  constructor(validation, atom, slot, table) {
    const {store, root, packs, problems} = validation;
    this.validation = validation;
    this.slot = slot;
    this.problems = problems;
    this.reader = new SlotReader({store, storage: root.storage, packs}, {atom, slot, table});
  }

  /**
   * Whether the object that holds a segment is there, with its length.
   * @param {number} index
   * @param {number} segment
   */
  available(index, segment) {
    const {soundPacks, soundChunks} = this.validation;
    if (soundPacks) return soundPacks[this.reader.table.containers[segment]];
    return soundChunks.has(this.reader.containerKey(index, segment));
  }

  /**
   * Raw bytes of a segment, with their problems reported; null where there are none.
   * @param {number} index
   * @param {number} segment
   * @param {number[]} storedShape
   */
  raw(index, segment, storedShape) {
    if (!this.available(index, segment)) return null;
    return this.problems.guard(() => {
      const covered = this.reader.covered(index, segment);
      if (this.reader.plain) this.checkZarrCrc(index, segment, covered);
      return this.reader.decoded(index, segment, storedShape, covered);
    }) ?? null;
  }

  /**
   * The end of a chunk's own object, which no checksum of the table covers (UCP-D-097).
   * @param {number} index
   * @param {number} segment
   * @param {Uint8Array} covered
   */
  checkZarrCrc(index, segment, covered) {
    const key = this.reader.containerKey(index, segment);
    if (!sameBytes(this.validation.store.read(key, covered.length, ZARR_CRC), zarrCrc(covered))) {
      throw new UcpError('UCP-E-CODEC', key, "Zarr's checksum at the end of the object differs");
    }
  }

  /**
   * The logical bytes of a chunk, or null where they could not be had.
   * @param {number} index
   */
  chunk(index) {
    const {slot, problems, reader} = this;
    const {grid, dtype} = slot;
    const chunk = chunkBox(grid, index);
    const bytes = new Uint8Array(product(chunk.shape) * dtype.size);
    const strides = stridesOf(chunk.shape);
    let complete = true;
    for (const {segment, pieces: held} of reader.parts(index)) {
      const raw = this.raw(index, segment, held[0]?.storedShape);
      if (raw === null) {
        complete = false;
        continue;
      }
      const key = reader.containerKey(index, segment);
      const beyond = reader.plain && raw.length > product(chunk.shape) * dtype.size;
      if (beyond && !edgeIsZero(raw, grid, chunk.shape)) {
        problems.add('UCP-E-PADDING', key, `elements beyond the shape of ${slot.label}`);
      }
      for (const {box, storedShape, origin} of held) {
        const start = box.offset.reduce((sum, o, i) => sum + (o - chunk.offset[i]) * strides[i], 0);
        copyBox({bytes, start, strides}, {bytes: raw, start: origin, strides: stridesOf(storedShape)},
          box.shape, dtype.size);
      }
    }
    if (!unusedBitsAreZero(dtype, bytes)) {
      const [first] = reader.segmentsOf(index);
      problems.add('UCP-E-PADDING', reader.containerKey(index, first), `unused bits of ${slot.label}`);
    }
    return complete ? bytes : null;
  }

  run() {
    const {slot, problems, reader} = this;
    const {grid} = slot;
    /** @type {ContentDigest | null} */
    let content = new ContentDigest();
    for (let index = 0; index < grid.total; index += 1) {
      const [first, stop] = reader.segmentsOf(index);
      if (first === stop) {
        content?.updateZeros(product(chunkBox(grid, index).shape) * grid.itemSize);
        continue;
      }
      const bytes = this.chunk(index);
      if (bytes === null) content = null;
      else content?.update(bytes);
    }
    if (slot.content !== null && content && content.finish() !== slot.content) { // UCP-D-038
      problems.add('UCP-E-CONTENT', `${slot.at}/content`, `another content digest of ${slot.label}`);
    }
  }
}

/**
 * Bytes of packs that belong to no segment, but of shared ones (UCP-D-108).
 * @param {Sound} validation
 */
function checkGaps({packs, use, soundPacks, store, problems}) {
  packs?.forEach(({key, shared}, i) => {
    if (!use || !soundPacks?.[i] || shared) return;
    for (const [start, stop] of use.gaps(i)) {
      for (const [from, to] of pieces(start, stop)) {
        if (isZero(store.read(key, from, to - from))) continue;
        problems.add('UCP-E-PADDING', key, `bytes between ${start} and ${stop} that no segment has`);
        break;
      }
    }
  });
}

/**
 * @param {import('./root.mjs').Reference} blob
 * @param {Pick<Sound, 'store' | 'problems'>} validation
 */
function checkBlob({key, length, digest}, {store, problems}) {
  const hash = new Sha256();
  for (const [from, to] of pieces(0, length)) hash.update(store.read(key, from, to - from));
  if (`sha256:${hash.hex()}` !== digest) {
    problems.add('UCP-E-DIGEST', key, 'another SHA-256 than recorded');
  }
}

/**
 * Checks every stored byte that documents and tables without problems lead to.
 * @param {Sound} validation
 */
export function checkIntegrity(validation) {
  const {parts, packs, blobs} = validation;
  for (const {atoms, table} of parts) {
    if (table === null) continue;
    for (const atom of atoms) {
      for (const slot of atom.slots) new SlotCheck(validation, atom, slot, table).run();
    }
  }
  if (packs && parts.every(({table}) => table !== null)) {
    validation.problems.guard(() => checkGaps(validation));
  }
  for (const blob of blobs) validation.problems.guard(() => checkBlob(blob, validation));
}
