import assert from 'node:assert/strict';
import {join} from 'node:path';
import {existsSync, readdirSync, rmSync, writeFileSync} from 'node:fs';
import {test} from 'node:test';
import {DTYPES} from '../lib/dtypes.mjs';
import {copyBox, product, stridesOf} from '../lib/boxes.mjs';
import {
  localsSource, lower, open, read, readLocals, rewrite, validate, write,
} from '../node/index.mjs';
import {
  craft, GZIP, Random, randomLayout, slotOf, temporary, writeSmall,
} from './helpers.mjs';
import {crc32c} from '../lib/crc32c.mjs';
import {fromPlain} from '../lib/json.mjs';
import {viewed} from '../lib/views.mjs';

/** The local tensors of a whole tensor, and back: by pieces, with plain copies. */
function split(layout, shape, size, bytes) {
  const strides = stridesOf(viewed(shape, layout.steps, '').view);
  return lower(layout.mesh, layout.steps, shape, layout.place).filter((local) => local.shape !== null)
    .map(({coordinate, shape: localShape, pieces}) => {
      const local = Buffer.alloc(product(localShape) * size);
      for (const piece of pieces) {
        const start = piece.offset.reduce((sum, o, i) => sum + o * strides[i], 0);
        copyBox({bytes: local, start: piece.local, strides: piece.strides}, {bytes, start, strides},
          piece.shape, size);
      }
      return {coordinate, bytes: local};
    });
}

const ROUNDS = process.env.UCP_SEARCH === 'long' ? 200 : 20;

test('whole tensors, boxes and locals come back from both storages', (t) => {
  const directory = temporary(t);
  const random = new Random(11);
  for (let n = 0; n < ROUNDS; n += 1) {
    const dtype = random.pick([...DTYPES.keys()]);
    const {size, maxByte} = DTYPES.get(dtype);
    const shape = Array.from({length: random.integer(0, 3)}, () => random.integer(0, 9));
    const bytes = random.bytes(product(shape) * size, maxByte);
    if (random.integer(0, 3) === 0) bytes.fill(0, 0, bytes.length >> 1);
    const compressor = random.pick([null, GZIP]);
    const layout = randomLayout(random, shape);
    const locals = split(layout, shape, size, bytes);
    const slots = new Map([
      ['whole', slotOf(dtype, shape, bytes, {compressor})],
      ['spread', {dtype, shape, layout, compressor, open: () => localsSource(layout, shape, DTYPES.get(dtype), locals)}],
    ]);
    const path = join(directory, `${n}`);
    const storage = random.pick(['plain', 'packed']);
    write({path, storage, chunkBytes: random.integer(16, 200), atoms: [{name: 'w', slots}]});
    const again = join(directory, `${n}-again`);
    rewrite(path, again, storage === 'plain' ? 'packed' : 'plain');
    for (const where of [path, again]) {
      assert.deepEqual(validate(where), []);
      const checkpoint = open(where);
      for (const slot of ['whole', 'spread']) {
        assert.deepEqual(Buffer.from(read(checkpoint, 'w', slot).bytes), bytes);
        const offset = shape.map((extent) => random.integer(0, extent));
        const box = {offset, shape: shape.map((extent, i) => random.integer(0, extent - offset[i]))};
        const expected = Buffer.alloc(product(box.shape) * size);
        copyBox({bytes: expected, start: 0, strides: stridesOf(box.shape)},
          {bytes, start: offset.reduce((sum, o, i) => sum + o * stridesOf(shape)[i], 0), strides: stridesOf(shape)},
          box.shape, size);
        assert.deepEqual(Buffer.from(read(checkpoint, 'w', slot, box).bytes), expected);
        const coordinates = locals.map(({coordinate}) => coordinate);
        const got = [...readLocals(checkpoint, 'w', slot, layout, coordinates)];
        assert.deepEqual(got.map((local) => local.bytes && Buffer.from(local.bytes)), locals.map((local) => local.bytes));
      }
      const stored = checkpoint.slot('w', 'spread').slot;
      const {place, ...spread} = layout;
      assert.deepEqual([checkpoint.layoutOf(stored), stored.place], [spread, place ?? null]);
      checkpoint.close();
    }
  }
});

test('a rewriter keeps names, aliases, state and blobs', (t) => {
  const directory = temporary(t);
  writeSmall(join(directory, 'a'), 'packed');
  rewrite(join(directory, 'a'), join(directory, 'b'), 'plain');
  rewrite(join(directory, 'b'), join(directory, 'c'), 'packed');
  const [a, c] = ['a', 'c'].map((name) => open(join(directory, name)));
  const describe = (checkpoint) => checkpoint.atoms.map(({name, key, aliases, slots}) => (
    {name, key, aliases, slots: slots.map((s) => [s.name, s.dtype.name, s.shape, s.content])}));
  assert.deepEqual(describe(a), describe(c));
  assert.deepEqual(a.state.get('values'), c.state.get('values'));
  assert.deepEqual(a.state.get('optimizers'), c.state.get('optimizers'));
  assert.deepEqual(a.readBlob('x'), c.readBlob('x'));
  assert.equal(read(c, 'z', 'value').bytes.length, 140);
  assert.deepEqual(a.atoms.map(({name}) => name), ['a', 'b', 'é/c']);
});

test('a rewriter refuses bytes that have another content digest than recorded', (t) => {
  const directory = temporary(t);
  const path = join(directory, 'a');
  writeSmall(path, 'packed');
  craft(path, (root, {document}) => document(root.get('parts')[0].get('index'), (index) => (
    index.get('atoms')[0].get('slots').get('value').set('content', `crc32c-tree:${'0'.repeat(64)}`))));
  assert.throws(() => rewrite(path, join(directory, 'b'), 'packed'), {code: 'UCP-E-CONTENT'});
});

test('a chunk that several writers stored in boxes is read', (t) => {
  const path = join(temporary(t), 'x');
  const random = new Random(5);
  const bytes = random.bytes(24);
  bytes[0] = 1;
  write({path, storage: 'packed', chunkBytes: 64, atoms: [{name: 'w', slots: new Map([['v', slotOf('uint8', [4, 6], bytes)]])}]});
  // Two boxes, [4, 2] and [4, 4], in one pack: rewritten by hand.
  const parts = [[0, 2], [2, 4]].map(([start, width]) => Buffer.concat(
    [0, 1, 2, 3].map((row) => bytes.subarray(row * 6 + start, row * 6 + start + width))));
  const pack = Buffer.alloc(64 + 16);
  pack.set(parts[0], 0);
  pack.set(parts[1], 64);
  const table = Buffer.alloc(64 + 2 * 32 + 8 * 8 + 4 + 2 * 4);
  const wide = (at, ...values) => values.forEach((v, i) => table.writeBigUInt64LE(BigInt(v), at + 8 * i));
  table.write('UCPTABLE', 'latin1');
  table.writeUInt32LE(1 << 20, 12);
  wide(16, 1, 2, 8, 2);
  wide(64, 0, 0, 8, 1, 0, 64, 16, 5);
  wide(128, 0, 0, 4, 2, 0, 2, 4, 4);
  table.writeUInt32LE(2, 192);
  parts.forEach((part, i) => table.writeUInt32LE(crc32c(part), 196 + 4 * i));
  craft(path, (root, {document, bytesOf}) => {
    document(root.get('packs'), (list) => {
      const [entry] = list.get('packs');
      entry.set('length', pack.length);
      writeFileSync(join(path, entry.get('key')), pack);
    });
    bytesOf(root.get('parts')[0].get('table'), () => table);
  });
  assert.deepEqual(validate(path), []);
  const checkpoint = open(path);
  assert.deepEqual(Buffer.from(read(checkpoint, 'w', 'v').bytes), bytes);
  assert.deepEqual(Buffer.from(read(checkpoint, 'w', 'v', {offset: [1, 1], shape: [2, 3]}).bytes),
    Buffer.concat([bytes.subarray(7, 10), bytes.subarray(13, 16)]));
  checkpoint.close();
});

test('nothing is written over a root document, and drafts do not stay', (t) => {
  const path = join(temporary(t), 'x');
  writeSmall(path, 'packed');
  assert.ok(!readdirSync(path).some((name) => name.startsWith('ucp.json.')));
  assert.throws(() => writeSmall(path, 'packed'), {code: 'UCP-E-EXISTS'});
  assert.deepEqual(validate(path), []);
});

test('an attempt that failed leaves no root document, and debris is ignored', (t) => {
  const path = join(temporary(t), 'x');
  const slots = new Map([['v', {dtype: 'uint8', shape: [4], open: () => { throw new Error('died'); }}]]);
  assert.throws(() => write({path, storage: 'packed', chunkBytes: 16, atoms: [{name: 'w', slots}]}), /died/);
  assert.ok(!existsSync(join(path, 'ucp.json')));
  assert.throws(() => open(path), {code: 'UCP-E-NOT-FOUND'});
  rmSync(path, {recursive: true});
  writeSmall(path, 'packed');
  writeFileSync(join(path, 'packs', 'old.pack'), 'debris');
  assert.deepEqual(validate(path).map(({code, at}) => [code, at]), [['UCP-W-UNREFERENCED', 'packs/old.pack']]);
});

test('a writer refuses what readers would refuse', (t) => {
  const directory = temporary(t);
  let n = 0;
  const attempt = (more, slot = slotOf('uint8', [2], Buffer.from([1, 2])), name = 'w') => () => write({
    path: join(directory, `${n += 1}`), storage: 'plain', chunkBytes: 16,
    atoms: [{name, slots: new Map([['v', slot]])}], ...more,
  });
  assert.throws(attempt({chunkBytes: 15}), {code: 'UCP-E-LIMIT'});
  assert.throws(attempt({values: fromPlain({x: {$float: '1'}})}), {code: 'UCP-E-VALUE'});
  assert.throws(attempt({values: fromPlain({x: {$set: [2, 1]}})}), {code: 'UCP-E-VALUE'});
  assert.throws(attempt({}, slotOf('int4', [1], Buffer.from([16]))), {code: 'UCP-E-PADDING'});
  assert.throws(attempt({}, slotOf('int5', [1], Buffer.from([16]))), {code: 'UCP-E-DTYPE'});
  assert.throws(attempt({}, undefined, 'a\u0000'), {code: 'UCP-E-NAME'});
  attempt({}, undefined, 'ZARR.JSON')(); // gets another key
  attempt({}, undefined, '../../x')();
  assert.deepEqual(validate(join(directory, `${n}`)), []);
});

test('an attempt refuses a place where another began', (t) => {
  const path = join(temporary(t), 'x');
  const slots = new Map([['v', {dtype: 'uint8', shape: [4], open: () => { throw new Error('died'); }}]]);
  assert.throws(() => write({path, storage: 'plain', chunkBytes: 16, atoms: [{name: 'w', slots}]}), /died/);
  for (const storage of ['plain', 'packed']) {
    assert.throws(() => writeSmall(path, storage), {code: 'UCP-E-EXISTS'});
  }
});

test('chunks of more than a block are read in part, from both storages', (t) => {
  const directory = temporary(t);
  const bytes = new Random(3).bytes((1 << 20) + 5);
  for (const storage of ['plain', 'packed']) {
    const path = join(directory, storage);
    const slots = new Map([['v', slotOf('uint8', [bytes.length], bytes)]]);
    write({path, storage, chunkBytes: 1 << 22, atoms: [{name: 'w', slots}]});
    assert.deepEqual(validate(path), []);
    const checkpoint = open(path);
    const box = {offset: [(1 << 20) - 2], shape: [7]};
    assert.deepEqual(Buffer.from(read(checkpoint, 'w', 'v', box).bytes), bytes.subarray(-7));
    assert.deepEqual(Buffer.from(read(checkpoint, 'w', 'v').bytes), bytes);
    checkpoint.close();
  }
});
