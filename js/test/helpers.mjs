/** Shared by tests: a seeded generator, temporary directories, checkpoints to damage. */

import {
  mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync,
} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {DRAFT_DIGEST, sealRoot, sha256} from '../lib/digest.mjs';
import {DTYPES} from '../lib/dtypes.mjs';
import {product} from '../lib/boxes.mjs';
import {keptAt} from '../lib/layout.mjs';
import {coordinatesOf} from '../lib/mesh.mjs';
import {viewed} from '../lib/views.mjs';
import {parse, stringify} from '../lib/json.mjs';
import {bufferSource, write} from '../node/index.mjs';

/** A small seeded generator (mulberry32). */
export class Random {
  constructor(seed) {
    this.state = seed;
  }

  next() {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let t = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** An integer from `low` to `high`, both included. */
  integer(low, high) {
    return low + Math.floor(this.next() * (high - low + 1));
  }

  pick(list) {
    return list[this.integer(0, list.length - 1)];
  }

  shuffle(list) {
    return list.map((item) => [this.next(), item]).sort(([a], [b]) => a - b).map(([, item]) => item);
  }

  /** Extents, ones included, whose product is a number. */
  factors(number) {
    const found = [];
    for (let rest = number; rest !== 1 && found.length < 5;) {
      const factor = rest === 0 ? this.integer(0, 3)
        : this.pick([...Array(rest).keys()].map((i) => i + 1).filter((f) => rest % f === 0));
      found.push(factor);
      rest = factor === 0 ? 1 : rest / factor;
    }
    return found.length === 0 || product(found) !== number ? [...found, number / (product(found) || 1)] : found;
  }

  bytes(length, maxByte = 255) {
    return Buffer.from(Array.from({length}, () => this.integer(0, maxByte)));
  }

  /** Parts of an extent, zeros included. */
  partition(extent, parts) {
    const cuts = Array.from({length: parts - 1}, () => this.integer(0, extent)).sort((a, b) => a - b);
    return [...cuts, extent].map((cut, i) => cut - (i > 0 ? cuts[i - 1] : 0));
  }
}

/** A temporary directory that goes away with the test. */
export function temporary(t) {
  const path = mkdtempSync(join(tmpdir(), 'ucp-node-'));
  t.after(() => rmSync(path, {recursive: true, force: true}));
  return path;
}

/** Keys of all files below a directory. */
export function filesOf(path, under = '') {
  return readdirSync(join(path, under)).flatMap((name) => {
    const key = under === '' ? name : `${under}/${name}`;
    return statSync(join(path, key)).isDirectory() ? filesOf(path, key) : [key];
  });
}

/** A random mesh and steps that fit the shape. */
export function randomLayout(random, shape) {
  const axes = Array.from({length: random.integer(1, 3)},
    (_, i) => ({name: `a${i}`, size: random.integer(1, 4)}));
  if (random.integer(0, 2) === 0) {
    const {name: by, size} = random.pick(axes);
    axes.push({name: 'r', by, sizes: Array.from({length: size}, () => random.integer(1, 3))});
  }
  const steps = [];
  let placeAxes = null;
  let free = [...axes];
  /** An axis that is used from now on, and with it the one that decides its size. */
  const take = () => {
    const axis = free.pop();
    free = free.filter(({name}) => name !== axis.by);
    return axis;
  };
  for (let n = random.integer(0, 3); n > 0 && random.integer(0, 1); n -= 1) {
    const {extents} = viewed(shape, steps, '');
    const step = random.integer(0, 1)
      ? {kind: 'permute', order: random.shuffle([...extents.keys()])}
      : {kind: 'view', shape: random.factors(product(shape))};
    try {
      viewed(shape, [...steps, step], '');
      steps.push(step);
    } catch (error) {
      if (error.code !== 'UCP-E-LAYOUT') throw error; // a view that does not fit
    }
  }
  let {extents} = viewed(shape, steps, '');
  extents = [...extents]; // extents where they do not depend on the coordinate, else null
  let open = extents.map(() => false); // 'own' where all open blocks have steps of their own
  const shard = (dim, axis) => {
    const rules = ['ceil', 'balanced'];
    const fixed = extents[dim] !== null && !open[dim];
    if (fixed && [axis.sizes ?? axis.size].flat().every((size) => extents[dim] % size === 0)) rules.push('even');
    if (fixed && axis.size && random.integer(0, 2) === 0) {
      const sizes = random.partition(extents[dim], axis.size);
      extents[dim] = null;
      return {kind: 'shard', axis: axis.name, dim, sizes};
    }
    const rule = random.pick(rules);
    extents[dim] = rule === 'even' && axis.size ? extents[dim] / axis.size : null;
    return {kind: 'shard', axis: axis.name, dim, rule};
  };
  for (let n = random.integer(0, 5); n > 0; n -= 1) {
    const dim = extents.length > 0 ? random.integer(0, extents.length - 1) : -1;
    const kind = random.pick(['shard', 'shard', 'blocks', 'join', 'pad', 'flatten', 'only']);
    if (kind === 'flatten' && !steps.some((step) => step.kind === 'flatten')) {
      extents = [extents.includes(null) ? null : product(extents)];
      open = [false];
      steps.push({kind});
      if (random.integer(0, 1)) {
        steps.push({kind: 'concat', group: 'g'});
        extents = [null];
        // Axes of the place are used before it or not at all.
        placeAxes = axes.filter(() => random.integer(0, 1));
        placeAxes = axes.filter((axis) => placeAxes.some((other) => axis === other || other.by === axis.name));
        free = free.filter((axis) => !placeAxes.includes(axis));
      }
    } else if (kind === 'only' && free.length > 1) {
      const axis = take();
      const size = Math.min(...[axis.sizes ?? axis.size].flat());
      steps.push({kind, axis: axis.name, coordinates: [random.integer(0, size - 1)]});
    } else if (kind === 'pad' && dim >= 0 && !open[dim]) {
      const multiple = random.integer(1, 5);
      steps.push(extents[dim] !== null && random.integer(0, 1)
        ? {kind, dim, to: extents[dim] + multiple} : {kind, dim, multiple});
      extents[dim] = null;
    } else if (kind === 'join' && open[dim]) {
      open[dim] = false;
      steps.push({kind, dim});
    } else if (kind === 'blocks' && dim >= 0 && !open[dim]) {
      const count = random.integer(1, 4);
      const step = extents[dim] !== null && random.integer(0, 1) === 0
        ? {kind, dim, sizes: random.partition(extents[dim], count)}
        : {kind, dim, rule: random.pick(['ceil', 'balanced']), count};
      const own = free.length > 0 && random.integer(0, 1) === 0 ? take() : null;
      const ownStep = own && {kind: 'shard', axis: own.name, dim, rule: 'ceil'};
      if (own) step.steps = Array.from({length: count}, () => random.pick([null, [], [ownStep]]));
      steps.push(step);
      open[dim] = own && step.steps.every((shards) => shards !== null) ? 'own' : true;
      if (own && open[dim] !== 'own' && random.integer(0, 1)) {
        steps.push({kind: 'shard', axis: own.name, dim, rule: 'balanced'});
      }
      extents[dim] = null;
    } else if (kind === 'shard' && dim >= 0 && open[dim] !== 'own' && free.length > 0) {
      steps.push(shard(dim, take()));
    }
  }
  const mesh = {axes};
  return placeAxes === null ? {mesh, steps} : {mesh, steps, place: randomPlace(random, mesh, steps, shape, placeAxes)};
}

/** Where a tensor lies in its buffer, somewhere at each combination of positions. */
function randomPlace(random, mesh, steps, shape, axes) {
  const sizes = axes.map(({size, sizes: ragged}) => size ?? Math.max(...ragged));
  const offsets = Array.from({length: product(sizes)}, () => random.integer(0, 5));
  const totals = offsets.map((offset) => offset + random.integer(0, 3));
  const concat = steps.findIndex(({kind}) => kind === 'concat');
  for (const coordinate of coordinatesOf(mesh)) {
    const kept = keptAt(mesh, steps.filter(({kind}, i) => i < concat || kind === 'only'), shape, coordinate, '');
    const i = axes.reduce((index, axis, k) => index * sizes[k] + coordinate[mesh.axes.indexOf(axis)], 0);
    if (kept) totals[i] = Math.max(totals[i], offsets[i] + product(kept.shape));
  }
  return {offsets, totals, ...(axes.length > 0 && {axes: axes.map(({name}) => name)})};
}

/** A whole slot in memory, as input of the writer. */
export function slotOf(dtype, shape, bytes, more = {}) {
  return {dtype, shape, open: () => bufferSource(bytes, bytes.length), ...more};
}

export const GZIP = new Map([['name', 'gzip'], ['configuration', new Map([['level', 5]])]]);

/** Writes a small checkpoint with a bit of everything. */
export function writeSmall(path, storage, seed = 1) {
  const random = new Random(seed);
  const slot = (dtype, shape, more) => {
    const {size, maxByte} = DTYPES.get(dtype);
    return slotOf(dtype, shape, random.bytes(product(shape) * size, maxByte), more);
  };
  const layout = {
    mesh: {axes: [{name: 'tp', size: 2}]},
    steps: [{kind: 'shard', axis: 'tp', dim: 0, rule: 'ceil'}],
  };
  const slots = (...entries) => new Map(entries);
  return write({
    path,
    storage,
    chunkBytes: 64,
    step: 7,
    partAtoms: 2,
    atoms: [
      {name: 'b', slots: slots(['value', slot('int4', [9])])},
      {
        name: 'a',
        aliases: ['z'],
        slots: slots(['value', slot('float32', [5, 7], {layout})],
          ['exp', slot('uint8', [70], {compressor: GZIP})]),
      },
      {name: 'é/c', slots: slots(['value', slotOf('uint8', [130], Buffer.alloc(130))], ['s', slot('float64', [])])},
    ],
    values: new Map([['epoch', 3], ['t', new Map([['$tuple', [1, 0.5]]])]]),
    optimizers: new Map([['adam', new Map([['groups', [
      new Map([['atoms', ['a', 'b']], ['options', new Map([['lr', 0.1]])]])]]])]]),
    blobs: new Map([['x', {mediaType: 'application/octet-stream', bytes: Buffer.from('hello')}]]),
  });
}

/**
 * Changes documents of a checkpoint and seals it again. `change` gets the root and functions that
 * change a referenced document, or the bytes of a referenced object.
 */
export function craft(path, change) {
  const file = join(path, 'ucp.json');
  const root = parse(readFileSync(file), 'ucp.json');
  const bytesOf = (reference, edit) => {
    const target = join(path, reference.get('key'));
    const before = readFileSync(target);
    const bytes = edit(before) ?? before;
    writeFileSync(target, bytes);
    reference.set('length', bytes.length);
    reference.set('digest', sha256(bytes));
  };
  const document = (reference, edit) => bytesOf(reference, (bytes) => {
    const parsed = parse(bytes, '');
    edit(parsed);
    return Buffer.from(stringify(parsed));
  });
  change(root, {bytesOf, document});
  const rest = [...root].filter(([name]) => name !== 'digest');
  const bytes = Buffer.from(stringify(new Map([['digest', DRAFT_DIGEST], ...rest])));
  sealRoot(bytes);
  writeFileSync(file, bytes);
}

export const codesOf = (problems) => [...new Set(problems.map(({code}) => code))].sort();
