/**
 * Boxes (SPEC section 3), copies between strided boxes, and exact tilings.
 */

/**
 * @param {number[]} extents
 * @typedef {{offset: number[], shape: number[]}} Box
 */

export const product = (extents) => extents.reduce((a, b) => a * b, 1);

/**
 * Row-major strides of a dense tensor, in elements.
 * @param {number[]} shape
 * @returns {number[]}
 */
export function stridesOf(shape) {
  const strides = new Array(shape.length);
  let stride = 1;
  for (let i = shape.length - 1; i >= 0; i -= 1) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

/**
 * @param {number[]} a
 * @param {number[]} b
 */
export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
/**
 * @param {number[]} a
 * @param {number[]} b
 */
export const subtract = (a, b) => a.map((x, i) => x - b[i]);

/**
 * The intersection of two boxes, or null where it is empty.
 * @param {Box} a
 * @param {Box} b
 * @returns {Box | null}
 */
export function intersect(a, b) {
  const offset = new Array(a.offset.length);
  const shape = new Array(a.offset.length);
  for (let i = 0; i < offset.length; i += 1) {
    offset[i] = Math.max(a.offset[i], b.offset[i]);
    shape[i] = Math.min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]) - offset[i];
    if (shape[i] <= 0) return null;
  }
  return {offset, shape};
}

/**
 * Whether a box lies within a tensor of this shape.
 * @param {Box} box
 * @param {number[]} shape
 */
export function fits(box, shape) {
  return box.offset.length === shape.length && box.shape.length === shape.length
    && shape.every((extent, i) => box.offset[i] <= extent && box.shape[i] <= extent - box.offset[i]);
}

/**
 * A strided view of elements in a buffer.
 * @typedef {{bytes: Uint8Array, start: number, strides: number[]}} View
 */

/**
 * Copies a box of elements from one view to another.
 * @param {View} target
 * @param {View} source
 * @param {number[]} shape
 * @param {number} size bytes of an element
 */
export function copyBox(target, source, shape, size) {
  if (shape.includes(0)) return;
  // Dimensions of extent 1 go, and dimensions that are dense in both views merge.
  /** @type {{extent: number, to: number, from: number}[]} */
  const dims = [];
  for (let i = shape.length - 1; i >= 0; i -= 1) {
    if (shape[i] === 1) continue;
    const inner = dims.at(-1);
    const to = target.strides[i];
    const from = source.strides[i];
    if (inner && to === inner.to * inner.extent && from === inner.from * inner.extent) {
      inner.extent *= shape[i];
    } else {
      dims.push({extent: shape[i], to, from});
    }
  }
  let run = 1;
  if (dims.length > 0 && dims[0].to === 1 && dims[0].from === 1) ([{extent: run}] = dims.splice(0, 1));
  const counters = dims.map(() => 0);
  let to = target.start;
  let from = source.start;
  const runBytes = run * size;
  for (;;) {
    copyRun(target.bytes, to * size, source.bytes, from * size, runBytes);
    let i = 0;
    for (; i < dims.length; i += 1) {
      to += dims[i].to;
      from += dims[i].from;
      counters[i] += 1;
      if (counters[i] < dims[i].extent) break;
      to -= dims[i].to * dims[i].extent;
      from -= dims[i].from * dims[i].extent;
      counters[i] = 0;
    }
    if (i === dims.length) return;
  }
}

/**
 * @param {Uint8Array} target
 * @param {number} to
 * @param {Uint8Array} source
 * @param {number} from
 * @param {number} length
 */
function copyRun(target, to, source, from, length) {
  if (length > 32) {
    target.set(source.subarray(from, from + length), to);
  } else {
    for (let i = 0; i < length; i += 1) target[to + i] = source[from + i];
  }
}

const PRIME = (1n << 61n) - 1n;

/**
 * Whether boxes tile a dense box at the origin: no overlap, no gap (UCP-D-101).
 *
 * Let f_i be any functions on coordinates. The sum over the boxes of the products over the
 * dimensions of f_i(stop) - f_i(start) is that of the whole, whatever the f_i, if and only if the
 * boxes tile it: the products expand to signed sums over corners, and those determine how often
 * each element is covered. With values drawn at random from a field of 2^61 - 1 elements the two
 * differ with a probability of at least 1 - 32 / 2^61 where the boxes do not tile; where they do,
 * they never differ. The time is linear in the number of boxes, whatever a hostile table says.
 *
 * @param {Box[]} boxes not empty, within the whole
 * @param {number[]} shape of the whole
 */
export function tiles(boxes, shape) {
  /** @type {Map<number, bigint>[]} */
  const values = shape.map(() => new Map());
  /** @type {(i: number, x: number) => bigint} */
  const random = (i, x) => {
    let value = values[i].get(x);
    if (value === undefined) {
      value = crypto.getRandomValues(new BigUint64Array(1))[0] % PRIME;
      values[i].set(x, value);
    }
    return value;
  };
  /** @param {Box} box */
  const weigh = (box) => {
    let weight = 1n;
    for (let i = 0; i < shape.length; i += 1) {
      const start = box.offset[i];
      weight = (weight * (random(i, start + box.shape[i]) - random(i, start))) % PRIME;
    }
    return weight;
  };
  let sum = weigh({offset: shape.map(() => 0), shape});
  for (const box of boxes) sum -= weigh(box);
  return sum % PRIME === 0n;
}
