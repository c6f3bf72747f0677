// The portable platform against Node's own.

import assert from 'node:assert/strict';
import {test} from 'node:test';
import {constants, deflateRawSync} from 'node:zlib';
import * as portable from '../browser/platform.mjs';
import * as native from '../node/platform.mjs';
import {Random} from './helpers.mjs';

const random = new Random(5);

test('SHA-256 of pieces is that of the whole', () => {
  for (const length of [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000, 100_000]) {
    const bytes = random.bytes(length);
    const hash = new portable.Sha256();
    for (let at = 0; at < length;) {
      const take = random.integer(1, 200);
      hash.update(bytes.subarray(at, at + take));
      at += take;
    }
    assert.equal(hash.hex(), new native.Sha256().update(bytes).hex(), `${length}`);
  }
});

test('CRC-32 is that of gzip', () => {
  for (const length of [0, 1, 7, 1000]) {
    const bytes = random.bytes(length);
    assert.equal(portable.crc32(bytes), native.crc32(bytes));
  }
});

/** Streams of every kind of block. */
function streams() {
  const kinds = [
    {level: 0}, {level: 1}, {level: 9}, {strategy: constants.Z_FIXED}, {strategy: constants.Z_HUFFMAN_ONLY},
    {strategy: constants.Z_RLE}, {level: 6, memLevel: 1},
  ];
  const texts = [0, 1, 2, 300, 70_000].flatMap((length) => [0, 3, 255].map((most) => random.bytes(length, most)));
  return texts.flatMap((raw) => kinds.map((options) => ({raw, stored: deflateRawSync(raw, options)})));
}

test('streams inflate, and what follows them is left', () => {
  for (const {raw, stored} of streams()) {
    for (const tail of [0, 1, 9]) {
      const found = portable.inflateRaw(Buffer.concat([stored, Buffer.alloc(tail, 7)]), raw.length);
      assert.deepEqual(Buffer.from(found.raw), raw);
      assert.equal(found.used, stored.length);
    }
    if (raw.length > 0) assert.throws(() => portable.inflateRaw(stored, raw.length - 1));
    assert.throws(() => portable.inflateRaw(stored.subarray(0, -1), raw.length));
  }
});

test('damaged streams give what Node gives, or are refused as there', () => {
  for (const {raw, stored} of streams().filter(({raw: {length}}) => length === 300)) {
    for (let n = 0; n < 200; n += 1) {
      const damaged = Buffer.from(stored);
      damaged[random.integer(0, damaged.length - 1)] ^= 1 << random.integer(0, 7);
      const attempt = ({inflateRaw}) => {
        try {
          const found = inflateRaw(damaged, raw.length);
          return [Buffer.from(found.raw).toString('hex'), found.used];
        } catch {
          return null;
        }
      };
      assert.deepEqual(attempt(portable), attempt(native));
    }
  }
});

test('base64 is decoded, and told from what is none', () => {
  for (const text of ['', 'aGk=', 'aGkh', 'AA==', 'AB==', 'a', 'aGk', '====', 'aG k=', 'aGk=aGk=', 'a_k=', 'é===']) {
    assert.equal(portable.isBase64(text), native.isBase64(text), text);
    if (native.isBase64(text)) assert.deepEqual(portable.fromBase64(text), native.fromBase64(text));
  }
});
