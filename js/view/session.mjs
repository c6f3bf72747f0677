/**
 * What the page asks about checkpoints; runs in a worker, on any store.
 */

import {fromBase64} from '#platform';
import {lowerToLogical} from '../lib/pieces.mjs';
import {coordinatesOf, countCoordinates} from '../lib/mesh.mjs';
import {Checkpoint} from '../lib/checkpoint.mjs';
import {
  copyBox, dot, fits, product, stridesOf,
} from '../lib/boxes.mjs';
import {toNumbers, toTexts} from '../lib/elements.mjs';
import {UcpError} from '../lib/errors.mjs';
import {plain, stringify} from '../lib/json.mjs';
import {readBox, readerOf} from '../lib/read.mjs';
import {validate} from '../lib/validate.mjs';
import {
  parametersOf, planByPatterns, planOfAll, planOfSlot, planToOther,
} from './planning.mjs';
import {Summary} from './summary.mjs';
import {inWords} from './words.mjs';

/** Bytes that a heat map reads unless all of the tensor is asked for. */
const SAMPLE_BYTES = 8 << 20;
const MAX_CELLS = 4096;
const MAX_PIECES = 20_000;
const MAX_PLACES = 200;
const MAP_SIZE = 256;

/** The annotation under which a run keeps metrics. */
const METRICS = 'org.ucpformat.metrics';
/** The one under which it keeps how often it saves, and why. */
const CADENCE = 'org.ucpformat.cadence';

const jsonOf = (value) => (value === undefined || value === null ? null : stringify(value));

/** @typedef {import('./tree.mjs').AtomRow} AtomRow */

/** @returns {AtomRow} */
function atomRow({name, aliases, slots}, hasContents) {
  const rows = slots.map((slot) => ({
    name: slot.name,
    dtype: slot.dtype.name,
    shape: slot.shape,
    layout: slot.layout,
    bytes: product(slot.shape) * slot.dtype.size,
    ...(hasContents && {content: slot.content}),
  }));
  return {
    name, aliases, slots: rows, bytes: rows.reduce((sum, {bytes}) => sum + bytes, 0),
  };
}

/** Columns of the matrix that a vector is shown as. */
const FOLDED = 1024;
/** Bytes that are read at a time for a heat map. */
const STEP_BYTES = 4 << 20;

/** A tensor as a matrix: all dimensions but the last are rows, and a vector is folded. */
function matrixOf(shape) {
  if (shape.length > 1) return {columns: shape.at(-1), rows: product(shape.slice(0, -1))};
  const count = product(shape);
  const columns = Math.min(count, FOLDED);
  return {columns, rows: Math.ceil(count / columns)};
}

/**
 * A box with rows of the matrix from `row` on, at most `most`, and how many rows it has.
 * @returns {{box: import('../lib/boxes.mjs').Box, taken: number}}
 */
function boxOfRows(shape, {columns}, row, most) {
  if (shape.length === 0) return {box: {offset: [], shape: []}, taken: 1};
  if (shape.length === 1) {
    const offset = row * columns;
    return {box: {offset: [offset], shape: [Math.min(most * columns, shape[0] - offset)]}, taken: most};
  }
  const index = [];
  let rest = row;
  for (const extent of shape.slice(0, -1).reverse()) {
    index.unshift(rest % extent);
    rest = Math.floor(rest / extent);
  }
  // Rows that follow each other in the dimension before the last are one box.
  const taken = Math.min(most, shape[shape.length - 2] - index[index.length - 1]);
  return {box: {offset: [...index, 0], shape: [...index.slice(0, -1).map(() => 1), taken, columns]}, taken};
}

/** A step of a layout as text: `shard axis tp, dim 0, rule even`. */
const stepText = ({kind, ...members}) => `${kind} ${Object.entries(members).filter(([, value]) => value !== null && value !== undefined)
  .map(([name, value]) => `${name} ${typeof value === 'object' ? JSON.stringify(value) : value}`).join(', ')}`.trim();

/** What the page shows of no elements. */
const EMPTY_MAP = {
  rows: 0, columns: 0, height: 0, width: 0, cells: new Float64Array(0), held: new Float64Array(0), isWhole: true,
};

/**
 * A heat map of a tensor as a matrix, of cells that have the mean of what was read.
 * @param {number[]} shape
 * @param {number} itemSize
 * @param {(box: import('../lib/boxes.mjs').Box) => Float64Array} numbersOf elements of a box
 * @param {boolean} all
 */
function mapOf(shape, itemSize, numbersOf, all) {
  const count = product(shape);
  if (count === 0) return EMPTY_MAP;
  const matrix = matrixOf(shape);
  const {rows, columns} = matrix;
  const width = Math.min(columns, MAP_SIZE);
  const isWhole = all || count * itemSize <= SAMPLE_BYTES;
  const height = Math.min(rows, isWhole ? MAP_SIZE : SAMPLE_BYTES >> 20);
  const perBand = Math.max(1, Math.floor((1 << 20) / (columns * itemSize)));
  const perStep = Math.max(1, Math.floor(STEP_BYTES / (columns * itemSize)));
  const sums = new Float64Array(height * width);
  const counts = new Float64Array(height * width);
  const add = (first, stop) => {
    for (let row = first; row < stop;) {
      const {box, taken} = boxOfRows(shape, matrix, row, Math.min(stop - row, perStep));
      const numbers = numbersOf(box);
      for (let i = 0; i < numbers.length; i += 1) {
        const at = row + Math.floor(i / columns);
        const band = Math.ceil(((at + 1) * height) / rows) - 1;
        const cell = band * width + Math.floor(((i % columns) * width) / columns);
        sums[cell] += numbers[i];
        counts[cell] += 1;
      }
      row += taken;
    }
  };
  // All rows together where all are read: a band may be a small part of a block.
  if (isWhole) add(0, rows);
  else {
    for (let band = 0; band < height; band += 1) {
      const first = Math.floor((band * rows) / height);
      add(first, Math.min(Math.floor(((band + 1) * rows) / height), first + perBand));
    }
  }
  return {
    rows, columns, height, width, cells: sums.map((sum, i) => sum / counts[i]), held: counts.map((held) => Number(held > 0)), isWhole,
  };
}

/** Elements as numbers, of complex ones the real parts. */
function realNumbers(bytes, dtype) {
  const numbers = toNumbers(bytes, dtype);
  return dtype.name.startsWith('complex') ? numbers.filter((_, i) => i % 2 === 0) : numbers;
}

/** One open checkpoint and the answers to questions about it. */
export class Session {
  /** @type {Map<string, string> | null} names of atoms by the labels of their slots */
  #byLabel = null;

  /**
   * @param {import('../lib/stores.mjs').Store & {fetched: {requests: number, bytes: number}}} store
   * @param {Record<string, Record<string, object>>} [previews] by atom and slot, of a page that carries no tensors
   */
  constructor(store, previews = {}) {
    this.store = store;
    this.previews = new Map(Object.entries(previews));
    this.checkpoint = new Checkpoint(store);
  }

  /** What the page carries of a slot itself. */
  #preview(atom, slot) {
    if (this.previews.size === 0) return null;
    const found = this.previews.get(atom) ?? this.previews.get(this.checkpoint.find(atom).atom.name);
    return found && Object.hasOwn(found, slot) ? found[slot] : null;
  }

  /** The bytes of a box: out of the preview if the page has no more. */
  #bytes(atom, slot, box) {
    const preview = this.#preview(atom, slot);
    if (!preview) return readBox(this.checkpoint, atom, slot, box).bytes;
    const {shape} = preview;
    if (!fits(box, shape)) {
      throw new UcpError('UCP-E-MISSING', '', `this page carries the first ${shape.join(' × ')} elements: drop the checkpoint on the page to see others`);
    }
    const {slot: {dtype}} = this.checkpoint.slot(atom, slot);
    const source = fromBase64(preview.elements);
    const bytes = new Uint8Array(product(box.shape) * dtype.size);
    const strides = stridesOf(shape);
    copyBox({bytes, start: 0, strides: stridesOf(box.shape)}, {bytes: source, start: dot(box.offset, strides), strides}, box.shape, dtype.size);
    return bytes;
  }


  /** What is known from the root document alone. */
  get root() {
    const {root} = this.checkpoint;
    return {
      digest: root.document.get('digest'),
      step: root.step,
      producer: jsonOf(root.document.get('producer')),
      storage: root.storage,
      chunkBytes: root.chunkBytes,
      readFeatures: root.readFeatures,
      meshes: root.meshes,
      layouts: root.layouts,
      parts: root.parts.length,
      atoms: root.parts.reduce((sum, part) => sum + part.atoms, 0),
      annotations: jsonOf(root.document.get('annotations')),
    };
  }

  /**
   * The atoms of a part with their slots, as JSON text: of many objects that is faster between threads.
   * @param {{part: number, contents?: boolean}} what contents: with content digests, to compare
   */
  part({part, contents = false}) {
    return JSON.stringify(this.checkpoint.readAtomsOfPart(part).map((atom) => atomRow(atom, contents)));
  }

  /** What a run shows of one of its checkpoints: bytes are null in storage plain, where no document has them. */
  summary() {
    const {root, packs} = this.checkpoint;
    const annotations = root.document.get('annotations');
    const metrics = plain(annotations?.get(METRICS));
    const cadence = plain(annotations?.get(CADENCE));
    const sum = (list) => list.reduce((total, {length}) => total + length, 0);
    return {
      step: root.step,
      bytes: packs && sum(packs),
      shared: packs && sum(packs.filter(({shared}) => shared)),
      packs: packs ?? [],
      hasRows: root.readFeatures.includes('row-overwrite'),
      cadence: cadence instanceof Object && typeof cadence.reason === 'string' ? {every: cadence.every, reason: cadence.reason} : null,
      log: plain(root.log),
      metrics: Object.entries(metrics instanceof Object ? metrics : {}).filter(([, value]) => typeof value === 'number'),
    };
  }

  /** Values and optimizers of the state document, in words, and its blobs. */
  state() {
    const {state} = this.checkpoint;
    return {
      values: [...state?.get('values') ?? []].map(([name, value]) => [name, inWords(value)]),
      optimizers: [...state?.get('optimizers') ?? []].map(([name, optimizer]) => [
        name, optimizer.get('groups').map((group) => ({
          atoms: group.get('atoms').length,
          options: [...group.get('options')].map(([option, value]) => [option, inWords(value)]),
        }))]),
      blobs: [...state?.get('blobs') ?? []].map(([name, blob]) => ({
        name, mediaType: blob.get('media_type'), length: blob.get('object').get('length'),
      })),
      images: [...state?.get('images')?.keys() ?? []],
    };
  }

  /** Elements of a box as texts, in row-major order. */
  window({atom, slot, offset, shape}) {
    if (product(shape) > MAX_CELLS) throw new UcpError('UCP-E-LIMIT', '', `a window of more than ${MAX_CELLS} elements`);
    const {slot: found} = this.checkpoint.slot(atom, slot);
    return {shape, texts: toTexts(this.#bytes(atom, slot, {offset, shape}), found.dtype)};
  }

  /** Count, range, mean and a histogram of all elements; reads the slot once, chunk by chunk. */
  statistics({atom, slot}) {
    const reader = readerOf(this.checkpoint, atom, slot);
    const summary = new Summary();
    for (const {bytes, length} of reader.sequence()) {
      if (bytes) summary.add(toNumbers(bytes, reader.slot.dtype));
      else summary.addZeros((length / reader.slot.dtype.size) * (reader.slot.dtype.name.startsWith('complex') ? 2 : 1));
    }
    return summary.result();
  }

  /**
   * A heat map: the tensor as a matrix, in cells of which each shows the mean of what was read of it.
   * Of a tensor above 8 MiB it reads as many rows of each band as fit into a block of 1 MiB, and says so.
   */
  heatMap({atom, slot, whole = false}) {
    const {slot: {shape, dtype}} = this.checkpoint.slot(atom, slot);
    const {map} = this.#preview(atom, slot) ?? {};
    if (map) {
      const codes = fromBase64(map.cells);
      return {
        ...map, held: Float64Array.from(codes, (code) => Number(code > 0)), cells: Float64Array.from(codes, (code) => (
          code < 2 ? NaN : ((code - 2) / 126.5 - 1) * map.most)),
      };
    }
    return mapOf(shape, dtype.size, (box) => realNumbers(readBox(this.checkpoint, atom, slot, box).bytes, dtype), whole);
  }

  /**
   * What changed against another checkpoint: a heat map of absolute differences, and how many elements of those that
   * were read are different.
   * @param {{atom: string, slot: string, whole?: boolean}} what
   * @param {Session} other
   */
  difference({atom, slot, whole = false}, other) {
    const {slot: {shape, dtype}} = this.checkpoint.slot(atom, slot);
    let read = 0;
    let changed = 0;
    let most = 0;
    const numbersOf = (box) => {
      const [mine, others] = [this, other].map(({checkpoint}) => readBox(checkpoint, atom, slot, box).bytes);
      const [numbers, before] = [mine, others].map((bytes) => realNumbers(bytes, dtype));
      read += numbers.length;
      return numbers.map((number, i) => {
        const at = i * dtype.size;
        let byte = 0;
        while (byte < dtype.size && mine[at + byte] === others[at + byte]) byte += 1;
        if (byte === dtype.size) return 0;
        changed += 1;
        const difference = Math.abs(number - before[i]);
        most = Math.max(most, Number.isNaN(difference) ? 0 : difference);
        return difference;
      });
    };
    return {
      map: mapOf(shape, dtype.size, numbersOf, whole), read, changed, most,
    };
  }

  /** Which coordinates of the mesh hold which boxes of a slot; null where nothing says so. */
  layout({atom, slot}) {
    const {slot: found} = this.checkpoint.slot(atom, slot);
    const layout = this.checkpoint.layoutOf(found);
    if (layout === null) return null;
    const {mesh, steps} = layout;
    const count = countCoordinates(mesh);
    const holders = [];
    let pieces = 0;
    for (const coordinate of coordinatesOf(mesh)) {
      const local = lowerToLogical(mesh, steps, found.shape, coordinate, found.place);
      pieces += local.pieces.length;
      if (pieces > MAX_PIECES) break;
      holders.push({
        coordinate,
        shape: local.shape,
        boxes: local.pieces.map(({offset, shape}) => ({offset, shape})),
      });
    }
    return {
      axes: mesh.axes, steps: steps.map(stepText), shape: found.shape, count, holders,
    };
  }

  /** What ranks send if a slot goes to the layout of a JSON text. */
  plan({atom, slot, layout}) {
    return planOfSlot(this.checkpoint, this.checkpoint.slot(atom, slot).slot, layout);
  }

  /** What ranks send if all slots keep their layouts over meshes of other sizes. */
  wholePlan({sizes}) {
    return planOfAll(this.checkpoint, sizes);
  }

  /**
   * What ranks send if all slots go to the layouts that another checkpoint has for them.
   * @param {object} _
   * @param {Session} other
   */
  planTo(_, other) {
    return planToOther(this.checkpoint, other.checkpoint);
  }

  /** The parameters of a pattern document. */
  patternParameters({patterns}) {
    return parametersOf(patterns);
  }

  /** What ranks send if all slots go to the layouts of a pattern document. */
  patternPlan({patterns, settings, label}) {
    return planByPatterns(this.checkpoint, patterns, settings, label);
  }

  /** Where the bytes of a slot lie: objects, offsets and lengths of its first segments, and how long the packs are. */
  places({atom, slot}) {
    const reader = readerOf(this.checkpoint, atom, slot);
    const {table} = reader;
    const places = [];
    let segments = 0;
    for (let index = 0; index < reader.slot.grid.total; index += 1) {
      const [first, stop] = reader.segmentsOf(index);
      segments += stop - first;
      for (let segment = first; segment < stop && places.length < MAX_PLACES; segment += 1) {
        places.push({
          chunk: index, key: reader.containerKey(index, segment), offset: table.offsets[segment], length: table.lengths[segment],
        });
      }
    }
    const used = new Set(places.map(({key}) => key));
    return {
      content: reader.slot.content,
      chunks: reader.slot.grid.total,
      chunkShape: reader.slot.grid.chunk,
      segments,
      places,
      objects: (this.checkpoint.packs ?? []).filter(({key}) => used.has(key)).map(({key, length}) => [key, length]),
    };
  }

  /** Problems of the checkpoint, with the atom that each is about where it is about one; level integrity reads every byte. */
  problems({level}) {
    const problems = validate(this.store, level);
    return problems.map((problem) => ({...problem, atom: this.#atomOf(problem)}));
  }

  /** The atom at the place of a problem: in a part of the index, or by a block of a slot. */
  #atomOf({at, detail}) {
    const [, key, number] = /^([^#]*)#\/atoms\/(\d+)(?:\/|$)/.exec(at) ?? [];
    const [, label] = /^block \d+ of (.*), chunk \d+$/s.exec(detail) ?? [];
    if (key === undefined && label === undefined) return null;
    try {
      const part = this.checkpoint.root.parts.findIndex(({index}) => index.key === key);
      if (part >= 0) return this.checkpoint.atomsOfPart(part)[Number(number)]?.name ?? null;
      return label === undefined ? null : this.#labels.get(label) ?? null;
    } catch (error) {
      if (!(error instanceof UcpError)) throw error;
      return null; // what is damaged may be the index itself
    }
  }

  /** The same, made when they are wanted. */
  get #labels() {
    this.#byLabel ??= new Map(this.checkpoint.atoms.flatMap(({name, slots}) => slots.map(({label}) => [label, name])));
    return this.#byLabel;
  }
}
