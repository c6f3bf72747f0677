import assert from 'node:assert/strict';
import {test} from 'node:test';
import {crc32, gzipSync} from 'node:zlib';
import {decompress} from '../lib/codec.mjs';
import {unblosclz, unlz4} from '../lib/blosc.mjs';
import {xxh64Low} from '../lib/xxh64.mjs';
import {GZIP, Random} from './helpers.mjs';

const raw = new Random(2).bytes(3000, 3);
const decode = (stored, length = raw.length) => decompress(GZIP, stored, length, 'x');

/** A member with every optional field of the header. */
function ornate() {
  const plain = gzipSync(raw);
  const head = Buffer.concat([plain.subarray(0, 10), Buffer.from([3, 0, 1, 2, 3]), Buffer.from('name\0comment\0')]);
  head[3] = 2 + 4 + 8 + 16;
  const check = Buffer.alloc(2);
  check.writeUInt16LE(crc32(head) & 0xffff);
  return Buffer.concat([head, check, plain.subarray(10)]);
}

test('one gzip member is decoded', () => {
  for (const level of [0, 1, 9]) assert.deepEqual(decode(gzipSync(raw, {level})), raw);
  assert.deepEqual(decode(ornate()), raw);
});

test('anything but one gzip member of the size of the chunk is refused', () => {
  const whole = gzipSync(raw);
  const half = (from, to) => gzipSync(raw.subarray(from, to));
  const refused = [
    Buffer.alloc(0), whole.subarray(0, 9), whole.subarray(0, -1), Buffer.concat([whole, Buffer.alloc(1)]),
    Buffer.concat([half(0, 1000), half(1000)]), Buffer.concat([whole, gzipSync('')]), half(1), raw,
    gzipSync(Buffer.concat([raw, raw])), gzipSync(Buffer.alloc(1 << 24)),
  ];
  for (const stored of refused) assert.throws(() => decode(stored), {code: 'UCP-E-CODEC'});
  const flips = ornate();
  for (let at = 0; at < flips.length; at += 1) {
    const damaged = Buffer.from(flips);
    damaged[at] ^= 0x80;
    try {
      assert.deepEqual(decode(damaged), raw);
    } catch (error) {
      assert.equal(error.code, 'UCP-E-CODEC', `byte ${at}`);
    }
  }
});

test('the checksum of Zstandard is XXH64', () => {
  const known = [
    [0, 0x51d8e999], [1, 0x1b21e730], [4, 0x6af4c124], [7, 0xa233a751], [8, 0x5e0b3222], [31, 0x29f50073],
    [32, 0xe9ecd3d1], [33, 0x7bb9c183], [100, 0x208b0b16], [255, 0x7acf3995],
  ];
  for (const [length, low] of known) assert.equal(xxh64Low(Uint8Array.from({length}, (_, i) => 7 * i + 1)), low, `${length}`);
});

test('blocks of LZ4 and BloscLZ fill what is wanted, or are refused', () => {
  const decoded = (decode, bytes, length) => {
    const out = new Uint8Array(length);
    decode(Uint8Array.from(bytes), out);
    return Buffer.from(out).toString();
  };
  const [a, b, c] = Buffer.from('abc');
  assert.equal(decoded(unlz4, [0x21, a, b, 2, 0, 0x10, c], 8), 'abababac');
  assert.equal(decoded(unblosclz, [1, a, b, 0x40, 1, 0, c], 7), 'abababc');
  const refused = [
    [unlz4, [], 1], [unlz4, [0x10], 1], [unlz4, [0x10, a], 2], [unlz4, [0x20, a, b], 1], [unlz4, [0xf0, 255], 300],
    [unlz4, [0x11, a, 0, 0, 0x10, b], 7], [unlz4, [0x11, a, 2, 0, 0x10, b], 7], [unlz4, [0x11, a, 1], 6],
    [unlz4, [0x1f, a, 1, 0, 255, 255, 0, 0], 20], [unblosclz, [], 1], [unblosclz, [1, a], 2], [unblosclz, [1, a, b], 1],
    [unblosclz, [0, a, 0x20], 4], [unblosclz, [0, a, 0x20, 1, 0, b], 5], [unblosclz, [0, a, 0xe0, 255, 255], 20],
  ];
  for (const [decode, bytes, length] of refused) assert.throws(() => decoded(decode, bytes, length), `${decode.name} ${bytes}`);
});
