/** Update logs: random ones are replayed as arithmetic says, whatever their batches; damage is found. */

import assert from 'node:assert/strict';
import {mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync} from 'node:fs';
import {dirname, join} from 'node:path';
import {test} from 'node:test';
import {product} from '../lib/boxes.mjs';
import {crc32c} from '../lib/crc32c.mjs';
import {DRAFT_DIGEST, sealRoot, sha256} from '../lib/digest.mjs';
import {boxSum, sumText} from '../lib/log-replay.mjs';
import * as core from '../lib/index.mjs';
import {UpdateLog} from '../lib/update-log.mjs';
import {DirectoryStore} from '../node/store.mjs';
import {parse, stringify} from '../lib/json.mjs';
import {
  isLog, open, openLog, replay, validateLog, write,
} from '../node/index.mjs';
import {Random, codesOf, slotOf, temporary} from './helpers.mjs';

const ID = '8f14e45fceea167a5a36dedd4bea2543';
const ENVELOPE = {
  format: 'ucp', format_version: 0, read_features: [], write_features: [], extensions: {}, annotations: {},
};
const SHAPE = [5, 3];
const RANKS = 2;

const floats = (numbers) => Buffer.from(new Uint8Array(Float32Array.from(numbers).buffer));

/** Splits the rows of the tensor between the ranks. */
const piecesOf = (cut) => [
  {tensor: 0, rank: 0, offset: [0, 0], shape: [cut, SHAPE[1]]},
  {tensor: 0, rank: 1, offset: [cut, 0], shape: [SHAPE[0] - cut, SHAPE[1]]},
];

const put = (path, key, bytes) => {
  mkdirSync(dirname(join(path, key)), {recursive: true});
  writeFileSync(join(path, key), bytes);
};

/** An entry of a part of a gradient, in one of the forms; and the elements that it has. */
function entryOf(piece, form, gradient, touched) {
  const rows = [...Array(piece.shape[0]).keys()];
  const elements = rows.flatMap((row) => gradient.slice((piece.offset[0] + row) * 3, (piece.offset[0] + row + 1) * 3));
  if (form === 'dense') return {entry: {form}, bytes: floats(elements)};
  if (form === 'rows') {
    const some = rows.filter((row) => touched.has(piece.offset[0] + row));
    const head = Buffer.alloc(4 * some.length);
    some.forEach((row, i) => head.writeUInt32LE(row, 4 * i));
    const values = floats(some.flatMap((row) => elements.slice(3 * row, 3 * row + 3)));
    return {entry: {form, count: some.length}, bytes: Buffer.concat([head, values])};
  }
  const places = elements.flatMap((element, i) => (element === 0 ? [] : [i]));
  const head = Buffer.alloc(4 + 2 * places.length);
  head.writeUInt32LE(places.length, 0);
  places.forEach((place, i) => head.writeUInt16LE(place, 4 + 2 * i));
  return {entry: {form, count: places.length}, bytes: Buffer.concat([head, floats(places.map((i) => elements[i]))])};
}

/** A random step, and what it makes of the values. */
function randomStep(random, values) {
  const kind = random.pick(['skipped', 'absent', 'rows', 'dense', 'sparse']);
  const rate = random.integer(-50, 50) / 37;
  const gradient = Array.from(Float32Array.from({length: product(SHAPE)},
    () => (random.integer(0, 2) ? (random.next() - 0.5) * 10 : 0)));
  const touched = new Set([...Array(SHAPE[0]).keys()].filter(() => random.integer(0, 1)));
  if (kind !== 'skipped' && kind !== 'absent') {
    for (let i = 0; i < values.length; i += 1) {
      const isThere = kind !== 'rows' || touched.has(Math.floor(i / 3));
      if (isThere) values[i] = Math.fround(values[i] - Math.fround(Math.fround(rate) * gradient[i]));
    }
  }
  return {kind, rate, gradient, touched};
}

function batchOf(epoch, rank, first, steps, previous, sums) {
  const payload = [];
  const records = steps.map(({kind, rate, gradient, touched}) => {
    const lr = Number.isInteger(rate) ? {$float: Object.is(rate, -0) ? '-0.0' : `${rate}.0`} : rate;
    const entries = [];
    let bytes = Buffer.alloc(0);
    if (kind !== 'skipped' && kind !== 'absent') {
      const found = entryOf(epoch.pieces[rank], kind, gradient, touched);
      entries.push({piece: rank, ...found.entry});
      bytes = found.bytes;
    }
    payload.push(bytes);
    return {
      options: [{lr}], ...(kind === 'skipped' && {skipped: true}), length: bytes.length, checksum: crc32c(bytes), entries,
    };
  });
  const header = Buffer.from(JSON.stringify({
    log: ID, epoch: epoch.epoch, rank, first_step: first, previous, steps: records, values: {}, ...(sums && {sums}),
  }));
  const digest = sha256(header);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const head = [Buffer.from('UCPBATCH'), length, Buffer.from(digest.slice(7), 'hex')];
  return {bytes: Buffer.concat([...head, header, ...payload]), digest};
}

/** A checkpoint with the position of a state in the log. */
function checkpointOf(path, values) {
  write({
    path, storage: 'packed', chunkBytes: 64, step: 0,
    atoms: [{name: 'w', aliases: [], slots: new Map([['value', slotOf('float32', SHAPE, floats(values))]])}],
    values: new Map(), optimizers: new Map(), blobs: new Map(),
  });
  const root = parse(readFileSync(join(path, 'ucp.json')), 'ucp.json');
  root.get('progress').set('log', new Map([['id', ID], ['epoch', 0]]));
  const rest = [...root].filter(([name]) => name !== 'digest');
  const bytes = Buffer.from(stringify(new Map([['digest', DRAFT_DIGEST], ...rest])));
  sealRoot(bytes);
  writeFileSync(join(path, 'ucp.json'), bytes);
}

/** A random log of two epochs in a directory; the values behind its last step. */
function randomRun(random, path) {
  const log = join(path, 'updates.ucplog');
  const values = Array.from(Float32Array.from({length: product(SHAPE)}, () => random.next() - 0.5));
  checkpointOf(join(path, 'step-0.ucp'), values);
  put(log, 'log.json', JSON.stringify({...ENVELOPE, kind: 'update-log', id: ID}));
  const cuts = [0, random.integer(1, 5)];
  const stop = cuts[1] + random.integer(0, 5);
  let after = null;
  for (const number of [0, 1]) {
    const epoch = {
      ...ENVELOPE, kind: 'update-log-epoch', log: ID, epoch: number, start: String(number).repeat(32),
      first_step: cuts[number], after, ranks: RANKS,
      tensors: [{atom: 'w', role: 'gradient', dtype: 'float32', shape: SHAPE}],
      pieces: piecesOf(random.integer(1, 4)), groups: [[0]],
      optimizer: {type: 'ucp.sgd', profile: {}}, exactness: 'bitwise',
    };
    const document = Buffer.from(JSON.stringify(epoch));
    put(log, `epochs/${number}.json`, document);
    after = {epoch: number, digest: sha256(document)};
    const end = number === 0 ? cuts[1] : stop;
    const steps = Array.from({length: end - cuts[number]}, () => randomStep(random, values));
    for (let rank = 0; rank < RANKS; rank += 1) {
      let previous = after.digest;
      for (let first = cuts[number]; first < end;) {
        const size = random.integer(1, end - first);
        const from = first - cuts[number];
        const piece = epoch.pieces[rank];
        const own = floats(values.slice(piece.offset[0] * 3, (piece.offset[0] + piece.shape[0]) * 3));
        const sums = first + size === stop
          && [{tensor: 0, slot: 'value', sum: sumText(boxSum(own, piece, SHAPE, 'float32'))}];
        const {bytes, digest} = batchOf(epoch, rank, first, steps.slice(from, from + size), previous, sums);
        put(log, `batches/${number}/${rank}/${first}.batch`, bytes);
        previous = digest;
        first += size;
      }
    }
  }
  return {log, values, stop};
}

/** Replays a run from its checkpoint. */
function recover(path, options) {
  const log = openLog(join(path, 'updates.ucplog'));
  const checkpoint = open(join(path, 'step-0.ucp'));
  try {
    return replay(log, checkpoint, options);
  } finally {
    checkpoint.close();
    log.close();
  }
}

const batchesOf = (log) => readdirSync(join(log, 'batches'), {recursive: true})
  .filter((name) => name.endsWith('.batch')).map((name) => join('batches', name)).sort();

test('random logs are replayed to the bit', (t) => {
  for (let seed = 0; seed < 60; seed += 1) {
    const path = join(temporary(t), 'run');
    const {log, values, stop} = randomRun(new Random(seed), path);
    assert.deepEqual(validateLog(log), [], `seed ${seed}`);
    const found = recover(path);
    assert.deepEqual([found.step, found.exactness], [stop, 'bitwise'], `seed ${seed}`);
    assert.deepEqual(Buffer.from(found.values.get('w')), floats(values), `seed ${seed}`);
  }
});

test('every changed bit of a batch is found, and nothing wrong is replayed', (t) => {
  for (let seed = 0; seed < 60; seed += 1) {
    const random = new Random(1000 + seed);
    const path = join(temporary(t), 'run');
    const {log, stop} = randomRun(random, path);
    const file = join(log, random.pick(batchesOf(log)));
    const bytes = readFileSync(file);
    const bit = random.integer(0, 8 * bytes.length - 1);
    bytes[bit >> 3] ^= 1 << (bit & 7);
    writeFileSync(file, bytes);
    assert.equal(validateLog(log).length, 1, `seed ${seed}`);
    try {
      assert.ok(recover(path).step < stop, `seed ${seed}`);
    } catch (error) {
      assert.equal(error.code, 'UCP-E-LOG', `seed ${seed}: ${error.stack}`);
    }
  }
});

test('a torn end is cut, and a gap refused but for a user who says so', (t) => {
  for (let seed = 0; seed < 60; seed += 1) {
    const random = new Random(2000 + seed);
    const path = join(temporary(t), 'run');
    const {log, stop} = randomRun(random, path);
    const names = batchesOf(log);
    const chosen = random.pick(names);
    const first = Number(/(\d+)\.batch$/.exec(chosen)[1]);
    const [, epoch, rank] = chosen.split('/').map(Number);
    const isLast = !names.some((name) => name.startsWith(`batches/${epoch}/${rank}/`)
      && Number(/(\d+)\.batch$/.exec(name)[1]) > first);
    const file = join(log, chosen);
    const bytes = readFileSync(file);
    writeFileSync(file, bytes.subarray(0, random.integer(0, bytes.length - 1)));
    const isEnd = isLast && epoch === 1;
    assert.deepEqual(codesOf(validateLog(log)), [isLast ? 'UCP-W-UNREFERENCED' : 'UCP-E-LOG'], `seed ${seed}`);
    if (isEnd) assert.ok(recover(path).step <= first, `seed ${seed}`);
    else assert.throws(() => recover(path), {code: 'UCP-E-LOG'}, `seed ${seed}`);
    const lossy = recover(path, {allowLoss: true});
    assert.ok(lossy.step <= first && lossy.step < stop, `seed ${seed}`);
  }
});

test('where a log lies', (t) => {
  const path = join(temporary(t), 'run');
  const {log} = randomRun(new Random(7), path);
  assert.equal(isLog(log), true);
  assert.equal(isLog(path), false);
  rmSync(join(log, 'log.json'));
  assert.deepEqual(codesOf(validateLog(log)), ['UCP-E-MISSING']);
  assert.throws(() => openLog(log), {code: 'UCP-E-MISSING', at: 'log.json'});
  assert.throws(() => openLog(path), {code: 'UCP-E-NOT-FOUND'});
});

test('sums of pieces add up to that of the tensor', () => {
  for (let seed = 0; seed < 100; seed += 1) {
    const random = new Random(seed);
    const dtype = random.pick(['uint8', 'float16', 'float32', 'float64', 'complex128']);
    const size = {uint8: 1, float16: 2, float32: 4, float64: 8, complex128: 16}[dtype];
    const bytes = random.bytes(15 * size);
    const cut = random.integer(1, 4);
    const [one, other] = piecesOf(cut);
    const parts = boxSum(bytes.subarray(0, cut * 3 * size), one, SHAPE, dtype)
      + boxSum(bytes.subarray(cut * 3 * size), other, SHAPE, dtype);
    const whole = boxSum(bytes, {offset: [0, 0], shape: SHAPE}, SHAPE, dtype);
    assert.equal(BigInt.asUintN(64, parts), whole, `seed ${seed}`);
    bytes[random.integer(0, bytes.length - 1)] ^= 1 << random.integer(0, 7);
    assert.notEqual(boxSum(bytes, {offset: [0, 0], shape: SHAPE}, SHAPE, dtype), whole, `seed ${seed}`);
  }
});

test('a log of which nothing is listed, as on a web server, is refused and not called empty', (t) => {
  const path = temporary(t);
  put(path, 'log.json', Buffer.from(stringify({...ENVELOPE, kind: 'update-log', id: ID})));
  const store = () => {
    const directory = new DirectoryStore(path);
    return Object.assign(Object.create(directory), {
      list: () => [], read: directory.read.bind(directory), lengthOf: directory.lengthOf.bind(directory), close: directory.close.bind(directory),
    });
  };
  assert.throws(() => new UpdateLog(store()), {code: 'UCP-E-STORE'});
  assert.deepEqual(core.validateLog(store()).map(({code}) => code), ['UCP-E-STORE']);
});
