/**
 * Planning and reading (SPEC sections 17.2 and 17.3).
 */

import {UcpError} from './errors.mjs';
import {isEqual} from './bytes.mjs';
import {
  copyBox, dot, fits, intersect, product, stridesOf, subtract,
} from './boxes.mjs';
import {decompress} from './codec.mjs';
import {crc32c} from './crc32c.mjs';
import {BLOCK} from './digest.mjs';
import {chunkBox, chunksOf} from './grid.mjs';
import {countCoordinates, hasCoordinate} from './mesh.mjs';
import {scale} from './numbers.mjs';
import {checkForm, checkLayout, lowerToLogical} from './pieces.mjs';
import {keepsStage} from './pipeline.mjs';
import {OWN_OBJECT, rowsOf} from './table.mjs';
import {chunkKey} from './zarr.mjs';

/** @typedef {import('./boxes.mjs').Box} Box */
/** @typedef {import('./boxes.mjs').View} View */
/** @typedef {import('./checkpoint.mjs').Checkpoint} Checkpoint */

/** What is wanted: a box of the logical tensor, and where its first element goes. */
/** @typedef {{box: Box, view: View}} Want */

/** Reads chunks of one slot. */
export class SlotReader {
  /**
   * @param {Pick<Checkpoint, 'store' | 'storage' | 'packs'>} checkpoint
   * @param {{atom: import('./documents.mjs').Atom, slot: import('./documents.mjs').Slot,
   *   table: import('./table.mjs').ChunkTable}} found
   */
  constructor(checkpoint, {atom, slot, table}) {
    this.store = checkpoint.store;
    this.plain = checkpoint.storage === 'plain';
    this.packs = checkpoint.packs;
    this.atom = atom;
    this.slot = slot;
    this.table = table;
  }

  /**
   * The object that holds a segment of a chunk.
   * @param {number} index
   * @param {number} segment
   * @returns {string}
   */
  containerKey(index, segment) {
    const container = this.table.containers[segment];
    if (container !== OWN_OBJECT || !this.plain) return /** @type {import('./segments.mjs').Pack[]} */ (this.packs)[container].key;
    return chunkKey(this.atom.key, this.slot.name, this.slot.grid, index);
  }

  /**
   * Segments [first, stop) of a chunk; none is a zero entry.
   * @param {number} index
   */
  segmentsOf(index) {
    const chunk = this.slot.firstChunk + index;
    return [this.table.firstSegment[chunk], this.table.firstSegment[chunk + 1]];
  }

  /**
   * Blocks [first, stop) of a segment, fetched and checked (UCP-R-029).
   * @param {number} index
   * @param {number} segment
   * @param {number} first
   * @param {number} stop
   * @returns {Uint8Array} their bytes
   */
  blocks(index, segment, first, stop) {
    const key = this.containerKey(index, segment);
    const length = this.table.lengths[segment];
    if (this.plain && this.store.lengthOf(key) !== length) {
      throw new UcpError('UCP-E-LENGTH', key, `has another length than ${length}`);
    }
    const start = first * BLOCK;
    const bytes = this.store.read(key, this.table.offsets[segment] + start,
      Math.min(this.table.covered[segment], stop * BLOCK) - start);
    for (let block = first; block < stop; block += 1) {
      const at = (block - first) * BLOCK;
      const expected = this.table.checksums[this.table.firstChecksum[segment] + block];
      if (crc32c(bytes.subarray(at, at + BLOCK)) !== expected) {
        throw new UcpError('UCP-E-CHECKSUM', key, `block ${block} of ${this.slot.label}, chunk ${index}`);
      }
    }
    return bytes;
  }

  /**
   * All covered bytes of a segment (SPEC section 16.5), checked.
   * @param {number} index
   * @param {number} segment
   */
  covered(index, segment) {
    return this.blocks(index, segment, 0, Math.ceil(this.table.covered[segment] / BLOCK));
  }

  /**
   * Raw bytes of a segment that is read whole.
   * @param {number} index
   * @param {number} segment
   * @param {number[]} shape of the box that the segment holds
   */
  decoded(index, segment, shape, encoded = this.covered(index, segment)) {
    const {slot} = this;
    const key = this.containerKey(index, segment);
    if (slot.compressor === null) return encoded;
    const length = this.plain ? slot.grid.chunkBytes : slot.dtype.size * product(shape);
    return decompress(slot.compressor, encoded, length, key);
  }

  /**
   * What a chunk's segments hold, in order, so that later layers are copied over earlier ones: boxes of the
   * logical tensor, as stored and as valid, and the element of the segment with which each begins.
   * @param {number} index
   */
  * parts(index) {
    const {grid} = this.slot;
    const clipped = chunkBox(grid, index);
    const [first, stop] = this.segmentsOf(index);
    for (let segment = first; segment < stop; segment += 1) {
      const box = this.table.box(segment, grid.shape.length);
      if (box === null) {
        const storedShape = this.plain ? grid.chunk : clipped.shape;
        yield {segment, pieces: [{box: clipped, storedShape, origin: 0}]};
        continue;
      }
      const offset = box.offset.map((o, i) => o + clipped.offset[i]);
      const along = Math.max(box.shape.findIndex((extent) => extent !== 1), 0);
      const rowSize = product(box.shape) / rowsOf(box.shape);
      let origin = 0;
      const pieces = this.table.rowRuns(segment, box.shape).map(([from, to]) => {
        const piece = {
          box: {offset: offset.with(along, offset[along] + from), shape: box.shape.with(along, to - from)},
          storedShape: box.shape.with(along, to - from),
          origin,
        };
        origin += (to - from) * rowSize;
        return piece;
      });
      yield {segment, pieces};
    }
  }

  /**
   * Reads what is wanted of one chunk.
   * @param {number} index
   * @param {Want[]} wants
   */
  readChunk(index, wants) {
    const {slot} = this;
    for (const {segment, pieces} of this.parts(index)) {
      const copies = [];
      for (const {box, storedShape, origin} of pieces) {
        const strides = stridesOf(storedShape);
        for (const want of wants) {
          const common = intersect(want.box, box);
          if (!common) continue;
          const start = origin + dot(subtract(common.offset, box.offset), strides);
          const last = start + dot(common.shape.map((extent) => extent - 1), strides);
          copies.push({want, common, start, last, strides});
        }
      }
      if (copies.length === 0) continue;
      const {source, origin} = slot.compressor === null
        ? this.#fetchRuns(index, segment, copies)
        : {source: this.decoded(index, segment, pieces[0].storedShape), origin: 0};
      for (const {want: {box: wanted, view}, common, start, strides} of copies) {
        const to = view.start + dot(subtract(common.offset, wanted.offset), view.strides);
        copyBox({...view, start: to}, {bytes: source, start: start - origin, strides},
          common.shape, slot.dtype.size);
      }
    }
  }

  /**
   * Fetches the blocks of an uncompressed segment that copies need: runs of blocks at a time.
   * The buffer begins at the element `origin`, a multiple of the block.
   * @param {number} index
   * @param {number} segment
   * @param {{start: number, last: number}[]} copies first and last elements that are wanted
   */
  #fetchRuns(index, segment, copies) {
    const {size} = this.slot.dtype;
    const runs = copies
      .map(({start, last}) => [Math.floor((start * size) / BLOCK), Math.ceil(((last + 1) * size) / BLOCK)])
      .sort((a, b) => a[0] - b[0]);
    /** @type {[first: number, stop: number][]} */
    const merged = [];
    for (const [first, stop] of runs) {
      const before = merged.at(-1);
      if (before && first <= before[1]) before[1] = Math.max(before[1], stop);
      else merged.push([first, stop]);
    }
    const [[begin]] = merged;
    if (merged.length === 1) {
      return {source: this.blocks(index, segment, ...merged[0]), origin: (begin * BLOCK) / size};
    }
    const end = Math.min(this.table.covered[segment], merged[merged.length - 1][1] * BLOCK);
    const source = new Uint8Array(end - begin * BLOCK);
    for (const [first, stop] of merged) {
      source.set(this.blocks(index, segment, first, stop), (first - begin) * BLOCK);
    }
    return {source, origin: (begin * BLOCK) / size};
  }

  /**
   * Reads wants, each chunk once; targets have to be zero, as zero entries are.
   * @param {Want[]} wants
   */
  read(wants) {
    /** @type {Map<number, Want[]>} */
    const byChunk = new Map();
    for (const want of wants) {
      if (want.box.shape.includes(0)) continue;
      for (const index of chunksOf(this.slot.grid, want.box)) {
        const others = byChunk.get(index);
        if (others) others.push(want);
        else byChunk.set(index, [want]);
      }
    }
    for (const [index, chunkWants] of byChunk) this.readChunk(index, chunkWants);
  }

  /**
   * The logical bytes of the slot in order, chunk by chunk: a chunk is a contiguous run of them
   * (SPEC section 16.1). `bytes` is null for a zero entry.
   * @returns {Generator<{bytes: Uint8Array | null, offset: number, length: number}>}
   */
  * sequence() {
    const {grid, dtype} = this.slot;
    let offset = 0;
    for (let index = 0; index < grid.total; index += 1) {
      const box = chunkBox(grid, index);
      const length = product(box.shape) * dtype.size;
      const [first, stop] = this.segmentsOf(index);
      let bytes = null;
      if (first < stop) {
        bytes = new Uint8Array(length);
        this.readChunk(index, [{box, view: {bytes, start: 0, strides: stridesOf(box.shape)}}]);
      }
      yield {bytes, offset, length};
      offset += length;
    }
  }
}

/**
 * Opens a slot for reading.
 * @param {Checkpoint} checkpoint
 * @param {string} atom
 * @param {string} slot
 */
export function readerOf(checkpoint, atom, slot) {
  return new SlotReader(checkpoint, checkpoint.slot(atom, slot));
}

/**
 * A box of a slot, dense; the whole slot if no box is given.
 * @param {Checkpoint} checkpoint
 * @param {string} atom
 * @param {string} slot
 * @param {Box} [box]
 * @returns {{dtype: string, shape: number[], bytes: Uint8Array}}
 */
export function readBox(checkpoint, atom, slot, box) {
  const reader = readerOf(checkpoint, atom, slot);
  const {shape, dtype} = reader.slot;
  const wanted = box ?? {offset: shape.map(() => 0), shape};
  if (!fits(wanted, shape)) {
    throw new UcpError('UCP-E-MISMATCH', '', `the box does not fit the shape [${shape}]`);
  }
  const bytes = new Uint8Array(product(wanted.shape) * dtype.size);
  reader.read([{box: wanted, view: {bytes, start: 0, strides: stridesOf(wanted.shape)}}]);
  return {dtype: dtype.name, shape: wanted.shape, bytes};
}

/**
 * Refuses a layout that cannot get at entries of each coordinate's own (UCP-R-020).
 * @param {import('./exchange.mjs').Layout | null} stored
 * @param {import('./exchange.mjs').Layout} layout
 */
function checkEntries(stored, {mesh, steps}) {
  const own = stored?.steps.find(({kind}) => kind === 'local');
  if (!stored || !own) return;
  const alike = own.resize === 'keep' ? countCoordinates(mesh) === countCoordinates(stored.mesh)
    : isEqual(mesh.axes, stored.mesh.axes);
  if (!alike || !steps.some(({kind}) => kind === 'local')) {
    throw new UcpError('UCP-E-MISMATCH', '', 'the slot has one entry for each coordinate of its mesh');
  }
}

/**
 * Local tensors of a layout, one per coordinate.
 * @param {Checkpoint} checkpoint
 * @param {string} atom
 * @param {string} slot
 * @param {{mesh: import('./mesh.mjs').Mesh, steps: import('./layout.mjs').Step[],
 *   place?: import('./layout.mjs').Place | null}} layout
 * @param {number[][]} coordinates
 * @returns {Generator<{coordinate: number[], shape: number[] | null, dtype: string,
 *   bytes: Uint8Array | null}>} shape and bytes are null where a coordinate holds nothing
 */
export function* readLocals(checkpoint, atom, slot, {mesh, steps, place = null}, coordinates) {
  const reader = readerOf(checkpoint, atom, slot);
  const {dtype} = reader.slot;
  checkForm({mesh, steps, place});
  if (steps.some(({kind}) => kind === 'partial')) { // UCP-R-018
    throw new UcpError('UCP-E-LAYOUT', '', 'contributions cannot be had back');
  }
  checkEntries(checkpoint.layoutOf(reader.slot), {mesh, steps});
  if (checkpoint.pipeline && !keepsStage(checkpoint.pipeline, reader.atom.name, {mesh, steps})) {
    throw new UcpError('UCP-E-MISMATCH', '', `${atom} belongs to another stage of a pipeline in flight`);
  }
  checkLayout(mesh, steps, reader.slot.shape, '', place, dtype);
  const exponent = steps.find(({kind}) => kind === 'scale')?.exponent ?? 0;
  for (const coordinate of coordinates) {
    if (!hasCoordinate(mesh, coordinate)) {
      throw new UcpError('UCP-E-MISMATCH', '', `the mesh has no coordinate [${coordinate}]`);
    }
    const {shape, pieces} = lowerToLogical(mesh, steps, reader.slot.shape, coordinate, place);
    if (shape === null) {
      yield {coordinate, shape, dtype: dtype.name, bytes: null};
      continue;
    }
    const bytes = new Uint8Array(product(shape) * dtype.size);
    reader.read(pieces.map((piece) => ({
      box: {offset: piece.offset, shape: piece.shape},
      view: {bytes, start: piece.local, strides: piece.strides},
    })));
    scale(bytes, dtype, exponent);
    yield {coordinate, shape, dtype: dtype.name, bytes};
  }
}
