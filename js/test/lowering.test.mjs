// The vectors of lowering that the suite keeps in one file (`conformance/lowering.json`).

import assert from 'node:assert/strict';
import {existsSync, readFileSync} from 'node:fs';
import {test} from 'node:test';
import {UcpError, lower} from '../node/index.mjs';
import {viewed} from '../lib/views.mjs';

const file = new URL('../../conformance/lowering.json', import.meta.url);
const vectors = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : null;

test('layouts lower to the pieces of the vectors', {skip: vectors === null && 'there are no vectors here'}, () => {
  for (const {name, mesh, steps, shape, place, view, locals} of vectors.good) {
    assert.deepEqual(lower(mesh, steps, shape, place), locals, name);
    assert.deepEqual(viewed(shape, steps, '').view, view, name);
  }
});

test('layouts are refused with the codes of the vectors', {skip: vectors === null && 'there are no vectors here'}, () => {
  for (const {case: name, mesh, steps, shape, place, codes} of vectors.bad) {
    assert.throws(() => lower(mesh, steps, shape, place), (error) => error instanceof UcpError && codes.includes(error.code), name);
  }
});
