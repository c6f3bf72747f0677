import assert from 'node:assert/strict';
import {test} from 'node:test';
import {DTYPES} from '../lib/dtypes.mjs';
import {toNumbers, toTexts} from '../lib/elements.mjs';

const texts = (name, bytes) => toTexts(Uint8Array.from(bytes), DTYPES.get(name));

test('elements are told as people write them', () => {
  assert.deepEqual(texts('float32', new Uint8Array(Float32Array.of(0.1, -0, 1 / 3, Infinity, NaN, 16777217).buffer)),
    ['0.1', '-0', '0.33333334', 'inf', 'nan', '16777216']);
  assert.deepEqual(texts('float64', new Uint8Array(Float64Array.of(0.1, 5e-324, -1e300).buffer)), ['0.1', '5e-324', '-1e+300']);
  assert.deepEqual(texts('int64', new Uint8Array(BigInt64Array.of(-(2n ** 63n), 1n).buffer)), ['-9223372036854775808', '1']);
  assert.deepEqual(texts('bool', [0, 1]), ['false', 'true']);
  assert.deepEqual(texts('complex64', new Uint8Array(Float32Array.of(1, -2, 0.5, 3).buffer)), ['1-2j', '0.5+3j']);
  assert.deepEqual(texts('int4', [0, 7, 8, 15]), ['0', '7', '-8', '-1']);
});

test('small floats have the numbers of their definitions', () => {
  assert.deepEqual(texts('bfloat16', [0x80, 0x3f, 0xcd, 0x3d, 0x80, 0xff]), ['1', '0.1001', '-inf']);
  assert.deepEqual(texts('float16', [0x00, 0x3c, 0x01, 0x00, 0xff, 0x7b, 0x00, 0x7e]), ['1', '5.9605e-8', '65504', 'nan']);
  const largest = {
    float8_e4m3fn: [0x7e, 448], float8_e5m2: [0x7b, 57344], float8_e4m3fnuz: [0x7f, 240], float8_e5m2fnuz: [0x7f, 57344],
    float8_e4m3b11fnuz: [0x7f, 30], float8_e3m4: [0x6f, 15.5], float4_e2m1fn: [0x07, 6], float8_e8m0fnu: [0xfe, 2 ** 127],
  };
  for (const [name, [code, number]] of Object.entries(largest)) {
    assert.equal(toNumbers(Uint8Array.of(code), DTYPES.get(name))[0], number, name);
  }
  for (const [name, code] of Object.entries({float8_e4m3fn: 0xff, float8_e4m3fnuz: 0x80, float8_e8m0fnu: 0xff})) {
    assert.ok(Number.isNaN(toNumbers(Uint8Array.of(code), DTYPES.get(name))[0]), name);
  }
});
