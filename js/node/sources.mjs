/**
 * Where a writer takes the logical bytes of a slot from, chunk by chunk.
 *
 * @typedef {object} ChunkRequest
 * @property {import('../lib/boxes.mjs').Box} box of the logical tensor
 * @property {number} offset of the chunk in the logical bytes
 * @property {number} length
 */
/**
 * @typedef {object} Source
 * @property {(request: ChunkRequest) => Uint8Array | null} chunk null where all bytes are zero
 * @property {() => void} [close]
 */

import {closeSync, fstatSync, openSync, readSync} from 'node:fs';
import {UcpError} from '../lib/errors.mjs';
import {copyBox, dot, intersect, product, stridesOf, subtract} from '../lib/boxes.mjs';
import {hasCoordinate} from '../lib/mesh.mjs';
import {reduced, scale} from '../lib/numbers.mjs';
import {lowerToLogical} from '../lib/pieces.mjs';

/** @type {(detail: string) => never} */
const mismatch = (detail) => {
  throw new UcpError('UCP-E-MISMATCH', '', detail);
};

/**
 * A whole tensor in memory.
 * @param {Uint8Array} bytes
 * @param {number} length that it has to have
 * @returns {Source}
 */
export function bufferSource(bytes, length) {
  if (bytes.length !== length) mismatch(`${bytes.length} bytes for a tensor of ${length}`);
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return {chunk: (request) => buffer.subarray(request.offset, request.offset + request.length)};
}

/**
 * A whole tensor in a file of raw elements.
 * @param {string} path
 * @param {number} length that it has to have
 * @returns {Source}
 */
export function fileSource(path, length) {
  const fd = openSync(path, 'r');
  const {size} = fstatSync(fd);
  if (size !== length) {
    closeSync(fd);
    mismatch(`a file of ${size} bytes for a tensor of ${length}`);
  }
  return {
    chunk(request) {
      const bytes = Buffer.allocUnsafe(request.length);
      for (let done = 0; done < bytes.length;) {
        const count = readSync(fd, bytes, done, bytes.length - done, request.offset + done);
        if (count === 0) mismatch(`${path} shrank while it was read`);
        done += count;
      }
      return bytes;
    },
    close: () => closeSync(fd),
  };
}

/**
 * Local tensors of a layout. Every element has to be held by one of them, of each contribution where
 * the layout has `partial`; of replicas, one serves.
 * @param {{mesh: import('../lib/mesh.mjs').Mesh, steps: import('../lib/layout.mjs').Step[],
 *   place?: import('../lib/layout.mjs').Place | null}} layout checked
 * @param {number[]} shape
 * @param {import('../lib/dtypes.mjs').DataType} dtype that goes with the layout
 * @param {{coordinate: number[], bytes: Uint8Array}[]} locals
 * @returns {Source}
 */
export function localsSource({mesh, steps, place = null}, shape, dtype, locals) {
  const partial = steps.filter(({kind}) => kind === 'partial').map(({axis}) => axis);
  // Axes of reductions have a size (UCP-D-076).
  const summed = mesh.axes.map(({name, size = 1}, i) => ({i, size, name})).filter(({name}) => partial.includes(name));
  /** What is held of each contribution, in order of positions on the axes of reductions. */
  const held = Array.from({length: product(summed.map(({size}) => size))}, () => /** @type {Held[]} */ ([]));
  for (const {coordinate, bytes} of locals) {
    if (!hasCoordinate(mesh, coordinate)) mismatch(`the mesh has no coordinate [${coordinate}]`);
    const local = lowerToLogical(mesh, steps, shape, coordinate, place);
    if (local.shape === null) mismatch(`the coordinate [${coordinate}] holds nothing`);
    if (bytes.length !== product(local.shape) * dtype.size) {
      mismatch(`${bytes.length} bytes for the local tensor [${local.shape}] at [${coordinate}]`);
    }
    const contribution = summed.reduce((index, {i, size}) => index * size + coordinate[i], 0);
    held[contribution].push(...local.pieces.map((piece) => ({piece, bytes})));
  }
  const exponent = steps.find(({kind}) => kind === 'scale')?.exponent ?? 0;
  const {reduce} = steps.find(({kind}) => kind === 'partial') ?? {};
  return {
    chunk(request) {
      const contributions = held.map((pieces) => gathered(pieces, request, dtype.size));
      const bytes = reduce ? reduced(contributions, dtype, /** @type {'sum' | 'mean' | 'max'} */ (reduce)) : contributions[0];
      scale(bytes, dtype, -exponent);
      return bytes;
    },
  };
}

const ONE = Buffer.from([1]);

/** @typedef {{piece: import('../lib/pieces.mjs').Piece, bytes: Uint8Array}} Held a piece of a local tensor */

/**
 * The bytes of a chunk out of pieces of local tensors.
 * @param {Held[]} pieces
 * @param {ChunkRequest} request
 * @param {number} itemSize
 */
function gathered(pieces, {box, length}, itemSize) {
  const chunk = Buffer.alloc(length);
  const covered = Buffer.alloc(length / itemSize);
  const strides = stridesOf(box.shape);
  for (const {piece, bytes} of pieces) {
    const common = intersect(piece, box);
    if (!common) continue;
    const to = dot(subtract(common.offset, box.offset), strides);
    const from = piece.local + dot(subtract(common.offset, piece.offset), piece.strides);
    copyBox({bytes: chunk, start: to, strides}, {bytes, start: from, strides: piece.strides},
      common.shape, itemSize);
    copyBox({bytes: covered, start: to, strides},
      {bytes: ONE, start: 0, strides: strides.map(() => 0)}, common.shape, 1);
  }
  if (covered.includes(0)) throw new UcpError('UCP-E-COVER', '', 'the local tensors leave elements out');
  return chunk;
}

/**
 * A slot of another checkpoint, read and verified.
 * @param {import('../lib/read.mjs').SlotReader} reader
 * @returns {Source}
 */
export function slotSource(reader) {
  const sequence = reader.sequence();
  let current = sequence.next();
  let within = 0;
  // Chunks are consecutive runs of the logical bytes, of the source as of the target: the runs of
  // the one are cut from those of the other, in order.
  return {
    chunk({length}) {
      const parts = [];
      let zero = true;
      for (let left = length; left > 0;) {
        const {bytes, length: available} = current.value;
        const take = Math.min(left, available - within);
        if (bytes) zero = false;
        parts.push(bytes ? bytes.subarray(within, within + take) : Buffer.alloc(take));
        within += take;
        left -= take;
        if (within === available) {
          current = sequence.next();
          within = 0;
        }
      }
      return zero ? null : Buffer.concat(parts);
    },
  };
}
