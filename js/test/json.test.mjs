import assert from 'node:assert/strict';
import {test} from 'node:test';
import {canonicalText, parse, stringify} from '../lib/json.mjs';
import {compareUtf8, isKey, isName} from '../lib/names.mjs';
import {crc32c} from '../lib/crc32c.mjs';
import {ContentDigest} from '../lib/digest.mjs';

const read = (text) => parse(Buffer.from(text), 'x');

test('strict JSON is read', () => {
  for (const text of ['{"10":1,"9":2,"__proto__":[]}', '"\\u00e9\\ud83d\\ude00\\n"', '[true,false,null,-1.5e-7]',
    ' [ ] ', '""', '0', '1e300', '-9007199254740993.0', '1152921504606846976.5']) {
    assert.deepEqual(JSON.parse(stringify(read(text))), JSON.parse(text));
  }
  assert.deepEqual([...read('{"10":1,"9":2}').keys()], ['10', '9']);
  assert.ok(Object.is(read('-0.0'), 0));
  assert.equal(read('1e0'), 1);
  assert.equal(read('9007199254740991'), Number.MAX_SAFE_INTEGER);
  read(`${'['.repeat(64)}${']'.repeat(64)}`);
});

test('anything else is refused', () => {
  for (const text of ['', ' ', '{', '[1,]', '{"a":1,}', '{"a" 1}', '{a:1}', '01', '1.', '.5', '+1', '1e', 'NaN', '-Infinity',
    '1e309', '9007199254740992', '-9007199254740992', '"\\ud800"', '"\\udc00\\ud800"', '"\\x"', '"\\u12g4"', '"\t"', '"a', 'nul', '[1] 2',
    '{"a":1,"\\u0061":2}', '\ufeff{}', '\u00a0[]', '"\\']) {
    assert.throws(() => read(text), {code: 'UCP-E-JSON'}, text);
  }
  for (const bytes of [[0x22, 0xff, 0x22], [0x22, 0xed, 0xa0, 0x80, 0x22], [0x22, 0xc0, 0x80, 0x22]]) {
    assert.throws(() => parse(Buffer.from(bytes), 'x'), {code: 'UCP-E-JSON'});
  }
  assert.throws(() => read('['.repeat(65)), {code: 'UCP-E-LIMIT'});
});

test('canonical text sorts by UTF-16 code units, names by UTF-8', () => {
  assert.equal(canonicalText(read('{"\\uff00":1,"\\ud83d\\ude00":2,"a":1e0}')), '{"a":1,"\ud83d\ude00":2,"\uff00":1}');
  assert.ok(compareUtf8('\uff00', '\u{1f600}') < 0);
  const words = ['', 'a', 'ab', 'b', 'é', '\ud7ff', '\ue000', '\uffff', '\u{10000}', '\u{10ffff}'];
  for (const a of words) {
    for (const b of words) {
      assert.equal(Math.sign(compareUtf8(a, b)), Buffer.compare(Buffer.from(a), Buffer.from(b)));
    }
  }
});

test('keys and names', () => {
  for (const key of ['a', 'a/b.c', `${'x'.repeat(200)}`, '_a', 'a__']) assert.ok(isKey(key), key);
  for (const key of ['', '/a', 'a/', 'a//b', '.', '..', 'a/../b', '.a', '__a', 'a.', 'é', 'a\n', 'x'.repeat(201), 'a\\b']) {
    assert.ok(!isKey(key), key);
  }
  for (const name of ['', 'a\u0000', 'a\u007f', 'a\u0085', 'é'.repeat(513)]) assert.ok(!isName(name));
  assert.ok(isName('é'.repeat(512)));
});

test('CRC-32C', () => {
  assert.equal(crc32c(Buffer.from('123456789')), 0xe3069283);
  assert.equal(crc32c(Buffer.alloc(32)), 0x8a9136aa); // RFC 3720, B.4
  assert.equal(crc32c(Buffer.alloc(32, 0xff)), 0x62a8ab43);
  const bytes = Buffer.from(Array.from({length: 100}, (_, i) => i));
  for (let cut = 0; cut <= 100; cut += 1) {
    assert.equal(crc32c(bytes.subarray(cut), crc32c(bytes.subarray(0, cut))), crc32c(bytes));
  }
});

test('content digests do not depend on how bytes come', () => {
  const length = 2 ** 21 + 1000;
  const [whole, pieces] = [new ContentDigest(), new ContentDigest()];
  whole.update(Buffer.alloc(length));
  pieces.update(Buffer.alloc(700));
  pieces.updateZeros(length - 700);
  assert.equal(whole.finish(), pieces.finish());
  assert.equal(new ContentDigest().finish(),
    'crc32c-tree:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855');
});
