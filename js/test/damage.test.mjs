import assert from 'node:assert/strict';
import {execFileSync} from 'node:child_process';
import {
  cpSync, mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, truncateSync, writeFileSync,
} from 'node:fs';
import {join} from 'node:path';
import {test} from 'node:test';
import {open, read, validate} from '../node/index.mjs';
import {
  codesOf, craft, filesOf, Random, temporary, writeSmall,
} from './helpers.mjs';

// `make test` flips a bit in one byte of seven, `make test-nightly` in each.
const STRIDE = process.env.UCP_SEARCH === 'long' ? 1 : 7;

for (const storage of ['plain', 'packed']) {
  test(`every flipped bit is found, ${storage}`, (t) => {
    const path = join(temporary(t), 'x');
    writeSmall(path, storage);
    const random = new Random(9);
    for (const key of filesOf(path)) {
      const file = join(path, key);
      const bytes = readFileSync(file);
      for (let at = random.integer(0, STRIDE - 1); at < bytes.length; at += STRIDE) {
        const damaged = Buffer.from(bytes);
        damaged[at] ^= 1 << random.integer(0, 7);
        writeFileSync(file, damaged);
        const errors = validate(path).filter(({code}) => code.startsWith('UCP-E'));
        assert.ok(errors.length > 0, `${key}, byte ${at}`);
      }
      writeFileSync(file, bytes);
    }
    assert.deepEqual(validate(path), []);
  });

  test(`missing, shortened and longer objects are found, ${storage}`, (t) => {
    const path = join(temporary(t), 'x');
    writeSmall(path, storage);
    for (const key of filesOf(path)) {
      const file = join(path, key);
      const bytes = readFileSync(file);
      for (const change of [() => rmSync(file), () => truncateSync(file, bytes.length - 1),
        () => writeFileSync(file, Buffer.concat([bytes, Buffer.alloc(1)]))]) {
        change();
        assert.ok(validate(path).length > 0, `${key} ${change}`);
        writeFileSync(file, bytes);
      }
    }
  });

  test(`links and special files are refused, ${storage}`, (t) => {
    const directory = temporary(t);
    const path = join(directory, 'x');
    writeSmall(path, storage);
    for (const key of [...filesOf(path), 'index']) {
      const file = join(path, key);
      renameSync(file, join(directory, 'moved'));
      symlinkSync(join(directory, 'moved'), file);
      assert.ok(codesOf(validate(path)).includes('UCP-E-LINK'), key);
      rmSync(file);
      if (key !== 'index') {
        execFileSync('mkfifo', [file]);
        assert.ok(codesOf(validate(path)).includes('UCP-E-LINK'), key);
        rmSync(file);
      }
      renameSync(join(directory, 'moved'), file);
    }
  });
}

test('a reader finds flipped bits in what it reads', (t) => {
  const path = join(temporary(t), 'x');
  writeSmall(path, 'packed');
  const [key] = filesOf(path).filter((file) => file.endsWith('.pack'));
  const bytes = readFileSync(join(path, key));
  bytes[bytes.length - 1] ^= 1;
  writeFileSync(join(path, key), bytes);
  const checkpoint = open(path);
  assert.throws(() => checkpoint.atoms.forEach((atom) => (
    atom.slots.forEach((slot) => read(checkpoint, atom.name, slot.name)))),
  {code: 'UCP-E-CHECKSUM', at: key});
  checkpoint.close();
});

/** Changes to a checkpoint that keep its digests in order, and the codes that validation gives. */
const crafted = {
  'an unsafe key': ['UCP-E-KEY', (root) => root.get('state').set('key', 'index/../../etc/passwd')],
  'a key in another room': ['UCP-E-KEY', (root) => root.get('state').set('key', 'blobs/x')],
  'an unknown member': ['UCP-E-SCHEMA', (root) => root.set('surprise', 1)],
  'another version': ['UCP-E-VERSION', (root) => root.set('format_version', 1)],
  'an unknown read feature': ['UCP-E-FEATURE', (root) => root.set('read_features', ['zzz'])],
  'a needless write feature': ['UCP-E-FEATURE-SET', (root) => root.set('write_features', ['zzz'])],
  'unsorted features': ['UCP-E-FEATURE-SET', (root) => root.set('write_features', ['b', 'a'])],
  'no envelope': ['UCP-E-FORMAT', (root) => root.delete('annotations')],
  'an unknown extension': ['UCP-E-EXTENSION', (root) => root.get('extensions').set('x', new Map())],
  'a layout without mesh': ['UCP-E-REFERENCE', (root) => root.get('layouts')[0].set('mesh', 9)],
  'a layout that does not fit': ['UCP-E-LAYOUT', (root) => root.get('layouts')[0].get('steps')[0].set('rule', 'even')],
  'a huge mesh': ['UCP-E-LIMIT', (root) => root.get('meshes')[0].get('axes')[0].set('size', 2 ** 40)],
  'a name twice': ['UCP-E-NAME', (root, {document}) => document(root.get('parts')[0].get('index'),
    (part) => part.get('atoms')[0].set('aliases', ['b']))],
  'another count of atoms': ['UCP-E-NAME', (root) => root.get('parts')[0].set('atoms', 3)],
  'an unknown data type': ['UCP-E-DTYPE', (root, {document}) => document(root.get('parts')[0].get('index'),
    (part) => part.get('atoms')[0].get('slots').get('exp').set('dtype', 'float128'))],
  'an impossible shape': ['UCP-E-SHAPE', (root, {document}) => document(root.get('parts')[0].get('index'),
    (part) => part.get('atoms')[0].get('slots').get('exp').set('shape', [2 ** 52, 4]))],
  'a shape that the table denies': ['UCP-E-TABLE', (root, {document}) => document(root.get('parts')[0].get('index'),
    (part) => part.get('atoms')[0].get('slots').get('exp').set('shape', [2 ** 52]))],
  'another content digest': ['UCP-E-CONTENT', (root, {document}) => document(root.get('parts')[0].get('index'),
    (part) => part.get('atoms')[0].get('slots').get('exp').set('content', `crc32c-tree:${'0'.repeat(64)}`))],
  'an atom that is not there': ['UCP-E-REFERENCE', (root, {document}) => document(root.get('state'),
    (state) => state.get('optimizers').get('adam').get('groups')[0].set('atoms', ['z']))],
  'a value out of form': ['UCP-E-VALUE', (root, {document}) => document(root.get('state'),
    (state) => state.get('values').set('x', new Map([['$what', 1]])))],
  'a value that is not canonical': ['UCP-E-VALUE', (root, {document}) => document(root.get('state'),
    (state) => state.get('values').set('x', new Map([['$float', '9007199254740993.0']])))],
  'a value that nests too deep': ['UCP-E-LIMIT', (root, {document}) => document(root.get('state'),
    (state) => state.get('values').set('x', Array.from({length: 56}).reduce((inner) => [inner], [])))],
  'slots that differ in case alone': ['UCP-E-KEY', (root, {document}) => document(root.get('parts')[0].get('index'),
    (part) => {
      const slots = part.get('atoms')[0].get('slots');
      slots.set('EXP', slots.get('exp'));
    })],
  'a long document': ['UCP-E-LIMIT', (root) => root.get('state').set('length', 2 ** 28 + 1)],
  'a long table': ['UCP-E-LIMIT', (root) => root.get('parts')[0].get('table').set('length', 2 ** 30 + 1)],
  'a step on no axis': ['UCP-E-LAYOUT', (root) => root.get('layouts')[0].get('steps')[0].set('axis', 'x')],
  'a table of another version': ['UCP-E-TABLE', (root, {bytesOf}) => bytesOf(root.get('parts')[0].get('table'),
    (bytes) => { bytes[8] = 1; })],
  'a table with absurd counts': ['UCP-E-TABLE', (root, {bytesOf}) => bytesOf(root.get('parts')[0].get('table'),
    (bytes) => { bytes.fill(0xff, 16, 48); })],
  'a segment behind its pack': ['UCP-E-SEGMENT', (root, {bytesOf}) => bytesOf(root.get('parts')[0].get('table'),
    (bytes) => { bytes[64 + 13] = 0xff; })],
  'a segment out of line': ['UCP-E-SEGMENT', (root, {bytesOf}) => bytesOf(root.get('parts')[0].get('table'),
    (bytes) => { bytes[64 + 8] = 1; })],
  'an unknown pack': ['UCP-E-TABLE', (root, {bytesOf}) => bytesOf(root.get('parts')[0].get('table'),
    (bytes) => { bytes[64] = 7; })],
};
test('crafted checkpoints are refused by their codes', async (t) => {
  const directory = temporary(t);
  const original = join(directory, 'original');
  writeSmall(original, 'packed');
  for (const [name, [code, change]] of Object.entries(crafted)) {
    await t.test(name, () => {
      const path = join(directory, name.replaceAll(' ', '-'));
      cpSync(original, path, {recursive: true});
      craft(path, change);
      assert.ok(codesOf(validate(path)).includes(code), JSON.stringify(validate(path)));
    });
  }
});

test('other crafted directories', (t) => {
  const directory = temporary(t);
  const root = (text) => {
    const path = join(directory, `${Math.floor(text.length)}-${text.charCodeAt(1)}`);
    mkdirSync(path);
    writeFileSync(join(path, 'ucp.json'), text);
    return codesOf(validate(path));
  };
  assert.deepEqual(codesOf(validate(join(directory, 'nothing'))), ['UCP-E-NOT-FOUND']);
  assert.deepEqual(root('{"a":1,"a":2}'), ['UCP-E-JSON']);
  assert.deepEqual(root('['.repeat(100)), ['UCP-E-LIMIT']);
  assert.deepEqual(root(' '.repeat(2 ** 22 + 1)), ['UCP-E-LIMIT']);
  assert.deepEqual(root('[1]'), ['UCP-E-FORMAT']);
});

test('the object of a chunk with a zero entry is reported', (t) => {
  const path = join(temporary(t), 'x');
  writeSmall(path, 'plain');
  const zero = join(path, 'atoms', filesOf(path, '').find((key) => /^atoms\/--c.*\/value\/zarr.json$/.test(key))
    .split('/')[1], 'value', 'c');
  mkdirSync(zero);
  writeFileSync(join(zero, '1'), 'x');
  assert.deepEqual(codesOf(validate(path)), ['UCP-E-LENGTH']);
});

test('the end of a chunk object is checked against the bytes before it', (t) => {
  const path = join(temporary(t), 'x');
  writeSmall(path, 'plain');
  const key = filesOf(path).find((file) => /^atoms\/a\/value\/c\//.test(file));
  const file = join(path, key);
  const bytes = readFileSync(file);
  bytes[bytes.length - 2] ^= 1;
  writeFileSync(file, bytes);
  assert.deepEqual(validate(path).map(({code, at}) => [code, at]), [['UCP-E-CODEC', key]]);
  const checkpoint = open(path);
  read(checkpoint, 'a', 'value'); // binds validators (UCP-D-097)
  checkpoint.close();
});

test('what a level looks at', (t) => {
  const directory = temporary(t);
  const original = join(directory, 'original');
  writeSmall(original, 'packed');
  const found = (name, change) => {
    const path = join(directory, name);
    cpSync(original, path, {recursive: true});
    change(path, (prefix) => join(path, filesOf(path).find((key) => key.startsWith(prefix))));
    return ['structure', 'semantics', 'integrity'].map((level) => codesOf(validate(path, level)).join());
  };
  assert.deepEqual(found('pack', (_, file) => rmSync(file('packs/'))), ['', '', 'UCP-E-MISSING']);
  assert.deepEqual(found('blob', (_, file) => rmSync(file('blobs/'))), ['', '', 'UCP-E-MISSING']);
  assert.deepEqual(found('debris', (path) => writeFileSync(join(path, 'x'), '')),
    ['', 'UCP-W-UNREFERENCED', 'UCP-W-UNREFERENCED']);
  assert.deepEqual(found('feature', (path) => craft(path, (root) => root.set('read_features', ['zzz']))),
    ['', 'UCP-E-FEATURE', 'UCP-E-FEATURE']);
  assert.deepEqual(found('value', (path) => craft(path, (root, {document}) => document(root.get('state'),
    (state) => state.get('values').set('x', new Map([['$what', 1]]))))),
  ['UCP-E-VALUE', 'UCP-E-VALUE', 'UCP-E-VALUE']);
  assert.deepEqual(found('schema', (path) => craft(path, (root) => root.set('surprise', 1))),
    ['UCP-E-SCHEMA', 'UCP-E-SCHEMA', 'UCP-E-SCHEMA']);
});

test('the order of slots in a document means nothing', (t) => {
  const path = join(temporary(t), 'x');
  writeSmall(path, 'packed');
  craft(path, (root, {document}) => document(root.get('parts')[0].get('index'), (part) => {
    const [atom] = part.get('atoms');
    atom.set('slots', new Map([...atom.get('slots')].reverse()));
  }));
  assert.deepEqual(validate(path), []);
});
