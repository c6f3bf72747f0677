/** Writing update logs: what is written is replayed as arithmetic says, and nothing is written over or behind a fence. */

import assert from 'node:assert/strict';
import {
  existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync,
} from 'node:fs';
import {dirname, join} from 'node:path';
import {test} from 'node:test';
import {placesOf} from '../lib/log-batch.mjs';
import {
  beginEpoch, open, openLog, replay, validateLog, write,
} from '../node/index.mjs';
import {Random, slotOf, temporary} from './helpers.mjs';

const SHAPE = [5, 3];
const floats = (numbers) => Buffer.from(new Uint8Array(Float32Array.from(numbers).buffer));

/** An epoch of one tensor `w`, whose rows are split between two ranks. */
function epochOf(members = {}, shape = SHAPE, cut = 2) {
  const inner = shape.slice(1);
  const zeros = inner.map(() => 0);
  return {
    firstStep: 0,
    after: null,
    ranks: 2,
    tensors: [{atom: 'w', role: 'gradient', dtype: 'float32', shape}],
    pieces: [
      {tensor: 0, rank: 0, offset: [0, ...zeros], shape: [cut, ...inner]},
      {tensor: 0, rank: 1, offset: [cut, ...zeros], shape: [shape[0] - cut, ...inner]},
    ],
    groups: [[0]],
    optimizer: {type: 'ucp.sgd', profile: {}},
    exactness: 'bitwise',
    ...members,
  };
}

function checkpointOf(path, log, values) {
  write({
    path, storage: 'packed', chunkBytes: 64, step: 0, log: new Map([['id', log], ['epoch', 0]]),
    atoms: [{name: 'w', aliases: [], slots: new Map([['value', slotOf('float32', SHAPE, floats(values))]])}],
    values: new Map(), optimizers: new Map(), blobs: new Map(),
  });
}

const objectsOf = (path) => readdirSync(path, {recursive: true, withFileTypes: true})
  .filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath ?? entry.path, entry.name).slice(path.length + 1)).sort();

/** A step of the job: what each rank gives of it, and what it makes of the values. */
function randomStep(random, values) {
  const kind = random.pick(['dense', 'zeros', 'places', 'rows', 'absent', 'skipped']);
  const rate = random.pick([0.5, 0.1, 3e-5]);
  const gradient = Array.from({length: 15}, () => (kind === 'zeros' ? 0 : Math.fround(random.next() - 0.5)));
  const rows = [0, 1, 2, 3, 4].filter(() => random.integer(0, 1));
  const there = Array.from({length: 15}, (_, i) => i).filter(() => random.integer(0, 1));
  if (kind === 'places') gradient.forEach((_, i) => { if (!there.includes(i)) gradient[i] = 0; });
  if (kind !== 'absent' && kind !== 'skipped') {
    gradient.forEach((g, i) => {
      if (kind !== 'rows' || rows.includes(Math.floor(i / 3))) values[i] = Math.fround(values[i] - Math.fround(Math.fround(rate) * g));
    });
  }
  const step = (low, high, piece) => {
    const found = {options: [{lr: rate}], skipped: kind === 'skipped', entries: []};
    const own = gradient.slice(3 * low, 3 * high);
    if (kind === 'dense' || kind === 'zeros') found.entries.push({piece, bytes: floats(own)});
    if (kind === 'places') {
      const places = there.filter((i) => i >= 3 * low && i < 3 * high).map((i) => i - 3 * low);
      found.entries.push({piece, places, bytes: floats(places.map((i) => own[i]))});
    }
    if (kind === 'rows') {
      const some = rows.filter((row) => row >= low && row < high).map((row) => row - low);
      found.entries.push({piece, rows: some, bytes: floats(some.flatMap((row) => own.slice(3 * row, 3 * row + 3)))});
    }
    return found;
  };
  return {values: [...values], step};
}

test('what is written is replayed to the bit, through several epochs', (t) => {
  for (let seed = 0; seed < 12; seed += 1) {
    const random = new Random(seed);
    const run = temporary(t);
    const path = join(run, 'updates.ucplog');
    const values = Array.from({length: 15}, () => Math.fround(random.next() - 0.5));
    const begin = [...values];
    let state = 0;
    for (let number = 0; number < 3; number += 1) {
      const cut = random.integer(1, 4);
      const writer = beginEpoch(path, epochOf({firstStep: state, after: number ? number - 1 : null}, SHAPE, cut));
      if (number === 0) checkpointOf(join(run, 'step-0.ucp'), writer.epoch.log, begin);
      const steps = Array.from({length: random.integer(1, 4)}, () => randomStep(random, values));
      for (const [rank, low, high] of [[0, 0, cut], [1, cut, 5]]) {
        for (let at = 0; at < steps.length;) {
          const size = random.integer(1, steps.length - at);
          const own = steps[at + size - 1].values.slice(3 * low, 3 * high);
          // Both ranks have sums of the last state alone.
          const sums = at + size === steps.length ? [{piece: rank, slot: 'value', bytes: floats(own)}] : [];
          const batch = {steps: steps.slice(at, at + size).map(({step}) => step(low, high, rank)), values: {rank}, sums};
          at += size;
          assert.equal(writer.write(rank, batch), state + at);
        }
      }
      state += steps.length;
    }
    assert.deepEqual(validateLog(path), [], `seed ${seed}`);
    const [log, checkpoint] = [openLog(path), open(join(run, 'step-0.ucp'))];
    const found = replay(log, checkpoint);
    assert.deepEqual([found.step, found.exactness], [state, 'bitwise'], `seed ${seed}`);
    assert.deepEqual(Buffer.from(found.values.get('w')), floats(values), `seed ${seed}`);
    assert.ok(objectsOf(path).every((key) => /^(log\.json|epochs\/|batches\/)/.test(key) && !key.includes('/.')));
    log.close();
    checkpoint.close();
  }
});

test('a gradient of mostly zeros is stored by its other elements, and comes back to the last bit', (t) => {
  const path = join(temporary(t), 'updates.ucplog');
  const gradient = new Float32Array(140_000);
  gradient[3] = -0;
  gradient[65_535] = NaN;
  gradient[65_536] = 1;
  gradient[139_999] = 1e-45;
  const bytes = Buffer.from(gradient.buffer);
  const writer = beginEpoch(path, epochOf({}, [140_001], 140_000));
  writer.write(0, {steps: [{options: [{lr: 0.5}], entries: [{piece: 0, bytes}]}]});
  const log = openLog(path);
  const [batch] = log.chain(log.epoch(0), 0, 0).batches;
  const [{entries: [entry], start, length}] = batch.steps;
  const {places, values} = placesOf(entry, log.store.read(batch.key, start, length), [140_000], batch.key);
  assert.equal(entry.form, 'sparse');
  assert.deepEqual(places, [3, 65_535, 65_536, 139_999]);
  assert.deepEqual(Buffer.from(values), Buffer.concat(places.map((place) => bytes.subarray(4 * place, 4 * place + 4))));
  log.close();
});

const STEP = {options: [{lr: 0.5}], entries: []};

test('a batch that is there stays, and its rank writes no more', (t) => {
  const path = join(temporary(t), 'updates.ucplog');
  const writer = beginEpoch(path, epochOf());
  const file = join(path, 'batches/0/0/0.batch');
  mkdirSync(dirname(file), {recursive: true});
  writeFileSync(file, 'of another process');
  for (let n = 0; n < 2; n += 1) assert.throws(() => writer.write(0, {steps: [STEP]}), {code: 'UCP-E-EXISTS'});
  assert.equal(readFileSync(file, 'utf8'), 'of another process');
  assert.equal(writer.write(1, {steps: [STEP]}), 1);
  assert.deepEqual(objectsOf(path), ['batches/0/0/0.batch', 'batches/0/1/0.batch', 'epochs/0.json', 'log.json']);
});

test('behind another epoch nothing is written, and one that was recovered before it does not begin', (t) => {
  const path = join(temporary(t), 'updates.ucplog');
  const [zombie, before] = [beginEpoch(path, epochOf()), readFileSync(join(path, 'log.json'))];
  assert.throws(() => beginEpoch(path, epochOf()), {code: 'UCP-E-EXISTS'});
  beginEpoch(path, epochOf({after: 0, number: 1}));
  assert.throws(() => zombie.write(0, {steps: [STEP]}), {code: 'UCP-E-FENCED'});
  assert.throws(() => beginEpoch(path, epochOf({after: 0, number: 1})), {code: 'UCP-E-FENCED'});
  assert.equal(beginEpoch(path, epochOf({after: 0})).epoch.epoch, 2);
  assert.deepEqual(readFileSync(join(path, 'log.json')), before);
  assert.deepEqual(objectsOf(path), ['epochs/0.json', 'epochs/1.json', 'epochs/2.json', 'log.json']);
});

test('what contradicts itself is refused, and nothing is written of it', (t) => {
  const path = join(temporary(t), 'updates.ucplog');
  const hole = epochOf();
  hole.pieces.pop();
  assert.throws(() => beginEpoch(path, hole), {code: 'UCP-E-LOG'});
  assert.equal(existsSync(path), false);
  beginEpoch(path, epochOf());
  const entry = {piece: 0, bytes: floats([1, 2, 3, 4, 5, 6])};
  const wrong = {
    'UCP-E-MISMATCH': [
      [{...STEP, entries: [{...entry, bytes: floats([1])}]}],
      [{...STEP, entries: [{piece: 0, rows: [1, 0], bytes: floats([1, 2, 3, 4, 5, 6])}]}],
      [{...STEP, entries: [{piece: 0, places: [6], bytes: floats([1])}]}],
    ],
    'UCP-E-LOG': [
      [{...STEP, options: []}],
      [{...STEP, entries: [{...entry, piece: 7}]}],
      [{...STEP, skipped: true, entries: [entry]}],
      [{...STEP, entries: [{...entry, piece: 1, bytes: floats(Array(9).fill(1))}]}],
      [{...STEP, entries: [entry, entry]}],
    ],
    'UCP-E-SCHEMA': [[]],
    'UCP-E-VALUE': [[{...STEP, options: [{lr: {$float: '1.00'}}]}]],
  };
  let number = 0;
  for (const [code, batches] of Object.entries(wrong)) {
    for (const steps of batches) {
      const writer = beginEpoch(path, epochOf({after: number}));
      number += 1;
      assert.throws(() => writer.write(0, {steps}), {code}, JSON.stringify(steps));
    }
  }
  assert.equal(existsSync(join(path, 'batches')), false);
});
