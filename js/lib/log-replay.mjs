/**
 * Replay of logs of `ucp.sgd`, and sums of states (SPEC-UPDATE-LOGS sections 4 to 6).
 */

import {UcpError} from './errors.mjs';
import {place} from './json.mjs';
import {
  copyBox, dot, product, stridesOf,
} from './boxes.mjs';
import {sizeOf} from './dtypes.mjs';
import {placesOf} from './log-batch.mjs';
import {readBox} from './read.mjs';
import {checkStep} from './update-log.mjs';
import {parseFloatText} from './values.mjs';

/** @typedef {import('./log-documents.mjs').Epoch} Epoch */
/** @typedef {import('./log-documents.mjs').LogPiece} LogPiece */
/** @typedef {import('./checkpoint.mjs').Checkpoint} Checkpoint */
/** @typedef {import('./update-log.mjs').UpdateLog} UpdateLog */
/** @typedef {import('./update-log.mjs').WholeStep} WholeStep */
/** @typedef {Map<string, Uint8Array>} Values the elements of tensors, by atom */

const SMALL_OPTIMIZER = 'ucp.sgd';
const EXACTNESS = ['bitwise', 'tolerance', 'lossy'];
const FLOAT = 4;

/** @param {bigint} number */
const mixed = (number) => {
  let x = BigInt.asUintN(64, number + 0x9e3779b97f4a7c15n);
  x = BigInt.asUintN(64, (x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
  x = BigInt.asUintN(64, (x ^ (x >> 27n)) * 0x94d049bb133111ebn);
  return x ^ (x >> 31n);
};

/**
 * The row-major indices in a tensor of the elements of a box, in order.
 * @param {import('./boxes.mjs').Box} box
 * @param {number[]} whole shape of the tensor
 */
function* indicesOf({offset, shape}, whole) {
  const strides = stridesOf(whole);
  const inner = shape.at(-1) ?? 1;
  const at = shape.slice(0, -1).fill(0);
  for (let row = 0, rows = product(shape) / inner; row < rows; row += 1) {
    let start = offset.at(-1) ?? 0;
    for (let i = 0; i < at.length; i += 1) start += (offset[i] + at[i]) * strides[i];
    for (let k = 0; k < inner; k += 1) yield start + k;
    for (let i = at.length - 1; i >= 0; i -= 1) {
      at[i] += 1;
      if (at[i] < shape[i]) break;
      at[i] = 0;
    }
  }
}

/**
 * The sum of a box of a tensor (section 5).
 * @param {Uint8Array} bytes of the elements of the box, dense
 * @param {import('./boxes.mjs').Box} box not empty
 * @param {number[]} shape of the tensor
 * @param {string} dtype
 * @returns {bigint}
 */
export function boxSum(bytes, box, shape, dtype) {
  const size = sizeOf(dtype);
  const words = Math.max(1, size / 8);
  const width = size / words;
  let sum = 0n;
  let at = 0;
  for (const index of indicesOf(box, shape)) {
    for (let word = 0; word < words; word += 1) {
      let value = 0n;
      for (let i = width - 1; i >= 0; i -= 1) value = (value << 8n) | BigInt(bytes[at + i]);
      at += width;
      sum += mixed(mixed(BigInt(index) * BigInt(words) + BigInt(word) + 1n) ^ value);
    }
  }
  return BigInt.asUintN(64, sum);
}

/**
 * Sixteen hexadecimal digits of a sum.
 * @param {bigint} sum
 */
export const sumText = (sum) => sum.toString(16).padStart(16, '0');

/**
 * The rate of each group, in binary32.
 * @param {import('./log-batch.mjs').Step} step
 */
function ratesOf({options, at}) {
  return options.map((group, i) => {
    const rate = group.get('lr');
    const number = rate instanceof Map ? parseFloatText(rate.get('$float') ?? '') : rate;
    if (group.size !== 1 || typeof number !== 'number' || (rate instanceof Map && !rate.has('$float'))) {
      throw new UcpError('UCP-E-MISMATCH', place(at, `/options/${i}`), `${SMALL_OPTIMIZER} has one option, the number lr`);
    }
    return Math.fround(number);
  });
}

/**
 * Reads the tensors of an epoch that are not there yet; refuses what the checkpoint has otherwise (UCP-R-043).
 * @param {Epoch} epoch
 * @param {Checkpoint} checkpoint
 * @param {Values} values gets them
 */
function takeTensors(epoch, checkpoint, values) {
  if (epoch.optimizer.type !== SMALL_OPTIMIZER) {
    throw new UcpError('UCP-E-MISMATCH', place(epoch.key, '/optimizer/type'), `not ${SMALL_OPTIMIZER}`);
  }
  epoch.tensors.forEach(({atom, dtype, shape}, i) => {
    const {slot} = checkpoint.slot(atom, 'value');
    const isSame = slot.shape.length === shape.length && slot.shape.every((extent, k) => extent === shape[k]);
    if (dtype !== 'float32' || slot.dtype.name !== dtype || !isSame) {
      throw new UcpError('UCP-E-MISMATCH', place(epoch.key, `/tensors/${i}`), 'the checkpoint has another tensor');
    }
    if (!values.has(atom)) values.set(atom, Uint8Array.from(readBox(checkpoint, atom, 'value').bytes));
  });
}

/**
 * The elements of a tensor of an epoch, which {@link takeTensors} has read.
 * @param {Values} values
 * @param {string} atom
 */
const elementsOf = (values, atom) => /** @type {Uint8Array} */ (values.get(atom));

/**
 * Makes a step of a piece, whose elements lie one behind the other.
 * @param {Uint8Array} elements changed in place
 * @param {import('./log-batch.mjs').Entry} entry
 * @param {Uint8Array} bytes of the entry
 * @param {number[]} shape of the piece
 * @param {number} rate
 * @param {string} at place of the step
 */
function descend(elements, entry, bytes, shape, rate, at) {
  const {places: found, values} = placesOf(entry, bytes, shape, at);
  const places = found ?? [];
  const gradients = new DataView(values.buffer, values.byteOffset, values.byteLength);
  const target = new DataView(elements.buffer, elements.byteOffset, elements.byteLength);
  // The product of two binary32 is exact in binary64, and rounding a difference twice is as rounding it once.
  /** @type {(element: number, gradient: number) => void} */
  const change = (element, gradient) => {
    const before = target.getFloat32(element * FLOAT, true);
    target.setFloat32(element * FLOAT, before - Math.fround(rate * gradient), true);
  };
  if (entry.form === 'dense') {
    for (let i = 0; i < product(shape); i += 1) change(i, gradients.getFloat32(i * FLOAT, true));
  } else if (entry.form === 'sparse') {
    const whole = new Float32Array(product(shape));
    places.forEach((element, i) => {
      whole[element] = gradients.getFloat32(i * FLOAT, true);
    });
    whole.forEach((gradient, i) => change(i, gradient));
  } else {
    const width = product(shape.slice(1));
    places.forEach((row, i) => {
      for (let k = 0; k < width; k += 1) change(row * width + k, gradients.getFloat32((i * width + k) * FLOAT, true));
    });
  }
}

/**
 * Where the elements of a piece are among those of its tensor.
 * @param {Uint8Array} bytes of the tensor
 * @param {LogPiece} piece
 * @param {number[]} shape of the tensor
 * @returns {import('./boxes.mjs').View}
 */
function viewOf(bytes, {offset}, shape) {
  const strides = stridesOf(shape);
  return {bytes, start: dot(offset, strides), strides};
}

/**
 * The elements of a piece, one behind the other.
 * @param {Uint8Array} whole
 * @param {LogPiece} piece
 * @param {number[]} shape of the tensor
 */
function gathered(whole, piece, shape) {
  const bytes = new Uint8Array(product(piece.shape) * FLOAT);
  copyBox({bytes, start: 0, strides: stridesOf(piece.shape)}, viewOf(whole, piece, shape), piece.shape, FLOAT);
  return bytes;
}

/**
 * The reverse of {@link gathered}.
 * @param {Uint8Array} whole changed in place
 * @param {LogPiece} piece
 * @param {number[]} shape of the tensor
 * @param {Uint8Array} bytes
 */
function scatter(whole, piece, shape, bytes) {
  copyBox(viewOf(whole, piece, shape), {bytes, start: 0, strides: stridesOf(piece.shape)}, piece.shape, FLOAT);
}

/**
 * @param {Epoch} epoch
 * @param {Map<number, number>} groupOf by tensor: each that has gradients is in one (UCP-D-156)
 * @param {WholeStep} step
 * @param {Values} values changed in place
 */
function applyStep(epoch, groupOf, step, values) {
  const [{skipped}] = step.ranks;
  const rates = ratesOf(step.ranks[0]);
  for (const [number, {entry, bytes, at}] of step.entries) {
    const piece = epoch.pieces[number];
    const {atom, role, shape} = epoch.tensors[piece.tensor];
    if (role !== 'gradient') {
      scatter(elementsOf(values, atom), piece, shape, bytes);
    } else if (!skipped) {
      const whole = elementsOf(values, atom);
      const part = gathered(whole, piece, shape);
      const group = /** @type {number} */ (groupOf.get(piece.tensor));
      descend(part, entry, bytes, piece.shape, rates[group], at);
      scatter(whole, piece, shape, part);
    }
  }
}

/**
 * Residuals that are not stored of the state behind a step (UCP-R-046).
 * @param {Epoch} epoch
 * @param {WholeStep} step
 */
function withoutResiduals({tensors, pieces}, {entries}) {
  const stored = new Set([...entries.keys()].map((number) => pieces[number].tensor));
  return tensors.filter(({role, shape}, i) => role === 'residual' && !shape.includes(0) && !stored.has(i));
}

/**
 * Refuses a state whose sums are not those that the log has (UCP-R-044).
 * @param {UpdateLog} log
 * @param {Epoch} epoch
 * @param {number} from
 * @param {number} state
 * @param {Values} values
 */
function checkSums(log, epoch, from, state, values) {
  for (const [tensor, slots] of log.sumsOf(epoch, from, state)) {
    const {atom, shape, dtype} = epoch.tensors[tensor];
    const box = {offset: shape.map(() => 0), shape};
    const found = shape.includes(0) ? 0n : boxSum(elementsOf(values, atom), box, shape, dtype);
    for (const [slot, sum] of slots) {
      if (slot !== 'value' || sum !== found) {
        throw new UcpError('UCP-E-LOG', epoch.key, `the log has another sum of ${atom} in state ${state}`);
      }
    }
  }
}

/**
 * Replays a log of `ucp.sgd` from a checkpoint on (UCP-R-045).
 * @param {UpdateLog} log
 * @param {Checkpoint} checkpoint
 * @param {{allowLoss?: boolean}} [options] of {@link UpdateLog.recovery}
 * @returns {{step: number, exactness: string, values: Values}} the state at the
 *   end, and the bytes of the tensors that epochs have, by atom
 */
export function replay(log, checkpoint, options) {
  const {step: from, log: position} = checkpoint.root;
  if (position === null || position.get('id') !== log.id || from === null) {
    throw new UcpError('UCP-E-LOG', '', 'the checkpoint is of no log, or of another one');
  }
  const {step, stretches} = log.recovery({epoch: position.get('epoch'), step: from}, options);
  /** @type {Values} */
  const values = new Map();
  let exactness = 0;
  /** @type {Epoch['tensors']} */
  let unknown = [];
  for (const {epoch, from: begin, stop} of stretches) {
    takeTensors(epoch, checkpoint, values);
    // The profile of this optimizer is empty.
    const own = epoch.optimizer.profile.size > 0 ? 1 : 0;
    exactness = Math.max(exactness, own, EXACTNESS.indexOf(epoch.exactness));
    const groupOf = new Map(epoch.groups.flatMap((group, i) => group.map((tensor) => [tensor, i])));
    for (const one of log.steps(epoch, begin, stop)) {
      checkStep(epoch, one);
      applyStep(epoch, groupOf, one, values);
      unknown = withoutResiduals(epoch, one);
      checkSums(log, epoch, begin, one.step + 1, values);
    }
  }
  for (const {atom} of unknown) elementsOf(values, atom).fill(0);
  return {step, exactness: EXACTNESS[exactness], values};
}
