import assert from 'node:assert/strict';
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {readFileSync, writeFileSync} from 'node:fs';
import {join} from 'node:path';
import {createInterface} from 'node:readline';
import {test} from 'node:test';
import {temporary} from '../../../../js/test/helpers.mjs';

test('the driver speaks the protocol', async (t) => {
  const directory = temporary(t);
  const file = (name) => join(directory, name);
  const child = spawn(process.execPath, [new URL('../driver.mjs', import.meta.url).pathname],
    {stdio: ['pipe', 'pipe', 'ignore']});
  const exit = once(child, 'exit');
  t.after(() => child.kill());
  const lines = createInterface({input: child.stdout})[Symbol.asyncIterator]();
  let id = 0;
  const call = async (method, params) => {
    id += 1;
    child.stdin.write(`${JSON.stringify({id, method, params})}\n`);
    const reply = JSON.parse((await lines.next()).value);
    assert.equal(reply.id, id);
    return reply;
  };
  const whole = Buffer.from(Array.from({length: 48}, (_, i) => i));
  writeFileSync(file('w'), whole);
  writeFileSync(file('a0'), whole.subarray(0, 32));
  writeFileSync(file('a1'), whole.subarray(0, 16));
  const mesh = {axes: [{name: 'tp', size: 2}]};
  const steps = [{kind: 'shard', axis: 'tp', dim: 1, rule: 'ceil'}];
  const params = {
    path: file('new'),
    storage: 'packed',
    chunk_bytes: 16,
    step: 12,
    atoms: [{
      name: 'w',
      aliases: ['tied'],
      slots: {
        value: {dtype: 'float32', shape: [4, 3], in: file('w')},
        exp: {
          dtype: 'float32', shape: [4, 3], mesh, steps,
          ins: [{coordinate: [0], in: file('a0')}, {coordinate: [1], in: file('a1')}],
        },
      },
    }],
    values: {epoch: 3, 10: {$float: '1.0'}},
  };
  assert.equal((await call('hello', {protocols: [1]})).result.protocol, 1);
  assert.match((await call('write', params)).result.digest, /^sha256:/);
  assert.equal((await call('write', params)).error.code, 'UCP-E-EXISTS');
  assert.deepEqual((await call('validate', {path: file('new'), level: 'integrity'})).result, {problems: []});
  assert.deepEqual((await call('inspect', {path: file('new')})).result.values, params.values);
  await call('rewrite', {source: file('new'), path: file('plain'), storage: 'plain'});
  assert.deepEqual((await call('read', {path: file('plain'), atom: 'tied', slot: 'value', out: file('o')})).result,
    {dtype: 'float32', shape: [4, 3]});
  assert.deepEqual(readFileSync(file('o')), whole);
  const outs = [{coordinate: [1], out: file('o1')}];
  assert.deepEqual((await call('read', {path: file('plain'), atom: 'w', slot: 'exp', mesh, steps, outs})).result,
    {dtype: 'float32', locals: [{coordinate: [1], shape: [4, 1]}]});
  assert.deepEqual(readFileSync(file('o1')), whole.subarray(0, 16));
  assert.equal((await call('read', {path: file('plain'), atom: 'q', slot: 'v', out: file('o')})).error.code, 'UCP-E-MISMATCH');
  assert.equal((await call('lower', {mesh, steps, shape: [4, 3]})).result.locals.length, 2);
  assert.ok((await call('nonsense', {})).unsupported);
  assert.deepEqual((await call('shutdown', {})).result, {});
  assert.deepEqual(await exit, [0, null]);
});
