import assert from 'node:assert/strict';
import {test} from 'node:test';
import {crc32, gzipSync} from 'node:zlib';
import {decompress} from '../lib/codec.mjs';
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
