/**
 * Data types (SPEC section 11.2). Elements are opaque little-endian bytes of a known size.
 */

/**
 * @typedef {object} DataType
 * @property {string} name
 * @property {number} size bytes of an element
 * @property {string} fill the fill value in Zarr metadata, as JSON text
 * @property {number} maxByte the largest byte of an element that leaves unused bits zero (UCP-D-037)
 */

/** @type {Map<string, DataType>} */
export const DTYPES = new Map();

/**
 * @param {string[]} names
 * @param {number} size
 */
function define(names, size, {fill = '0', maxByte = 0xff} = {}) {
  for (const name of names) DTYPES.set(name, Object.freeze({name, size, fill, maxByte}));
}

define(['bool'], 1, {fill: 'false', maxByte: 1});
define(['int8', 'uint8'], 1);
define(['int16', 'uint16', 'float16', 'bfloat16'], 2);
define(['int32', 'uint32', 'float32'], 4);
define(['int64', 'uint64', 'float64'], 8);
define(['complex64'], 8, {fill: '[0,0]'});
define(['complex128'], 16, {fill: '[0,0]'});
define([
  'float8_e3m4', 'float8_e4m3fn', 'float8_e4m3fnuz', 'float8_e4m3b11fnuz', 'float8_e5m2',
  'float8_e5m2fnuz',
], 1);
define(['float8_e8m0fnu'], 1, {fill: '"0x00"'});
define(['float4_e2m1fn', 'int4'], 1, {maxByte: 0x0f});

/**
 * The bytes of an element.
 * @param {string} dtype that is known
 */
export const sizeOf = (dtype) => /** @type {DataType} */ (DTYPES.get(dtype)).size;

/**
 * Whether bits that the data type does not use are zero in all elements (UCP-D-037).
 * @param {DataType} dtype
 * @param {Uint8Array} bytes
 */
export function unusedBitsAreZero(dtype, bytes) {
  if (dtype.maxByte === 0xff) return true;
  for (let at = 0; at < bytes.length; at += 1) if (bytes[at] > dtype.maxByte) return false;
  return true;
}
