/**
 * Numbers of the data types, as bytes: exact factors and reductions (SPEC sections 12.2 and 12.3).
 */

import {UcpError} from './errors.mjs';

/** @typedef {{size: number, exponent: number, fraction: number, nan: bigint}} Format how a float type is written */
/** @typedef {'sum' | 'mean' | 'max'} Reduction */

/** Floats: bits of the exponent and of the fraction, and the NaN that arithmetic gives. */
const FLOATS = new Map(Object.entries({
  float16: {size: 2, exponent: 5, fraction: 10, nan: 0x7e00n},
  bfloat16: {size: 2, exponent: 8, fraction: 7, nan: 0x7fc0n},
  float32: {size: 4, exponent: 8, fraction: 23, nan: 0x7fc00000n},
  float64: {size: 8, exponent: 11, fraction: 52, nan: 0x7ff8000000000000n},
}));

/** The type of which a complex number has two. */
const PARTS = new Map([['complex64', 'float32'], ['complex128', 'float64']]);

/**
 * The float of which a data type has one or two, or undefined.
 * @param {string} name
 * @returns {string | undefined}
 */
const floatOf = (name) => (PARTS.get(name) ?? (FLOATS.has(name) ? name : undefined));

/**
 * How a float type is written.
 * @param {string} name
 */
const formatOf = (name) => /** @type {Format} */ (FLOATS.get(name));

const INTEGER = /^(u?)int(8|16|32|64)$/;

/**
 * Whether a slot of this type can have `scale` in its layout (UCP-D-082).
 * @param {string} name
 */
export const canScale = (name) => floatOf(name) !== undefined;

/**
 * Whether a slot of this type can be a reduction (UCP-D-078).
 * @param {string} name
 * @param {string | undefined} reduce
 */
export const canReduce = (name, reduce) => INTEGER.test(name)
  || (floatOf(name) !== undefined && (reduce !== 'max' || FLOATS.has(name)));

/** @type {(detail: string) => never} */
const inexact = (detail) => {
  throw new UcpError('UCP-E-INEXACT', '', detail);
};

/** @param {Uint8Array} bytes */
const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** Little-endian unsigned integers of a size, as BigInt. */
/** @type {Record<number, (view: DataView, at: number) => bigint>} */
const GET = {
  1: (view, at) => BigInt(view.getUint8(at)),
  2: (view, at) => BigInt(view.getUint16(at, true)),
  4: (view, at) => BigInt(view.getUint32(at, true)),
  8: (view, at) => view.getBigUint64(at, true),
};
/** @type {Record<number, (view: DataView, at: number, bits: bigint) => void>} */
const SET = {
  1: (view, at, bits) => view.setUint8(at, Number(bits)),
  2: (view, at, bits) => view.setUint16(at, Number(bits), true),
  4: (view, at, bits) => view.setUint32(at, Number(bits), true),
  8: (view, at, bits) => view.setBigUint64(at, bits, true),
};

/**
 * The bits of a float times a power of two; refuses what is not a number of the type.
 * @param {bigint} bits
 * @param {Format} format
 * @param {number} power
 */
function scaled(bits, {exponent: width, fraction}, power) {
  const shift = BigInt(fraction);
  const most = (1n << BigInt(width)) - 1n;
  const field = (bits >> shift) & most;
  const digits = bits & ((1n << shift) - 1n);
  if (field === most || (field === 0n && digits === 0n)) return bits; // NaN, infinities, zeros
  const sign = bits >> (shift + BigInt(width));
  // A subnormal number has the digits of the field 1, without the leading one.
  let significand = field === 0n ? digits : digits | (1n << shift);
  let wanted = (field === 0n ? 1n : field) + BigInt(power);
  while (significand < 1n << shift && wanted > 1n) {
    significand <<= 1n;
    wanted -= 1n;
  }
  if (wanted < 1n) {
    const lost = 1n - wanted;
    if (lost > shift || significand & ((1n << lost) - 1n)) inexact(`a product has digits below the smallest number`);
    significand >>= lost;
    wanted = 1n;
  }
  if (wanted >= most) inexact('a product is too large');
  const normal = significand >= 1n << shift;
  return (sign << (shift + BigInt(width))) | (normal ? wanted << shift : 0n) | (significand & ((1n << shift) - 1n));
}

/**
 * Multiplies all elements by 2^power, in place.
 * @param {Uint8Array} bytes
 * @param {import('./dtypes.mjs').DataType} dtype for which {@link canScale}
 * @param {number} power
 * @throws {UcpError} UCP-E-INEXACT
 */
export function scale(bytes, dtype, power) {
  if (power === 0) return;
  const format = formatOf(/** @type {string} */ (floatOf(dtype.name)));
  const view = viewOf(bytes);
  for (let at = 0; at < bytes.length; at += format.size) {
    SET[format.size](view, at, scaled(GET[format.size](view, at), format, power));
  }
}

/**
 * x rounded to an integer, of two that are as near the even one.
 * @param {number} x
 */
function roundEven(x) {
  const floor = Math.floor(x);
  const rest = x - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 !== 0) ? floor + 1 : floor;
}

const scratch = new DataView(new ArrayBuffer(8));

/** @type {Record<string, (x: number) => number>} the bits of a number in floats of 16 bits, rounded to nearest, ties to even */
const HALVES = {
  float16: (x) => {
    const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0;
    const magnitude = Math.abs(x);
    if (magnitude >= 65520) return sign | 0x7c00;
    if (magnitude < 2 ** -14) return sign | roundEven(magnitude * 2 ** 24);
    scratch.setFloat64(0, magnitude);
    const exponent = (scratch.getUint16(0) >> 4) - 1023;
    return sign | (((exponent + 15) << 10) + roundEven(magnitude * 2 ** (10 - exponent)) - 1024);
  },
  bfloat16: (x) => {
    scratch.setFloat32(0, x);
    const wide = scratch.getUint32(0);
    return (wide + 0x7fff + ((wide >>> 16) & 1)) >>> 16;
  },
};

/** @type {Record<string, (view: DataView, at: number) => number>} the number of a float type at a place */
const READ = {
  float16: (view, at) => {
    const half = view.getUint16(at, true);
    const field = (half >> 10) & 0x1f;
    const digits = half & 0x3ff;
    const magnitude = field === 0 ? digits * 2 ** -24
      : field === 0x1f ? (digits ? NaN : Infinity) : (1024 + digits) * 2 ** (field - 25);
    return half & 0x8000 ? -magnitude : magnitude;
  },
  bfloat16: (view, at) => {
    scratch.setUint32(0, view.getUint16(at, true) << 16);
    return scratch.getFloat32(0);
  },
  float32: (view, at) => view.getFloat32(at, true),
  float64: (view, at) => view.getFloat64(at, true),
};

/**
 * The numbers of a float type, from and to its bytes; the NaN of arithmetic is written for every NaN.
 * @param {string} name
 */
function codecOf(name) {
  const {size, nan} = formatOf(name);
  return {
    size,
    get: READ[name],
    /**
     * @param {DataView} view
     * @param {number} at
     * @param {number} x
     */
    set(view, at, x) {
      if (Number.isNaN(x)) SET[size](view, at, nan);
      else if (size === 2) view.setUint16(at, HALVES[name](x), true);
      else if (size === 4) view.setFloat32(at, x, true); // rounds to nearest, ties to even
      else view.setFloat64(at, x, true);
    },
    // The sum of two binary32, rounded to binary64 and then to binary32, is that rounded once.
    accumulate: size === 2 ? Math.fround : (/** @type {number} */ x) => x,
  };
}

/**
 * @param {DataView[]} views
 * @param {DataView} target
 * @param {number} length
 * @param {string} name
 * @param {Reduction} reduce
 */
function reduceFloats(views, target, length, name, reduce) {
  const {size, get, set, accumulate} = codecOf(name);
  for (let at = 0; at < length; at += size) {
    if (reduce === 'max') {
      let most = 0;
      for (let j = 1; j < views.length; j += 1) {
        const [x, m] = [get(views[j], at), get(views[most], at)];
        if (x > m || (Number.isNaN(x) && !Number.isNaN(m))) most = j;
      }
      SET[size](target, at, GET[size](views[most], at));
    } else {
      let sum = get(views[0], at);
      for (let j = 1; j < views.length; j += 1) sum = accumulate(sum + get(views[j], at));
      set(target, at, reduce === 'mean' ? accumulate(sum / views.length) : sum);
    }
  }
}

/**
 * a / n, rounded to the nearest integer, of two that are as near to the even one.
 * @param {bigint} a
 * @param {bigint} n
 */
function meanOf(a, n) {
  let quotient = a / n;
  if (quotient * n > a) quotient -= 1n; // BigInt division goes towards zero
  const rest = 2n * (a - quotient * n);
  return rest > n || (rest === n && quotient % 2n !== 0n) ? quotient + 1n : quotient;
}

/**
 * @param {DataView[]} views
 * @param {DataView} target
 * @param {number} length
 * @param {number} size
 * @param {boolean} signed
 * @param {Reduction} reduce
 */
function reduceIntegers(views, target, length, size, signed, reduce) {
  const value = (/** @type {bigint} */ bits) => (signed ? BigInt.asIntN(8 * size, bits) : bits);
  for (let at = 0; at < length; at += size) {
    const numbers = views.map((view) => value(GET[size](view, at)));
    let found;
    if (reduce === 'max') found = numbers.reduce((a, b) => (b > a ? b : a));
    else {
      found = numbers.reduce((a, b) => a + b);
      if (reduce === 'mean') found = meanOf(found, BigInt(views.length));
    }
    const bits = BigInt.asUintN(8 * size, found);
    if (value(bits) !== found) inexact('a sum is no number of the data type');
    SET[size](target, at, bits);
  }
}

/**
 * The reduction of contributions, element by element.
 * @param {Uint8Array[]} contributions of equal length, in order
 * @param {import('./dtypes.mjs').DataType} dtype for which {@link canReduce}
 * @param {Reduction} reduce
 * @returns {Uint8Array}
 * @throws {UcpError} UCP-E-INEXACT
 */
export function reduced(contributions, dtype, reduce) {
  const [{length}] = contributions;
  const found = new Uint8Array(length);
  const views = contributions.map(viewOf);
  const integer = INTEGER.exec(dtype.name);
  if (integer) reduceIntegers(views, viewOf(found), length, dtype.size, integer[1] === '', reduce);
  else reduceFloats(views, viewOf(found), length, /** @type {string} */ (floatOf(dtype.name)), reduce);
  return found;
}
