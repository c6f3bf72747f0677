/**
 * Elements as numbers and as text (SPEC section 11.2), for those who look at them.
 */

/** @typedef {{exponent: number, fraction: number, bias: number, special: string}} Small */

/** Small floats: bits of the exponent and of the fraction, the bias, and what their highest codes are. */
const SMALL = new Map(Object.entries({
  float16: {exponent: 5, fraction: 10, bias: 15, special: 'ieee'},
  float8_e5m2: {exponent: 5, fraction: 2, bias: 15, special: 'ieee'},
  float8_e3m4: {exponent: 3, fraction: 4, bias: 3, special: 'ieee'},
  float8_e4m3fn: {exponent: 4, fraction: 3, bias: 7, special: 'nan'},
  float8_e4m3fnuz: {exponent: 4, fraction: 3, bias: 8, special: 'minus-zero'},
  float8_e4m3b11fnuz: {exponent: 4, fraction: 3, bias: 11, special: 'minus-zero'},
  float8_e5m2fnuz: {exponent: 5, fraction: 2, bias: 16, special: 'minus-zero'},
  float4_e2m1fn: {exponent: 2, fraction: 1, bias: 1, special: 'none'},
}));

/**
 * The number that each code of a small float stands for.
 * @param {Small} format
 */
function codesOf({
  exponent, fraction, bias, special,
}) {
  const width = exponent + fraction;
  const top = 2 ** exponent - 1;
  return Float64Array.from({length: 2 ** (width + 1)}, (_, code) => {
    const sign = code >> width ? -1 : 1;
    const field = (code >> fraction) & top;
    const digits = code & (2 ** fraction - 1);
    if (special === 'minus-zero' && code === 2 ** width) return NaN;
    if (special === 'nan' && field === top && digits === 2 ** fraction - 1) return NaN;
    if (special === 'ieee' && field === top) return digits === 0 ? sign * Infinity : NaN;
    const significand = field === 0 ? digits : digits + 2 ** fraction;
    return sign * significand * 2 ** (Math.max(field, 1) - bias - fraction);
  });
}

/** @type {Map<string, Float64Array>} by name */
const codes = new Map();
/** @param {string} name */
const codesNamed = (name) => {
  if (!codes.has(name)) codes.set(name, codesOf(/** @type {Small} */ (SMALL.get(name))));
  return /** @type {Float64Array} */ (codes.get(name));
};

const scratch = new DataView(new ArrayBuffer(4));
/** @param {number} bits */
const bfloat16 = (bits) => {
  scratch.setUint32(0, bits << 16);
  return scratch.getFloat32(0);
};

/** @typedef {(view: DataView, at: number) => number | bigint} Read */

/** @type {Record<string, Read>} how an element is read at a place, as a number or a BigInt; of complex numbers the real part. */
const READ = {
  bool: (view, at) => view.getUint8(at),
  int8: (view, at) => view.getInt8(at),
  uint8: (view, at) => view.getUint8(at),
  int16: (view, at) => view.getInt16(at, true),
  uint16: (view, at) => view.getUint16(at, true),
  int32: (view, at) => view.getInt32(at, true),
  uint32: (view, at) => view.getUint32(at, true),
  int64: (view, at) => view.getBigInt64(at, true),
  uint64: (view, at) => view.getBigUint64(at, true),
  bfloat16: (view, at) => bfloat16(view.getUint16(at, true)),
  float32: (view, at) => view.getFloat32(at, true),
  float64: (view, at) => view.getFloat64(at, true),
  complex64: (view, at) => view.getFloat32(at, true),
  complex128: (view, at) => view.getFloat64(at, true),
  int4: (view, at) => (view.getUint8(at) << 28) >> 28,
  float8_e8m0fnu: (view, at) => (view.getUint8(at) === 255 ? NaN : 2 ** (view.getUint8(at) - 127)),
};

/**
 * @param {string} name
 * @returns {Read}
 */
function readerOf(name) {
  if (READ[name]) return READ[name];
  const numbers = codesNamed(name);
  return name === 'float16' ? (view, at) => numbers[view.getUint16(at, true)] : (view, at) => numbers[view.getUint8(at)];
}

/** @param {Uint8Array} bytes */
const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/**
 * Elements as numbers: integers of 64 bits are rounded, of complex numbers there are two each.
 * @param {Uint8Array} bytes
 * @param {import('./dtypes.mjs').DataType} dtype
 * @returns {Float64Array}
 */
export function toNumbers(bytes, {name, size}) {
  const view = viewOf(bytes);
  const read = readerOf(name);
  const step = name.startsWith('complex') ? size / 2 : size;
  const numbers = new Float64Array(bytes.length / step);
  for (let i = 0; i < numbers.length; i += 1) numbers[i] = Number(read(view, i * step));
  return numbers;
}

/** Significant digits with which a number of a type can be told from its neighbours. */
/** @type {Record<string, number>} */
const DIGITS = {
  float64: 17, complex128: 17, float32: 9, complex64: 9, bfloat16: 4, float16: 5,
};

/**
 * The shortest text that gives a number back in its type.
 * @param {number} number
 * @param {string} name
 */
function shortest(number, name) {
  if (!Number.isFinite(number)) return String(number).replace('Infinity', 'inf').replace('NaN', 'nan');
  if (Object.is(number, -0)) return '-0';
  const most = DIGITS[name] ?? 3;
  const isSingle = name.startsWith('float32') || name === 'complex64';
  const isBack = (/** @type {number} */ x) => (isSingle ? Math.fround(x) : x) === number;
  if (name === 'bfloat16' || name === 'float16' || SMALL.has(name)) return String(Number(number.toPrecision(most)));
  for (let digits = 1; digits < most; digits += 1) {
    const text = Number(number.toPrecision(digits));
    if (isBack(text)) return String(text);
  }
  return String(Number(number.toPrecision(most)));
}

/**
 * Elements as people write them.
 * @param {Uint8Array} bytes
 * @param {import('./dtypes.mjs').DataType} dtype
 * @returns {string[]}
 */
export function toTexts(bytes, {name, size}) {
  const view = viewOf(bytes);
  const read = readerOf(name);
  return Array.from({length: bytes.length / size}, (_, i) => {
    const value = read(view, i * size);
    if (name === 'bool') return value ? 'true' : 'false';
    if (typeof value === 'bigint' || name.includes('int')) return String(value);
    const real = shortest(value, name);
    if (!name.startsWith('complex')) return real;
    const imaginary = shortest(Number(read(view, i * size + size / 2)), name);
    return `${real}${/^[-]/.test(imaginary) ? '' : '+'}${imaginary}j`;
  });
}
