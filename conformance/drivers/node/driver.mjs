#!/usr/bin/env node
/**
 * Speaks the driver protocol on standard input and output.
 *
 * Requests are parsed like documents, but deeper: the tagged values within must stay as they are.
 */

import {createInterface} from 'node:readline';
import {
  closeSync, ftruncateSync, openSync, readFileSync, writeFileSync, writeSync,
} from 'node:fs';
import {Unsupported, UcpError} from '../../../js/lib/errors.mjs';
import {parse, plain} from '../../../js/lib/json.mjs';
import {DTYPES} from '../../../js/lib/dtypes.mjs';
import {requireRestored} from '../../../js/lib/images.mjs';
import {product} from '../../../js/lib/boxes.mjs';
import {readBox, readerOf, readLocals} from '../../../js/lib/read.mjs';
import {
  beginEpoch, fileSource, localsSource, lower, open, openLog, replay, rewrite, validate, validateLog, write,
} from '../../../js/node/index.mjs';
import {WRITTEN} from '../../../js/node/compress.mjs';

const REQUEST_DEPTH = 512;

/** Runs a function on an open checkpoint. */
function withCheckpoint(path, use) {
  const checkpoint = open(path);
  try {
    return use(checkpoint);
  } finally {
    checkpoint.close();
  }
}

/** JSON text with Maps as objects; unlike documents, replies may hold ordinary objects. */
const encode = (value) => JSON.stringify(value, (_, member) => (
  member instanceof Map ? Object.fromEntries(member) : member));

/** Writes a whole tensor; zero entries become holes. */
function writeTensor(reader, path) {
  const fd = openSync(path, 'w');
  try {
    let total = 0;
    for (const {bytes, offset, length} of reader.sequence()) {
      for (let done = 0; bytes && done < length;) {
        done += writeSync(fd, bytes, done, length - done, offset + done);
      }
      total = offset + length;
    }
    ftruncateSync(fd, total);
  } finally {
    closeSync(fd);
  }
}

function slotInput(slot) {
  const {
    dtype, shape, in: whole, ins, mesh, steps, place,
  } = slot;
  const layout = mesh ? {mesh, steps, place} : null;
  return {
    dtype,
    shape,
    layout,
    open({dtype: type}) {
      if (whole !== undefined) return fileSource(whole, product(shape) * type.size);
      return localsSource(layout, shape, type,
        ins.map((local) => ({coordinate: local.coordinate, bytes: readFileSync(local.in)})));
    },
  };
}

/** An image as in the state document, and the bytes of its files. */
function imageInput(image) {
  const given = image.get('files');
  const files = given.map((file) => new Map([...file].filter(([member]) => member !== 'in')));
  return {
    image: new Map([...image, ['files', files]]),
    contents: given.map((file) => readFileSync(file.get('in'))),
  };
}

/** What a log has, as far as it counts. */
function described(log) {
  const branch = log.branch().map(({epoch, stop}) => {
    const chains = log.chains(epoch);
    return {
      epoch: epoch.epoch,
      first_step: epoch.first_step,
      stop_step: stop,
      durable_step: Math.min(...chains.map((chain) => chain.stop)),
      batches: chains.map(({batches}) => batches.map((batch) => [batch.first, batch.stop])),
    };
  });
  return {id: log.id, epochs: log.numbers, branch};
}

/** Epochs that this process has begun, by path and number. */
const epochs = new Map();

/** An entry of a step, or elements for a sum, with the bytes of its file. */
const withBytes = ({in: path, ...members}) => ({...members, bytes: readFileSync(path)});

const methods = {
  hello: () => ({
    protocol: 1,
    implementation: {name: 'ucpformat-js', version: '0.1.0', language: 'JavaScript'},
    roles: ['validator', 'reader', 'writer', 'rewriter'],
    format_versions: [0],
    storages: ['plain', 'packed'],
    read_features: ['blosc', 'incremental', 'process-images', 'row-overwrite', 'update-log', 'weight-versions', 'zstd'],
    write_features: [],
    writes_features: ['process-images', 'update-log', 'weight-versions'],
    compressors: ['blosc', 'gzip', 'zstd'],
    writes_compressors: WRITTEN,
    dtypes: [...DTYPES.keys()],
    profiles: ['core', 'buffers', 'views', 'ragged', 'reductions'],
  }),

  validate(params) {
    const path = params.get('path');
    const problems = path.endsWith('.ucplog') ? validateLog(path) : validate(path, params.get('level'));
    for (const {code, at, detail} of problems) process.stderr.write(`${code} ${at}: ${detail}\n`);
    return {problems: problems.map(({code, at}) => ({code, at}))};
  },

  inspect: (params) => withCheckpoint(params.get('path'), (checkpoint) => {
    const {root, atoms, state} = checkpoint;
    const slotEntry = (slot) => [slot.name, {
      dtype: slot.dtype.name,
      shape: slot.shape,
      chunk_shape: slot.grid.chunk,
      layout: checkpoint.layoutOf(slot),
      ...(slot.place && {place: slot.place}),
    }];
    const blobs = [...(state?.get('blobs') ?? [])].map(([name, blob]) => [name, {
      media_type: blob.get('media_type'), length: blob.get('object').get('length'),
    }]);
    return {
      storage: root.storage,
      chunk_bytes: root.chunkBytes,
      step: root.step,
      atoms: atoms.map(({name, key, aliases, slots}) => ({
        name, key, aliases, slots: new Map(slots.map(slotEntry)),
      })),
      values: state?.get('values') ?? {},
      optimizers: state?.get('optimizers') ?? {},
      blobs: new Map(blobs),
    };
  }),

  lower(params) {
    const {mesh, steps, shape, place} = plain(params);
    return {locals: lower(mesh, steps, shape, place)};
  },

  read: (params) => withCheckpoint(params.get('path'), (checkpoint) => {
    const {
      atom, slot, out, box, mesh, steps, outs, place, restored = [],
    } = plain(params);
    if (outs !== undefined) {
      requireRestored(checkpoint.images, restored);
      const locals = readLocals(checkpoint, atom, slot, {mesh, steps, place},
        outs.map((local) => local.coordinate));
      let dtype = checkpoint.slot(atom, slot).slot.dtype.name;
      const done = [];
      for (const local of locals) {
        dtype = local.dtype;
        if (local.bytes) writeFileSync(outs[done.length].out, local.bytes);
        done.push({coordinate: local.coordinate, shape: local.shape});
      }
      return {dtype, locals: done};
    }
    if (box !== undefined) {
      const {dtype, shape, bytes} = readBox(checkpoint, atom, slot, box);
      writeFileSync(out, bytes);
      return {dtype, shape};
    }
    const reader = readerOf(checkpoint, atom, slot);
    writeTensor(reader, out);
    return {dtype: reader.slot.dtype.name, shape: reader.slot.shape};
  }),

  'read-blob': (params) => withCheckpoint(params.get('path'), (checkpoint) => {
    const {mediaType, bytes} = checkpoint.readBlob(params.get('blob'));
    writeFileSync(params.get('out'), bytes);
    return {media_type: mediaType};
  }),

  write(params) {
    if (params.has('base')) throw new Unsupported('base');
    const images = [...(params.get('images') ?? [])].map(([name, image]) => [name, imageInput(image)]);
    const blobs = [...(params.get('blobs') ?? [])].map(([name, blob]) => [name, {
      mediaType: blob.get('media_type'), bytes: readFileSync(blob.get('in')),
    }]);
    return write({
      path: params.get('path'),
      storage: params.get('storage'),
      chunkBytes: params.get('chunk_bytes'),
      step: params.get('step') ?? null,
      atoms: params.get('atoms').map((atom) => ({
        name: atom.get('name'),
        aliases: atom.get('aliases') ?? [],
        slots: new Map([...atom.get('slots')].map(([name, slot]) => [name, {
          ...slotInput(plain(slot)), compressor: slot.get('compressor') ?? null,
        }])),
      })),
      values: params.get('values'),
      optimizers: params.get('optimizers'),
      blobs: new Map(blobs),
      images: new Map(images),
      pipeline: params.get('pipeline'),
    });
  },

  log(params) {
    const log = openLog(params.get('path'));
    try {
      const found = described(log);
      if (!params.has('checkpoint')) return found;
      const options = {allowLoss: params.get('allow_loss') ?? false};
      return withCheckpoint(params.get('checkpoint'), (checkpoint) => {
        const {step, exactness, values} = replay(log, checkpoint, options);
        for (const {atom, out} of plain(params.get('outs') ?? [])) {
          writeFileSync(out, values.get(atom) ?? readBox(checkpoint, atom, 'value').bytes);
        }
        return {...found, recovery: {step, exactness}};
      });
    } finally {
      log.close();
    }
  },

  'begin-epoch': (params) => {
    const path = params.get('path');
    const {epoch: number, first_step: firstStep, ...document} = plain(params);
    const profile = params.get('optimizer').get('profile');
    const optimizer = {type: document.optimizer.type, profile};
    const writer = beginEpoch(path, {...document, number, firstStep, optimizer});
    epochs.set(JSON.stringify([path, writer.epoch.epoch]), writer);
    return {log: writer.epoch.log, epoch: writer.epoch.epoch};
  },

  'write-batch': (params) => {
    const writer = epochs.get(JSON.stringify([params.get('path'), params.get('epoch')]));
    const steps = params.get('steps').map((step) => ({
      options: step.get('options'),
      skipped: step.has('skipped'),
      entries: plain(step.get('entries')).map(withBytes),
    }));
    const sums = plain(params.get('sums') ?? []).map(withBytes);
    const batch = {steps, options: params.get('options'), values: params.get('values'), sums};
    return {durable_step: writer.write(params.get('rank'), batch)};
  },

  rewrite: (params) => rewrite(params.get('source'), params.get('path'), params.get('storage')),

  reset: () => {
    epochs.clear();
    return {};
  },

  shutdown: () => ({}),
};

/** The reply to a request line, without its id. */
function reply(method, line) {
  if (!Object.hasOwn(methods, method)) return {unsupported: {feature: `method ${method}`}};
  try {
    const params = parse(Buffer.from(line), '', {maxDepth: REQUEST_DEPTH}).get('params');
    return {result: methods[method](params ?? new Map())};
  } catch (error) {
    if (error instanceof Unsupported) return {unsupported: {feature: error.feature}};
    if (error instanceof UcpError && error.code === 'UCP-E-FEATURE' && method === 'write') {
      return {unsupported: {feature: error.detail}}; // no refusal of a checkpoint: nothing claimed it
    }
    if (error instanceof UcpError) {
      return {error: {code: error.code, at: error.at, detail: error.detail}};
    }
    process.stderr.write(`${error?.stack ?? error}\n`);
    return {internal: {detail: String(error?.stack ?? error)}};
  }
}

for await (const line of createInterface({input: process.stdin, crlfDelay: Infinity})) {
  if (line.trim() === '') continue;
  const {id, method} = JSON.parse(line);
  const text = `${encode({id, ...reply(method, line)})}\n`;
  const bytes = Buffer.from(text);
  for (let done = 0; done < bytes.length;) {
    try {
      done += writeSync(1, bytes, done);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
  if (method === 'shutdown') break;
}
process.stdin.destroy(); // an open pipe would keep the process
