import assert from 'node:assert/strict';
import {test} from 'node:test';
import {product, stridesOf, tiles} from '../lib/boxes.mjs';
import {makeGrid} from '../lib/grid.mjs';
import {lower} from '../node/index.mjs';
import {lowerToLogical} from '../lib/pieces.mjs';
import {viewed} from '../lib/views.mjs';
import {Random, randomLayout} from './helpers.mjs';

/** All indices of a shape, in order. */
const indicesOf = (shape) => shape.reduce(
  (all, extent) => all.flatMap((index) => [...Array(extent).keys()].map((i) => [...index, i])), [[]]);

/** SPEC section 12, element by element: the logical elements of each local tensor, in order, null for padding. */
function simulate({mesh, steps, place}, shape, coordinate) {
  const where = (name) => {
    const i = mesh.axes.findIndex((axis) => axis.name === name);
    const {size, by, sizes} = mesh.axes[i];
    return [coordinate[i], size ?? sizes[coordinate[mesh.axes.findIndex((axis) => axis.name === by)]]];
  };
  // The tensor as view and permute leave it: extents and elements in order.
  let extents = shape;
  let base = [...Array(product(shape)).keys()];
  for (const step of steps) {
    if (step.kind === 'view') extents = step.shape;
    if (step.kind === 'permute') {
      const [before, strides] = [base, stridesOf(extents)];
      extents = step.order.map((dim) => extents[dim]);
      base = indicesOf(extents).map((index) => (
        before[index.reduce((sum, i, k) => sum + i * strides[step.order[k]], 0)]));
    }
  }
  // A local tensor as nested selection: per dimension blocks of indices into the tensor before,
  // null for padding.
  let dims = extents.map((extent) => [{kept: [...Array(extent).keys()], own: false}]);
  let flat = null;
  const part = (kept, step, [i, n] = where(step.axis)) => {
    const d = kept.length;
    const c = Math.ceil(d / n);
    if (step.sizes) {
      const start = step.sizes.slice(0, i).reduce((a, b) => a + b, 0);
      return kept.slice(start, start + step.sizes[i]);
    }
    if (step.rule !== 'balanced') return kept.slice(i * c, (i + 1) * c);
    const start = i * Math.floor(d / n) + Math.min(i, d % n);
    return kept.slice(start, start + Math.floor(d / n) + (i < d % n ? 1 : 0));
  };
  const elements = () => {
    const lists = dims.map((blocks) => blocks.flatMap(({kept}) => kept));
    if (flat) return lists[0].map((at) => (at === null ? null : flat[at]));
    const strides = stridesOf(extents);
    return lists.reduce((all, list, d) => all.flatMap((e) => list.map((i) => (
      e === null || i === null ? null : e + i * strides[d]))), [0]).map((at) => (at === null ? null : base[at]));
  };
  for (const step of steps) {
    if (step.kind === 'only' && !step.coordinates.includes(where(step.axis)[0])) return null;
    if (step.kind === 'shard') {
      dims[step.dim] = dims[step.dim].map((block) => (
        block.own ? block : {kept: part(block.kept, step), own: false}));
    } else if (step.kind === 'blocks') {
      const [{kept}] = dims[step.dim];
      let at = 0;
      const sizes = step.sizes ?? Array.from({length: step.count},
        (_, b) => part(kept, step, [b, step.count]).length);
      dims[step.dim] = sizes.map((size, b) => {
        const own = step.steps?.[b] ?? null;
        const block = kept.slice(at, at += size);
        return {kept: (own ?? []).reduce((rest, s) => part(rest, s), block), own: own !== null};
      });
    } else if (step.kind === 'join') {
      dims[step.dim] = [{kept: dims[step.dim].flatMap(({kept}) => kept), own: false}];
    } else if (step.kind === 'pad') {
      const [{kept}] = dims[step.dim];
      const to = step.to ?? Math.ceil(kept.length / step.multiple) * step.multiple;
      dims[step.dim] = [{kept: [...kept, ...Array(to - kept.length).fill(null)], own: false}];
    } else if (step.kind === 'concat') {
      const sizes = (place.axes ?? []).map((name) => mesh.axes.find((axis) => axis.name === name))
        .map(({size, sizes: ragged}) => size ?? Math.max(...ragged));
      const entry = (place.axes ?? []).reduce((index, name, k) => index * sizes[k] + where(name)[0], 0);
      const [{kept}] = dims[0];
      const buffer = Array(place.totals[entry]).fill(null);
      kept.forEach((element, i) => { buffer[place.offsets[entry] + i] = element; });
      dims = [[{kept: buffer, own: false}]];
    } else if (step.kind === 'flatten') {
      flat = elements();
      dims = [[{kept: [...flat.keys()], own: false}]];
    }
  }
  const local = elements();
  return {shape: flat ? [local.length] : dims.map((b) => b.flatMap(({kept}) => kept).length), local};
}

/** The canonical list by the letter of SPEC section 13. */
function canonical(shape, localOf, prefix = []) {
  if (prefix.length === shape.length) {
    const local = localOf(prefix);
    return local === undefined ? [] : [{offset: [], shape: [], strides: [], local}];
  }
  const groups = [];
  let group = null;
  const structure = (list) => JSON.stringify(list.map(({offset, shape: box, strides}) => [offset, box, strides]));
  for (let i = 0; i < shape[prefix.length]; i += 1) {
    const list = canonical(shape, localOf, [...prefix, i]);
    if (list.length === 0) {
      group = null;
      continue;
    }
    if (group && structure(group.at(-1)) === structure(list)) {
      const steps = list.map((piece, k) => piece.local - group.at(-1)[k].local);
      if (steps.every((s) => s >= 1)
          && (group.length < 2 || steps.every((s, k) => s === group[1][k].local - group[0][k].local))) {
        group.push(list);
        continue;
      }
    }
    group = [list];
    groups.push({start: i, lists: group});
  }
  return groups.flatMap(({start, lists}) => lists[0].map((piece, k) => ({
    offset: [start, ...piece.offset],
    shape: [lists.length, ...piece.shape],
    strides: [lists.length === 1 ? 0 : lists[1][k].local - piece.local, ...piece.strides],
    local: piece.local,
  })));
}

const ROUNDS = process.env.UCP_SEARCH === 'long' ? 6000 : 400;

test('lowering agrees with the letter of the specification', () => {
  const random = new Random(7);
  for (let n = 0; n < ROUNDS; n += 1) {
    const shape = Array.from({length: random.integer(0, 3)}, () => random.pick([0, 1, 2, 3, 4, 4, 5, 6, 6, 7]));
    const layout = randomLayout(random, shape);
    const covered = new Set();
    for (const {coordinate, shape: localShape, pieces} of lower(layout.mesh, layout.steps, shape, layout.place)) {
      const expected = simulate(layout, shape, coordinate);
      assert.deepEqual(localShape, expected?.shape ?? null);
      const byElement = new Map((expected?.local ?? []).map((element, at) => [element, at]));
      byElement.delete(null);
      const {view} = viewed(shape, layout.steps, '');
      const strides = stridesOf(view);
      const wanted = canonical(view, (index) => (
        byElement.get(index.reduce((sum, i, d) => sum + i * strides[d], 0))));
      assert.deepEqual(pieces, wanted.map(({offset, shape: box, strides: s, local}) => (
        {offset, shape: box, local, strides: s})), JSON.stringify({shape, layout, coordinate}));
      for (const element of byElement.keys()) covered.add(element);
      const {pieces: logical} = lowerToLogical(layout.mesh, layout.steps, shape, coordinate, layout.place);
      const found = logical.flatMap(({offset, shape: box, local, strides: s}) => indicesOf(box).map((index) => [
        index.reduce((sum, i, d) => sum * shape[d] + offset[d] + i, 0),
        index.reduce((sum, i, d) => sum + i * s[d], local)]));
      assert.deepEqual(found.sort(([a], [b]) => a - b), [...byElement].sort(([a], [b]) => a - b));
    }
    assert.equal(covered.size, product(shape)); // every accepted layout covers
  }
});

test('lowering takes time by structure, not by size', () => {
  const mesh = {axes: [{name: 'd', size: 8}]};
  const steps = [{kind: 'flatten'}, {kind: 'shard', axis: 'd', dim: 0, rule: 'ceil'}];
  const locals = lower(mesh, steps, [2 ** 20, 3, 2 ** 20 + 1]);
  assert.ok(locals.every(({pieces}) => pieces.length <= 5));
  const view = {kind: 'view', shape: [3, 64, 2 ** 20, 2 ** 12]};
  const moved = [view, {kind: 'permute', order: [1, 0, 2, 3]}, {kind: 'view', shape: [192 * 2 ** 20, 2 ** 12]}];
  const heads = lower(mesh, [...moved, {kind: 'shard', axis: 'd', dim: 0, rule: 'even'}], [192 * 2 ** 20, 2 ** 12]);
  assert.ok(heads.every(({pieces}) => pieces.length === 1));
  const padded = lower(mesh, [{kind: 'pad', dim: 0, multiple: 2 ** 40}, ...steps], [2 ** 12 + 1, 3]);
  assert.deepEqual(padded.map(({pieces}) => pieces.length), [1, 0, 0, 0, 0, 0, 0, 0]);
});

test('the view of a layout', () => {
  const view = (...shape) => ({kind: 'view', shape});
  const permute = (...order) => ({kind: 'permute', order});
  const of = (shape, ...steps) => viewed(shape, steps, '').view;
  assert.deepEqual(of([12, 2], view(3, 2, 2, 2), permute(1, 0, 2, 3)), [3, 2, 2, 2]);
  assert.deepEqual(of([3, 4], view(12)), [3, 4]);
  assert.deepEqual(of([6, 1, 4], view(2, 12)), [2, 3, 1, 4]);
  assert.deepEqual(of([], view(1, 1)), []);
  assert.deepEqual(of([0, 5], view(5, 0)), [0, 5]);
  // Weights 3 and cut 4 do not divide each other: the radices alone are the view.
  assert.deepEqual(of([6, 4], view(8, 3)), [8, 3]);
  for (const [shape, ...steps] of [
    [[4], view(5)], [[4], view(2, 3)], [[4, 3], permute(1, 0), view(2, 6)], [[0], view(1)], [[4], view(0)],
    [[2 ** 26, 2 ** 26], view(2 ** 53 - 1, 2 ** 53 - 1)]]) {
    assert.throws(() => of(shape, ...steps), {code: 'UCP-E-LAYOUT'});
  }
});

const refusals = {
  'an unknown axis': [[4], [{kind: 'shard', axis: 'x', dim: 0, rule: 'ceil'}]],
  'a missing dimension': [[4], [{kind: 'shard', axis: 'a', dim: 1, rule: 'ceil'}]],
  'an axis used twice': [[4], [{kind: 'shard', axis: 'a', dim: 0, rule: 'ceil'},
    {kind: 'shard', axis: 'a', dim: 0, rule: 'ceil'}]],
  'an uneven even': [[5], [{kind: 'shard', axis: 'a', dim: 0, rule: 'even'}]],
  'sizes that do not sum': [[5], [{kind: 'shard', axis: 'a', dim: 0, sizes: [1, 1]}]],
  'blocks in blocks': [[4], [{kind: 'blocks', dim: 0, sizes: [4]}, {kind: 'blocks', dim: 0, sizes: [4]}]],
  'two flattens': [[4], [{kind: 'flatten'}, {kind: 'flatten'}]],
  'a coordinate outside': [[4], [{kind: 'only', axis: 'a', coordinates: [2]}]],
  'an unevenness at one coordinate': [[5], [{kind: 'shard', axis: 'a', dim: 0, rule: 'ceil'},
    {kind: 'shard', axis: 'b', dim: 0, rule: 'even'}]],
  'own steps after a join': [[4], [
    {kind: 'blocks', dim: 0, sizes: [2, 2], steps: [[{kind: 'shard', axis: 'a', dim: 0, rule: 'ceil'}], null]},
    {kind: 'join', dim: 0}, {kind: 'shard', axis: 'a', dim: 0, rule: 'ceil'}]],
  'a reserved step': [[4], [{kind: 'concat'}]],
  'a join of no blocks': [[4], [{kind: 'join', dim: 0}]],
  'a shard of blocks that all have steps': [[4], [{kind: 'blocks', dim: 0, sizes: [2, 2], steps: [[], []]},
    {kind: 'shard', axis: 'a', dim: 0, rule: 'ceil'}]],
  'coordinates that descend': [[4], [{kind: 'only', axis: 'a', coordinates: [1, 0]}]],
  'a coordinate twice': [[4], [{kind: 'only', axis: 'a', coordinates: [1, 1]}]],
  'one axis in blocks of two dimensions': [[2, 2], [0, 1].map((dim) => (
    {kind: 'blocks', dim, sizes: [1, 1], steps: [[{kind: 'shard', axis: 'a', dim, rule: 'ceil'}], null]}))],
  'uneven blocks': [[5], [{kind: 'blocks', dim: 0, rule: 'even', count: 2}]],
  'an axis after one whose size it decides': [[4], [{kind: 'shard', axis: 'r', dim: 0, rule: 'ceil'},
    {kind: 'shard', axis: 'a', dim: 0, rule: 'ceil'}]],
  'sizes over an axis that has some': [[4], [{kind: 'shard', axis: 'r', dim: 0, sizes: [4]}]],
  'a view behind another step': [[4], [{kind: 'pad', dim: 0, to: 4}, {kind: 'view', shape: [4]}]],
  'an order that is too short': [[2, 2], [{kind: 'permute', order: [0]}]],
  'an order with a dimension twice': [[2, 2], [{kind: 'permute', order: [0, 0]}]],
  'a view of another number': [[4], [{kind: 'view', shape: [2, 3]}]],
  'a padding that is too short': [[4], [{kind: 'pad', dim: 0, to: 3}]],
  'a padding of blocks': [[4], [{kind: 'blocks', dim: 0, sizes: [4]}, {kind: 'pad', dim: 0, to: 4}]],
  'a coordinate that is not everywhere': [[4], [{kind: 'only', axis: 'r', coordinates: [1]}]],
};
for (const [name, [shape, steps]] of Object.entries(refusals)) {
  test(`a layout with ${name} is refused`, () => {
    const mesh = {axes: [{name: 'a', size: 2}, {name: 'b', size: 3}, {name: 'r', by: 'a', sizes: [1, 3]}]};
    assert.throws(() => lower(mesh, steps, shape), {code: 'UCP-E-LAYOUT'});
  });
}

test('meshes', () => {
  const of = (axes, more = {}) => lower({axes, ...more}, [], [2]).map(({coordinate}) => coordinate);
  const [a, r] = [{name: 'a', size: 2}, {name: 'r', by: 'a', sizes: [1, 2]}];
  assert.deepEqual(of([a, r]), [[0, 0], [1, 0], [1, 1]]);
  assert.equal(of([a, r], {ranks: [5, 3, 4]}).length, 3);
  for (const axes of [[r, a], [a, {...r, sizes: [1]}], [a, r, {name: 's', by: 'r', sizes: [1]}], [a, {...a}]]) {
    assert.throws(() => of(axes), {code: 'UCP-E-LAYOUT'});
  }
  assert.throws(() => of([a, r], {ranks: [5, 3]}), {code: 'UCP-E-LAYOUT'});
  assert.throws(() => of([{name: 'a', size: 2 ** 21}]), {code: 'UCP-E-LIMIT'});
  assert.throws(() => of([a, {...r, sizes: [1, 2 ** 20]}]), {code: 'UCP-E-LIMIT'});
});

test('limits of blocks and boxes', () => {
  const mesh = {axes: []};
  const blocks = (dim, count) => ({kind: 'blocks', dim, rule: 'balanced', count});
  const shard = (axis, dim) => ({kind: 'shard', axis, dim, rule: 'even'});
  const [{pieces}] = lower(mesh, [blocks(0, 2 ** 20)], [2 ** 20]);
  assert.equal(pieces.length, 1);
  assert.throws(() => lower(mesh, [blocks(0, 2 ** 20 + 1)], [2]), {code: 'UCP-E-LIMIT'});
  const pad = (dim, to) => ({kind: 'pad', dim, to});
  assert.throws(() => lower(mesh, [pad(0, 2 ** 40), pad(1, 2 ** 40)], [1, 1]), {code: 'UCP-E-LIMIT'});
  assert.throws(() => lower(mesh, [{kind: 'pad', dim: 0, multiple: 2 ** 52 + 1}], [2 ** 52 + 2]), {code: 'UCP-E-LIMIT'});
  const two = {axes: [{name: 'a', size: 2}, {name: 'b', size: 2}]};
  const cut = (count) => [blocks(0, 2048), shard('a', 0), blocks(1, count), shard('b', 1)];
  assert.throws(() => lower(two, cut(513), [4096, 1026]), {code: 'UCP-E-LIMIT'});
  // Ranges that touch are one: those of all positions of an axis that nothing splits.
  assert.equal(lower(mesh, [blocks(0, 2048), blocks(1, 513)], [2048, 1024])[0].pieces.length, 1);
});

test('the chunk grid', () => {
  assert.deepEqual(makeGrid([4097, 512], 4, 8 << 20).chunk, [2049, 512]);
  assert.deepEqual(makeGrid([], 4, 16), {shape: [], itemSize: 4, chunk: [], counts: [], total: 1, chunkBytes: 4});
  assert.equal(makeGrid([0, 5], 4, 16).total, 0);
  const random = new Random(3);
  for (let n = 0; n < 500; n += 1) {
    const shape = Array.from({length: random.integer(1, 4)}, () => random.integer(0, 9));
    const size = random.pick([1, 2, 4, 8, 16]);
    const target = random.integer(16, 300);
    const e = shape.map((x) => Math.max(1, x));
    const inner = (k) => size * product(e.slice(k + 1));
    let k = shape.findIndex((_, i) => inner(i) <= target);
    if (k < 0) k = shape.length - 1;
    const rows = Math.max(1, Math.floor(target / inner(k)));
    const expected = e.map((x, i) => (i < k ? 1 : i > k ? x : Math.ceil(x / Math.ceil(x / rows))));
    assert.deepEqual(makeGrid(shape, size, target).chunk, expected);
  }
});

test('tilings', () => {
  const box = (offset, shape) => ({offset, shape});
  const wheel = [box([0, 0], [1, 2]), box([0, 2], [2, 1]), box([1, 0], [2, 1]), box([1, 1], [1, 1]),
    box([2, 1], [1, 2])];
  assert.ok(tiles(wheel, [3, 3]));
  assert.ok(!tiles(wheel.slice(1), [3, 3]));
  // The volume is right, but one element is covered twice and another not at all.
  assert.ok(!tiles([box([0], [2]), box([1], [1])], [3]));
  assert.ok(tiles([box([], [])], []));
});
