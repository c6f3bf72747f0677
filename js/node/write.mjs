/**
 * Writing (SPEC section 17.4).
 *
 * The writer holds every document that it makes to the checks that a reader applies, before it
 * writes anything: what it accepts is readable.
 */

import {createHash, randomBytes} from 'node:crypto';
import {Problems, UcpError} from '../lib/errors.mjs';
import {fromPlain, object, stringify} from '../lib/json.mjs';
import {checkSchema} from '../lib/schema.mjs';
import {ContentDigest, DRAFT_DIGEST, sealRoot, sha256} from '../lib/digest.mjs';
import {checkState, Names, readAtoms} from '../lib/documents.mjs';
import {bufferFaults, tensorOf, unlikeInGroup} from '../lib/buffers.mjs';
import {chunkBox} from '../lib/grid.mjs';
import {product} from '../lib/boxes.mjs';
import {unusedBitsAreZero} from '../lib/dtypes.mjs';
import {ROOT_KEY, compareUtf8, foldKey, isAtomKey} from '../lib/names.mjs';
import {checkForm, checkLayout} from '../lib/pieces.mjs';
import {isImageRequired} from '../lib/images.mjs';
import {isInFlight, slotKinds} from '../lib/pipeline.mjs';
import {FORMAT_VERSION, MAX_DOCUMENT, MAX_ROOT} from '../lib/root.mjs';
import {requireWritten} from './compress.mjs';
import {PackedSink, PlainSink} from './sinks.mjs';
import {DirectoryWriter} from './store.mjs';
import {TableBuilder} from '../lib/table.mjs';

const PRODUCER = {name: 'ucp-node', version: '0.1.0'};
const PART_ATOMS = 4096;
const PACK_BYTES = 2 ** 32;

/** @typedef {import('../lib/mesh.mjs').Mesh} Mesh */
/** @typedef {import('../lib/layout.mjs').Step} Step */
/** @typedef {import('../lib/layout.mjs').Place} Place */
/** @typedef {import('../lib/documents.mjs').Atom} Atom */
/** @typedef {import('../lib/documents.mjs').Slot} Slot */
/** @typedef {import('./sources.mjs').Source} Source */

/**
 * @typedef {object} SlotInput
 * @property {string} dtype
 * @property {number[]} shape
 * @property {(slot: Slot) => Source} open
 * @property {{mesh: Mesh, steps: Step[], place?: Place | null} | null} [layout] to be recorded
 * @property {Map<string, any> | null} [compressor]
 * @property {string | null} [content] the digest that its bytes have to have
 * @property {Map<string, any>} [annotations]
 */
/**
 * @typedef {object} AtomInput
 * @property {string} name
 * @property {string} [key] chosen from the name if absent
 * @property {string[]} [aliases]
 * @property {Map<string, any>} [annotations]
 * @property {Map<string, SlotInput>} slots
 */
/**
 * @typedef {object} CheckpointInput
 * @property {string} path
 * @property {'plain' | 'packed'} storage
 * @property {number} chunkBytes
 * @property {number | null} [step]
 * @property {Map<string, any> | null} [log] position in an update log, as the root document has it
 * @property {AtomInput[]} atoms
 * @property {Map<string, any>} [values] tagged values
 * @property {Map<string, any>} [optimizers] as in the state document
 * @property {Map<string, {mediaType: string, bytes: Uint8Array}>} [blobs]
 * @property {Map<string, any>} [annotations] of the root
 * @property {Map<string, any>} [extensions]
 * @property {Map<string, any>} [stateAnnotations]
 * @property {Map<string, any>} [pipeline] as in the state document
 * @property {Map<string, {image: Map<string, any>, contents: Uint8Array[]}>} [images] as there, and bytes of files
 * @property {number} [partAtoms] most atoms of an index part
 * @property {number} [packBytes] length after which a new pack begins
 */
/**
 * @typedef {object} PreparedPart an index part, before its chunks are written
 * @property {Map<string, any>} document
 * @property {Pick<import('../lib/root.mjs').Part, 'first' | 'last' | 'atoms'>} part
 * @property {Atom[]} atoms as they are read from the document
 * @property {AtomInput[]} inputs that they are made of, in the same order
 */

/** Chooses keys of atoms: the name where it can be one, else one that begins like it. */
class AtomKeys {
  #taken = new Set();

  /**
   * @param {string} name
   * @param {string} [wanted]
   */
  choose(name, wanted = name) {
    const hash = createHash('sha256').update(name).digest('hex');
    const stem = name.replace(/[^A-Za-z0-9_-]/g, '-').replace(/^_+/, '').slice(0, 64);
    const candidates = [wanted, `${stem}-${hash.slice(0, 16)}`, hash];
    const key = candidates.find((candidate) => (
      isAtomKey(candidate) && !this.#taken.has(foldKey(candidate))));
    if (!key) throw new UcpError('UCP-E-KEY', '', `no key is left for ${name}`);
    this.#taken.add(foldKey(key));
    return key;
  }
}

/** Meshes and layouts of the root, each once. */
class Layouts {
  /** @type {Mesh[]} */
  meshes = [];
  /** @type {{mesh: number, steps: Step[]}[]} */
  layouts = [];

  /**
   * The index of a value, which is added where it is new.
   * @template T
   * @param {T[]} list
   * @param {T} value
   */
  static #index(list, value) {
    const text = JSON.stringify(value);
    const found = list.findIndex((other) => JSON.stringify(other) === text);
    return found >= 0 ? found : list.push(value) - 1;
  }

  /**
   * The index of a layout.
   * @param {{mesh: Mesh, steps: Step[]}} layout
   */
  add({mesh, steps}) {
    return Layouts.#index(this.layouts, {mesh: Layouts.#index(this.meshes, mesh), steps});
  }
}

/**
 * The atom as it stands in an index part, without content digests.
 * @param {AtomInput} atom
 * @param {string} key
 * @param {Layouts} layouts
 */
function atomDocument(atom, key, layouts) {
  const slots = [...atom.slots].sort(([a], [b]) => compareUtf8(a, b));
  return object({
    name: atom.name,
    key,
    slots: new Map(slots.map(([name, slot]) => [name, object({
      dtype: slot.dtype,
      shape: slot.shape,
      layout: slot.layout ? layouts.add(slot.layout) : undefined,
      place: slot.layout?.place ? fromPlain(slot.layout.place) : undefined,
      compressor: slot.compressor ?? undefined,
      annotations: slot.annotations,
    })])),
    aliases: atom.aliases?.length ? [...atom.aliases] : undefined,
    annotations: atom.annotations,
  });
}

/**
 * Refuses slots that do not go together in their buffers (UCP-D-073 to UCP-D-075).
 * @param {PreparedPart[]} parts
 * @param {Layouts} layouts
 */
function checkBuffers(parts, {meshes, layouts}) {
  if (unlikeInGroup(layouts).length > 0) {
    throw new UcpError('UCP-E-LAYOUT', '', 'layouts of one buffer differ behind the concat');
  }
  const tensors = parts.flatMap(({atoms}) => atoms.flatMap((atom) => atom.slots))
    .flatMap(({place, layout, ...slot}) => (place && layout !== null ? [tensorOf({...slot, place}, layouts[layout], meshes)] : []));
  const [fault] = bufferFaults(tensors);
  if (fault) throw new UcpError('UCP-E-LAYOUT', fault.at, fault.detail);
}

/**
 * What was given for a slot of a document, which is made of just these.
 * @param {AtomInput} atom
 * @param {Slot} slot
 */
const inputOf = (atom, slot) => /** @type {SlotInput} */ (atom.slots.get(slot.name));

/**
 * Refuses an input that would make documents that readers refuse (UCP-S-005).
 * @param {CheckpointInput} input
 */
function prepare(input) {
  const problems = new Problems();
  const layouts = new Layouts();
  const keys = new AtomKeys();
  const names = new Names();
  const sorted = [...input.atoms].sort((a, b) => compareUtf8(a.name, b.name));
  for (const {layout} of sorted.flatMap((atom) => [...atom.slots.values()])) {
    if (layout) checkForm(layout);
  }
  const documents = sorted.map((atom) => atomDocument(atom, keys.choose(atom.name, atom.key), layouts));
  const root = {storage: input.storage, chunkBytes: input.chunkBytes, layouts: layouts.layouts};
  if (!Number.isInteger(root.chunkBytes) || root.chunkBytes < 16 || root.chunkBytes > 2 ** 30) {
    throw new UcpError('UCP-E-LIMIT', '', 'chunk_bytes is not between 16 and 2^30');
  }
  const size = input.partAtoms ?? PART_ATOMS;
  /** @type {PreparedPart[]} */
  const parts = [];
  for (let start = 0; start < documents.length; start += size) {
    const document = new Map([['atoms', documents.slice(start, start + size)]]);
    if (!checkSchema('index', document, '', problems)) problems.raise();
    const inputs = sorted.slice(start, start + size);
    const part = {first: inputs[0].name, last: inputs[inputs.length - 1].name, atoms: inputs.length};
    const atoms = readAtoms(document, {...part, index: {key: ''}}, '', root, problems) ?? [];
    problems.raise();
    names.add(atoms, problems);
    problems.raise();
    atoms.forEach((atom, i) => atom.slots.forEach((slot) => {
      const {layout} = inputOf(inputs[i], slot);
      if (layout) checkLayout(layout.mesh, layout.steps, slot.shape, slot.at, layout.place, slot.dtype);
      requireWritten(slot.compressor, slot.at);
    }));
    parts.push({document, part, atoms, inputs});
  }
  checkBuffers(parts, layouts);
  return {parts, layouts};
}

/**
 * The progress of a root document; undefined where there is none.
 * @param {CheckpointInput} input
 */
function progressOf({step, log}) {
  if (!Number.isInteger(step) && !log) return undefined;
  return object({step: Number.isInteger(step) ? step : undefined, log: log ?? undefined});
}

/**
 * The state document, or null where there is nothing to say; blobs refer to their keys.
 * @param {CheckpointInput} input
 * @param {string} attempt
 */
function stateDocument(input, attempt) {
  const {
    values = new Map(), optimizers = new Map(), blobs = new Map(), images = new Map(),
    stateAnnotations, pipeline,
  } = input;
  const count = values.size + optimizers.size + blobs.size + images.size;
  if (count === 0 && !stateAnnotations && !pipeline) return null;
  let n = 0;
  const references = [...blobs].map(([name, {mediaType, bytes}]) => {
    const reference = {key: `blobs/${attempt}-${n}`, length: bytes.length, digest: sha256(bytes)};
    n += 1;
    return /** @type {[string, Map<string, any>]} */ ([name, fromPlain({media_type: mediaType, object: reference})]);
  });
  /** @type {(file: Map<string, any>, bytes: Uint8Array) => Map<string, any>} */
  const imageFile = (file, bytes) => {
    const reference = {key: `blobs/${attempt}-${n}`, length: bytes.length, digest: sha256(bytes)};
    n += 1;
    return new Map([...file, ['object', fromPlain(reference)]]);
  };
  const named = new Map([...images].map(([name, {image, contents}]) => [
    name, new Map([...image, ['files', /** @type {Map<string, any>[]} */ (image.get('files')).map((file, i) => imageFile(file, contents[i]))]]),
  ]));
  const document = object({
    values, optimizers, blobs: new Map(references), pipeline, annotations: stateAnnotations,
    images: named.size > 0 ? named : undefined,
  });
  const problems = new Problems();
  if (checkSchema('state', document, '', problems)) {
    const kinds = slotKinds(input.atoms.map(({name, slots}) => ({
      name, slots: [...slots].map(([slotName, slot]) => ({...slot, name: slotName})),
    })));
    checkState(document, '', kinds, problems);
  }
  problems.raise();
  return document;
}

/**
 * Writes the chunks of a slot; returns its content digest.
 * @param {PlainSink | PackedSink} sink
 * @param {TableBuilder} table
 * @param {Atom} atom
 * @param {Slot} slot
 * @param {Source} source
 */
function writeSlot(sink, table, atom, slot, source) {
  const content = new ContentDigest();
  const {grid, dtype} = slot;
  let offset = 0;
  for (let index = 0; index < grid.total; index += 1) {
    const box = chunkBox(grid, index);
    const length = product(box.shape) * grid.itemSize;
    const bytes = source.chunk({box, offset, length});
    if (bytes === null) {
      content.updateZeros(length);
    } else {
      if (!unusedBitsAreZero(dtype, bytes)) {
        throw new UcpError('UCP-E-PADDING', slot.at, `${dtype.name} with unused bits that are not zero`);
      }
      content.update(bytes);
    }
    table.addChunk(sink.putChunk(atom, slot, index, box, bytes));
    offset += length;
  }
  sink.finishSlot(atom, slot);
  return content.finish();
}

/**
 * Writes the chunks of a part, and puts content digests into its document.
 * @param {PreparedPart} prepared
 * @param {PlainSink | PackedSink} sink
 */
function writePart({document, atoms, inputs}, sink) {
  const table = new TableBuilder();
  atoms.forEach((atom, i) => {
    const slots = document.get('atoms')[i].get('slots');
    for (const slot of atom.slots) {
      const {open, content: expected = null} = inputOf(inputs[i], slot);
      const source = open(slot);
      try {
        const content = writeSlot(sink, table, atom, slot, source);
        if (expected !== null && content !== expected) { // UCP-W-029
          throw new UcpError('UCP-E-CONTENT', slot.at, `the bytes of ${slot.label} have another digest than recorded`);
        }
        slots.get(slot.name).set('content', content);
      } finally {
        source.close?.();
      }
    }
    sink.finishAtom(atom);
  });
  return table;
}

/**
 * Writes a checkpoint and publishes it.
 * @param {CheckpointInput} input
 * @returns {{digest: string}} the root digest
 */
export function write(input) {
  const attempt = randomBytes(6).toString('hex');
  const {parts, layouts} = prepare(input);
  const state = stateDocument(input, attempt);
  const writer = new DirectoryWriter(input.path);
  const sink = input.storage === 'plain' ? new PlainSink(writer)
    : new PackedSink(writer, attempt, input.packBytes ?? PACK_BYTES);

  /** @type {(key: string, bytes: Uint8Array) => import('../lib/root.mjs').Reference} */
  const put = (key, bytes) => {
    writer.put(key, bytes);
    return {key, length: bytes.length, digest: sha256(bytes)};
  };
  /** @type {(key: string, document: Map<string, any>) => import('../lib/root.mjs').Reference} */
  const putDocument = (key, document) => {
    const bytes = Buffer.from(stringify(document));
    if (bytes.length > MAX_DOCUMENT) throw new UcpError('UCP-E-LIMIT', key, 'a document is too long');
    return put(key, bytes);
  };
  const references = parts.map((prepared, i) => {
    const table = writePart(prepared, sink);
    const {first, last, atoms} = prepared.part;
    const index = putDocument(`index/${attempt}-${i}.json`, prepared.document);
    const tableKey = `index/${attempt}-${i}.bin`;
    return {first, last, atoms, index, table: put(tableKey, table.finish(tableKey))};
  });
  const packList = sink.finish();
  let n = 0;
  const opaque = [...(input.blobs ?? new Map()).values()].map(({bytes}) => bytes);
  for (const {contents} of (input.images ?? new Map()).values()) opaque.push(...contents);
  for (const bytes of opaque) {
    writer.put(`blobs/${attempt}-${n}`, bytes);
    n += 1;
  }
  const features = isImageRequired(state?.get('images')) ? ['process-images'] : [];
  if (isInFlight(input.pipeline)) features.push('weight-versions');
  const slots = parts.flatMap(({atoms}) => atoms.flatMap((atom) => atom.slots));
  if (slots.some(({compressor}) => compressor?.get('name') === 'zstd')) features.push('zstd');
  // The digest comes first: sealing takes the first place where its digits stand.
  const root = object({
    digest: DRAFT_DIGEST,
    format: 'ucp',
    format_version: FORMAT_VERSION,
    read_features: features,
    write_features: [],
    extensions: input.extensions ?? new Map(),
    annotations: input.annotations ?? new Map(),
    producer: fromPlain(PRODUCER),
    progress: progressOf(input),
    storage: input.storage,
    chunk_bytes: input.chunkBytes,
    meshes: fromPlain(layouts.meshes),
    layouts: fromPlain(layouts.layouts),
    packs: packList ? fromPlain(putDocument(`index/${attempt}-packs.json`, packList)) : undefined,
    state: state ? fromPlain(putDocument(`index/${attempt}-state.json`, state)) : undefined,
    parts: fromPlain(references),
  });
  const problems = new Problems();
  checkSchema('root', root, ROOT_KEY, problems);
  problems.raise();
  const bytes = Buffer.from(stringify(root));
  if (bytes.length > MAX_ROOT) throw new UcpError('UCP-E-LIMIT', ROOT_KEY, 'the root is too long');
  const digest = sealRoot(bytes);
  writer.publish(bytes);
  return {digest};
}
