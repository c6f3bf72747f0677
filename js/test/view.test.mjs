// What the page is made of and needs no browser: the session of the worker, the tree, the summary.

import assert from 'node:assert/strict';
import {readFileSync, readdirSync, writeFileSync} from 'node:fs';
import {join} from 'node:path';
import {test} from 'node:test';
import {DirectoryStore} from '../node/store.mjs';
import {beginEpoch, write} from '../node/index.mjs';
import {logOverview} from '../view/log.mjs';
import {Session} from '../view/session.mjs';
import {Summary} from '../view/summary.mjs';
import {
  Comparison, change, changeOf, changeOfSlot, sideOf,
} from '../view/comparison.mjs';
import {
  byName, bySize, flatRows, globTest, rowsOf, treeOf,
} from '../view/tree.mjs';
import {checkpointsAmong} from '../view/files.mjs';
import {slotOf, temporary, writeSmall} from './helpers.mjs';

const floats = (...numbers) => Buffer.from(Float32Array.from(numbers).buffer);

/** A session on a checkpoint with one slot. */
function sessionOf(t, dtype, shape, bytes, more) {
  const path = join(temporary(t), 'x');
  const slots = new Map([['value', slotOf(dtype, shape, bytes, more)]]);
  write({path, storage: 'packed', chunkBytes: 1 << 16, atoms: [{name: 'w', slots}]});
  return new Session(new DirectoryStore(path));
}
const W = {atom: 'w', slot: 'value'};

test('a session lists atoms, values and problems', (t) => {
  const path = join(temporary(t), 'x');
  writeSmall(path, 'plain');
  const session = new Session(new DirectoryStore(path));
  assert.equal(session.root.step, 7);
  const atoms = Array.from({length: session.root.parts}, (_, part) => JSON.parse(session.part({part}))).flat();
  assert.deepEqual(atoms.map(({name}) => name), ['a', 'b', 'é/c']);
  assert.deepEqual(atoms[0].slots.map(({name, bytes}) => [name, bytes]), [['exp', 70], ['value', 140]]);
  assert.deepEqual(session.state().optimizers, [['adam', [{atoms: 2, options: [['lr', '0.1']]}]]]);
  assert.match(JSON.parse(session.part({part: 0, contents: true}))[0].slots[0].content, /^crc32c-tree:/);
  assert.deepEqual(session.problems({level: 'integrity'}), []);
});

test('a window has the elements of its box, and a limit', (t) => {
  const session = sessionOf(t, 'float32', [2, 3], floats(0, 1, 2, 3, 4, 0.1));
  assert.deepEqual(session.window({...W, offset: [1, 1], shape: [1, 2]}), {shape: [1, 2], texts: ['4', '0.1']});
  assert.throws(() => session.window({...W, offset: [0, 0], shape: [100, 100]}), {code: 'UCP-E-LIMIT'});
  assert.throws(() => session.window({...W, offset: [0, 0], shape: [3, 3]}), {code: 'UCP-E-MISMATCH'});
});

test('statistics are those of all elements', (t) => {
  const found = sessionOf(t, 'float32', [7], floats(0, 1, -4, NaN, Infinity, 3, 0)).statistics(W);
  assert.deepEqual({...found, norm: 0}, {
    count: 7, nan: 1, inf: 1, zeros: 2, minimum: -4, maximum: 3, mean: 0, norm: 0, positive: [[0, 1], [1, 1]], negative: [[2, 1]],
  });
  assert.equal(found.norm, Math.sqrt(26));
  const empty = new Summary().result();
  assert.deepEqual([empty.minimum, empty.mean], [null, null]);
});

test('a heat map has means of cells, of vectors folded as well', (t) => {
  const rows = Array.from({length: 4 * 300}, (_, i) => (i % 300 < 150 ? 1 : 3));
  const map = sessionOf(t, 'float32', [2, 2, 300], floats(...rows)).heatMap(W);
  assert.deepEqual([map.rows, map.columns, map.height, map.width, map.isWhole], [4, 300, 4, 256, true]);
  assert.deepEqual([map.cells[0], map.cells[255], map.cells[3 * 256]], [1, 3, 1]);
  const vector = sessionOf(t, 'uint8', [2500], Buffer.alloc(2500, 5)).heatMap(W);
  assert.deepEqual([vector.rows, vector.columns, vector.height], [3, 1024, 3]);
  assert.ok(vector.cells.every((cell, i) => (vector.held[i] ? cell === 5 : Number.isNaN(cell))));
  assert.equal(vector.held.filter((held) => !held).length, 256 - 452 / 4);
  assert.deepEqual([...sessionOf(t, 'float32', [], floats(2)).heatMap(W).cells], [2]);
  assert.equal(sessionOf(t, 'float32', [0, 3], floats()).heatMap(W).width, 0);
});

test('a heat map of a large tensor reads a sample', (t) => {
  const session = sessionOf(t, 'uint8', [1 << 13, 2048], Buffer.alloc(1 << 24, 9));
  let bytes = 0;
  const {store} = session;
  const read = store.read.bind(store);
  store.read = (key, offset, length) => {
    bytes += length;
    return read(key, offset, length);
  };
  const map = session.heatMap(W);
  assert.equal(map.isWhole, false);
  assert.ok(map.cells.every((cell) => cell === 9));
  assert.ok(bytes <= 9 << 20, `${bytes}`);
  assert.ok(session.heatMap({...W, whole: true}).cells.every((cell) => cell === 9));
});

test('a layout is told rank by rank', (t) => {
  const layout = {mesh: {axes: [{name: 'tp', size: 2}]}, steps: [{kind: 'shard', axis: 'tp', dim: 0, rule: 'ceil'}]};
  const session = sessionOf(t, 'uint8', [3, 2], Buffer.alloc(6, 1), {layout});
  const {holders, count} = session.layout(W);
  assert.equal(count, 2);
  assert.deepEqual(holders.map(({boxes}) => boxes), [[{offset: [0, 0], shape: [2, 2]}], [{offset: [2, 0], shape: [1, 2]}]]);
  assert.equal(sessionOf(t, 'uint8', [1], Buffer.alloc(1, 1)).layout(W), null);
  const {places, segments} = session.places(W);
  assert.deepEqual([segments, places[0].length], [1, 6]);
});

const atomsOf = (...names) => names.map((name, i) => ({name, bytes: i + 1, slots: []}));

test('the tree has modules of the names, and folds chains', () => {
  const tree = treeOf(atomsOf('layers.0.w', 'layers.10.w', 'layers.2.w', 'head/x.y'));
  assert.equal(tree.bytes, 10);
  const labels = (open, order) => rowsOf(tree, new Set(open), order).map(({label}) => label);
  assert.deepEqual(labels([], bySize), ['layers.', 'head/x.y']);
  assert.deepEqual(labels(['layers.'], byName), ['head/x.y', 'layers.', '0.w', '2.w', '10.w']);
  assert.deepEqual(treeOf(atomsOf('a', 'a.b')).children.size, 2);
  const flat = flatRows(atomsOf('layers.0.w', 'head.x', 'a'), bySize);
  assert.deepEqual(flat.map(({label, open, share}) => [label, open, share]), [['a', null, 1 / 2], ['head.x', null, 1 / 3], ['layers.0.w', null, 1 / 6]]);
});

test('the tree is the same in any order of names, and names that look like its keys are names', () => {
  const names = ['=a.', '=a.b', 'a', 'a.', 'a./b', 'a.b', 'a.b.c', 'a/b', 'b.c', 'b.c=', 'b.c=.d'];
  const leavesOf = (module) => [...module.children.values()].flatMap((child) => {
    assert.equal(child.bytes, child.atom ? child.atom.bytes : [...child.children.values()].reduce((sum, {bytes}) => sum + bytes, 0));
    return child.atom ? [child.name] : leavesOf(child);
  });
  const atoms = atomsOf(...names);
  for (let turn = 0; turn < atoms.length; turn += 1) {
    const found = treeOf([...atoms.slice(turn), ...atoms.slice(0, turn)]);
    assert.deepEqual(leavesOf(found).sort(), names);
    assert.equal(found.bytes, (names.length * (names.length + 1)) / 2);
  }
});

test('globs match whole names, and texts parts of them', () => {
  const matches = (glob, ...names) => names.filter(globTest(glob));
  assert.deepEqual(matches('l*.w?', 'layers.1.wq', 'layers.1.w', 'xl.wq'), ['layers.1.wq']);
  assert.deepEqual(matches('*', 'a', ''), ['a', '']);
  assert.deepEqual(matches('.w', 'a.w', 'w'), ['a.w']);
  assert.deepEqual(matches('a**b', 'ab', 'axb', 'abc'), ['ab', 'axb']);
  assert.equal(globTest(`${'*a'.repeat(50)}*b`)('a'.repeat(5000)), false);
});

test('changes are told by content digests', () => {
  const atom = (content, dtype = 'float32') => ({
    slots: [{
      name: 'value', content, dtype, shape: [2],
    }],
  });
  assert.equal(change(atom('x'), atom('x')), 'same');
  assert.equal(change(atom('x'), atom('y')), 'changed');
  assert.equal(change(atom('x'), atom('x', 'int32')), 'changed');
  assert.equal(change(atom('x'), atom(null)), 'unknown');
  assert.equal(change(atom('x'), undefined), 'added');
  assert.equal(change(undefined, atom('x')), 'removed');
  const [slot, other, unread] = ['x', 'y', undefined].map((content) => atom(content).slots[0]);
  assert.deepEqual([slot, other, unread, {...slot, shape: [1]}, undefined].map((one) => changeOfSlot(slot, one)),
    ['same', 'changed', 'unknown', 'changed', 'added']);
  assert.equal(change({slots: [slot, {...slot, name: 'exp'}]}, {slots: [slot, {...slot, name: 'step'}]}), 'changed');
  assert.equal(change({slots: [unread, {...slot, name: 'exp'}]}, {slots: [slot, {...other, name: 'exp'}]}), 'changed');
});

test('a module tells how many of its atoms changed, and their bytes', () => {
  const side = (digests) => new Map(Object.entries(digests).map(([name, content], i) => [name, {
    name, aliases: [], bytes: 2 ** i, slots: [{
      name: 'value', content, dtype: 'float32', shape: [2], bytes: 2 ** i, layout: null,
    }],
  }]));
  const mine = side({'m.a': 'x', 'm.b': 'x', 'm.c': null, n: 'x'});
  const comparison = new Comparison(mine, side({'m.a': 'x', 'm.b': 'y', 'm.c': 'x', n: 'y'}));
  const tree = treeOf(mine.values());
  const told = Object.fromEntries([...tree.children.values()].map((module) => [module.name, comparison.told(module)]));
  assert.deepEqual(told, {'m.': '1 of 3 atoms changed', n: 'changed'});
  assert.deepEqual(comparison.changesOf(tree), {atoms: 4, changed: 2, bytes: 10});
  assert.equal(new Comparison(mine, mine).told(tree), '');
});

test('a run shows metrics and a cadence of the types that they have', (t) => {
  const path = join(temporary(t), 'x');
  const summaryOf = (every) => {
    write({
      path: `${path}-${every}`, storage: 'packed', chunkBytes: 64, atoms: [], annotations: new Map([
        ['org.ucpformat.metrics', new Map([['loss', 2], ['name', 'x']])],
        ['org.ucpformat.cadence', new Map([['every', every], ['reason', 'why']])],
      ]),
    });
    return new Session(new DirectoryStore(`${path}-${every}`)).summary();
  };
  const {cadence, metrics} = summaryOf(5);
  assert.deepEqual([cadence, metrics], [{every: 5, reason: 'why'}, [['loss', 2]]]);
  assert.equal(summaryOf('often').cadence, null);
});

test('an epoch without batches has no last one', (t) => {
  const path = join(temporary(t), 'x.ucplog');
  const writer = beginEpoch(path, {
    firstStep: 5, after: null, ranks: 1, tensors: [], pieces: [], groups: [], optimizer: {type: 'ucp.sgd', profile: {}}, exactness: 'bitwise',
  });
  const lastBatch = () => logOverview(new DirectoryStore(path)).epochs.map(({first_step: first, last_batch: last}) => [first, last]);
  assert.deepEqual(lastBatch(), [[5, null]]);
  writer.write(0, {steps: [{options: [], entries: []}]});
  assert.deepEqual(lastBatch(), [[5, 5]]);
});

test('an alias that became an atom, or back, is told as such', () => {
  const side = (...atoms) => sideOf(new Map(atoms.map(([name, content, ...aliases]) => [name, {
    name,
    aliases,
    bytes: 8,
    slots: [{
      name: 'value', content, dtype: 'float32', shape: [2], bytes: 8, layout: null,
    }],
  }])));
  const tied = side(['emb', 'x', 'head', 'tail'], ['w', 'y']);
  const apart = side(['emb', 'x'], ['head', 'x'], ['w', 'y', 'tail']);
  const told = (name, mine, other) => Object.values(changeOf(name, mine, other));
  assert.deepEqual(told('head', apart, tied), ['changed', 'no longer an alias of emb']);
  assert.deepEqual(told('head', tied, apart), ['changed', 'an alias of emb now']);
  assert.deepEqual(told('head', tied, side(['emb', 'x'], ['head', 'z'])), ['changed', 'an alias of emb now, changed']);
  assert.deepEqual(told('emb', apart, tied), ['changed', 'other aliases']);
  assert.deepEqual(told('emb', tied, side(['emb', 'x', 'tail'], ['head', 'x'])), ['same', '']);
  assert.deepEqual(told('w', side(['w', 'z']), tied), ['changed', 'changed']);
  assert.deepEqual(told('gone', side(['a', 'x']), side(['gone', 'x'])), ['removed', 'removed']);
  assert.deepEqual(told('emb', tied, tied), ['same', '']);
});

test('checkpoints among files are those that lie in no other, the last first, and a log', () => {
  assert.deepEqual(checkpointsAmong([['d/x/ucp.json', 1], ['d/ucp.json', 2], ['d/packs/0', 3], ['e', 4]]),
    {checkpoints: [{label: 'd', files: [['x/ucp.json', 1], ['ucp.json', 2], ['packs/0', 3]]}], log: null});
  assert.deepEqual(checkpointsAmong([['a', 1]]), {checkpoints: [], log: null});
  assert.deepEqual(checkpointsAmong([['ucp.json', 1], ['b/ucp.json', 2]]).checkpoints.map(({label}) => label), ['directory']);
  const run = checkpointsAmong([['r/s-9/ucp.json', 1], ['r/s-10/ucp.json', 2], ['r/u.ucplog/log.json', 3], ['r/u.ucplog/epochs/0.json', 4]]);
  assert.deepEqual(run.checkpoints.map(({label}) => label), ['r/s-10', 'r/s-9']);
  assert.deepEqual(run.log, [['log.json', 3], ['epochs/0.json', 4]]);
});

test('a problem names the atom that it is about', (t) => {
  const path = join(temporary(t), 'x');
  writeSmall(path, 'packed');
  const [pack] = readdirSync(join(path, 'packs'));
  const bytes = readFileSync(join(path, 'packs', pack));
  bytes[0] ^= 1;
  writeFileSync(join(path, 'packs', pack), bytes);
  const problems = new Session(new DirectoryStore(path)).problems({level: 'integrity'});
  assert.deepEqual(problems.map(({code, atom}) => [code, atom]), [['UCP-E-CHECKSUM', 'a']]);
});
