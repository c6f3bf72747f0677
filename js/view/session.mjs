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
import {stepText} from './layouts.mjs';
import {mapOf, realNumbers} from './matrix.mjs';
import {
  parametersOf, planByPatterns, planOfAll, planOfSlot, planToOther,
} from './planning.mjs';
import {Summary} from './summary.mjs';
import {inWords} from './words.mjs';

const MAX_CELLS = 4096;
const MAX_PIECES = 20_000;
const MAX_PLACES = 200;

/** The annotation under which a run keeps metrics. */
const METRICS = 'org.ucpformat.metrics';
/** The one under which it keeps how often it saves, and why. */
const CADENCE = 'org.ucpformat.cadence';

/** @param {import('../lib/json.mjs').Json | undefined} value */
const jsonOf = (value) => (value === undefined || value === null ? null : stringify(value));

/** @typedef {import('./tree.mjs').AtomRow} AtomRow */
/** @typedef {import('./matrix.mjs').HeatMap} HeatMap */
/** @typedef {import('../lib/boxes.mjs').Box} Box */
/** @typedef {{atom: string, slot: string}} Asked the slot that a question is about */
/**
 * What a page carries of a slot: elements of a box at its beginning, and means of cells, a byte each, both in base64.
 * @typedef {{shape: number[], elements: string, map?: Omit<HeatMap, 'cells' | 'held'> & {most: number, cells: string}}} Preview
 */

/**
 * @param {import('../lib/documents.mjs').Atom} atom
 * @param {boolean} hasContents
 * @returns {AtomRow}
 */
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

/** One open checkpoint and the answers to questions about it. */
export class Session {
  /** @type {Map<string, string> | null} names of atoms by the labels of their slots */
  #byLabel = null;

  /**
   * @param {import('../lib/stores.mjs').Store & {fetched: {requests: number, bytes: number}}} store
   * @param {Record<string, Record<string, Preview>>} [previews] by atom and slot, of a page that carries no tensors
   */
  constructor(store, previews = {}) {
    this.store = store;
    this.previews = new Map(Object.entries(previews));
    this.checkpoint = new Checkpoint(store);
  }

  /**
   * What the page carries of a slot itself.
   * @param {string} atom
   * @param {string} slot
   */
  #preview(atom, slot) {
    if (this.previews.size === 0) return null;
    const found = this.previews.get(atom) ?? this.previews.get(this.checkpoint.find(atom).atom.name);
    return found && Object.hasOwn(found, slot) ? found[slot] : null;
  }

  /**
   * The bytes of a box: out of the preview if the page has no more.
   * @param {string} atom
   * @param {string} slot
   * @param {Box} box
   */
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

  /**
   * What a run shows of one of its checkpoints.
   * @returns {import('./run.mjs').Saved}
   */
  summary() {
    const {root, packs} = this.checkpoint;
    const annotations = root.document.get('annotations');
    const metrics = plain(annotations?.get(METRICS));
    const cadence = plain(annotations?.get(CADENCE));
    /** @param {{length: number}[]} list */
    const sum = (list) => list.reduce((total, {length}) => total + length, 0);
    return {
      step: root.step,
      bytes: packs && sum(packs),
      shared: packs && sum(packs.filter(({shared}) => shared)),
      packs: packs ?? [],
      hasRows: root.readFeatures.includes('row-overwrite'),
      cadence: cadence instanceof Object && typeof cadence.every === 'number' && typeof cadence.reason === 'string'
        ? {every: cadence.every, reason: cadence.reason} : null,
      log: plain(root.log),
      metrics: Object.entries(metrics instanceof Object ? metrics : {}).flatMap(([name, value]) => (typeof value === 'number' ? [[name, value]] : [])),
    };
  }

  /**
   * Values and optimizers of the state document, in words, and its blobs.
   * @returns {{values: [name: string, value: string][], optimizers: [name: string, groups: {atoms: number, options: [name: string, value: string][]}[]][],
   *   blobs: {name: string, mediaType: string, length: number}[], images: string[]}}
   */
  state() {
    const {state} = this.checkpoint;
    return {
      values: [...state?.get('values') ?? []].map(([name, value]) => [name, inWords(value)]),
      optimizers: [...state?.get('optimizers') ?? []].map(([name, optimizer]) => [
        name, /** @type {Map<string, any>[]} */ (optimizer.get('groups')).map((group) => ({
          atoms: group.get('atoms').length,
          options: [...group.get('options')].map(([option, value]) => [option, inWords(value)]),
        }))]),
      blobs: [...state?.get('blobs') ?? []].map(([name, blob]) => ({
        name, mediaType: blob.get('media_type'), length: blob.get('object').get('length'),
      })),
      images: [...state?.get('images')?.keys() ?? []],
    };
  }

  /**
   * Elements of a box as texts, in row-major order.
   * @param {Asked & Box} what
   */
  window({atom, slot, offset, shape}) {
    if (product(shape) > MAX_CELLS) throw new UcpError('UCP-E-LIMIT', '', `a window of more than ${MAX_CELLS} elements`);
    const {slot: found} = this.checkpoint.slot(atom, slot);
    return {shape, texts: toTexts(this.#bytes(atom, slot, {offset, shape}), found.dtype)};
  }

  /**
   * Count, range, mean and a histogram of all elements; reads the slot once, chunk by chunk.
   * @param {Asked} what
   */
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
   * @param {Asked & {whole?: boolean}} what
   * @returns {HeatMap}
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
   * @param {Asked & {whole?: boolean}} what
   * @param {Session} other
   */
  difference({atom, slot, whole = false}, other) {
    const {slot: {shape, dtype}} = this.checkpoint.slot(atom, slot);
    let read = 0;
    let changed = 0;
    let most = 0;
    /** @param {Box} box */
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

  /**
   * Which coordinates of the mesh hold which boxes of a slot; null where nothing says so.
   * @param {Asked} what
   * @returns {import('./charts.mjs').Held | null}
   */
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

  /**
   * What ranks send if a slot goes to the layout of a JSON text.
   * @param {Asked & {layout: string}} what
   */
  plan({atom, slot, layout}) {
    return planOfSlot(this.checkpoint, this.checkpoint.slot(atom, slot).slot, layout);
  }

  /**
   * What ranks send if all slots keep their layouts over meshes of other sizes.
   * @param {{sizes: (number | null)[][]}} what of the axes of each mesh
   */
  wholePlan({sizes}) {
    return planOfAll(this.checkpoint, sizes);
  }

  /**
   * What ranks send if all slots go to the layouts that another checkpoint has for them.
   * @param {Session} other
   */
  planTo(other) {
    return planToOther(this.checkpoint, other.checkpoint);
  }

  /**
   * The parameters of a pattern document.
   * @param {{patterns: string}} what
   */
  patternParameters({patterns}) {
    return parametersOf(patterns);
  }

  /**
   * What ranks send if all slots go to the layouts of a pattern document.
   * @param {{patterns: string, settings: [name: string, value: number | number[]][], label: string}} what
   */
  patternPlan({patterns, settings, label}) {
    return planByPatterns(this.checkpoint, patterns, settings, label);
  }

  /**
   * Where the bytes of a slot lie: objects, offsets and lengths of its first segments, and how long the packs are.
   * @param {Asked} what
   */
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
      objects: (this.checkpoint.packs ?? []).filter(({key}) => used.has(key)).map(({key, length}) => ({key, length})),
    };
  }

  /**
   * Problems of the checkpoint, with the atom that each is about where it is about one; level integrity reads every byte.
   * @param {{level: Parameters<typeof validate>[1]}} what
   */
  problems({level}) {
    const problems = validate(this.store, level);
    return problems.map((problem) => ({...problem, atom: this.#atomOf(problem)}));
  }

  /**
   * The atom at the place of a problem: in a part of the index, or by a block of a slot.
   * @param {{at: string, detail: string}} problem
   */
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
