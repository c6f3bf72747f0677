import assert from 'node:assert/strict';
import {test} from 'node:test';
import {Problems} from '../lib/errors.mjs';
import {parse} from '../lib/json.mjs';
import {checkValue, floatText} from '../lib/values.mjs';

/** The code that a value is refused with, or null. */
function verdict(text) {
  const problems = new Problems();
  const value = parse(Buffer.from(text), 'x');
  checkValue(value, 'x', '', problems);
  return problems.list[0]?.code ?? null;
}

const nested = (depth) => `${'['.repeat(depth)}${']'.repeat(depth)}`;
const typed = (type, value) => `{"$object":{"type":"${type}","value":${value}}}`;

const good = [
  'null', '3', '0.5', '{"a":{"b":[]}}', '{"":1}', nested(56),
  '{"$float":"nan"}', '{"$float":"-0.0"}', '{"$float":"1200.0"}', '{"$float":"1e+16"}', '{"$float":"-1.5e+300"}',
  '{"$float":"1.7976931348623157e+308"}', '{"$int":"9007199254740992"}', '{"$int":"-9007199254740992"}',
  '{"$bytes":"aGk="}', '{"$bytes":""}', '{"$complex":[0.5,{"$float":"1.0"}]}', '{"$tuple":[1,[2]]}',
  '{"$set":[1,2]}', '{"$set":[10,9]}', '{"$frozenset":["a",{"$tuple":[1]}]}', '{"$set":[]}',
  '{"$dict":[[1,2],["a",3]]}', '{"$dict":[["$a",1]]}', '{"$set":[null,true]}',
  '{"$array":{"dtype":"int4","shape":[2],"data":"AQ8="}}', '{"$tensor":{"dtype":"float32","shape":[0,3],"data":""}}',
  typed('any.Thing', '{"a":1}'), typed('collections.OrderedDict', '[["a",1],[2,[]]]'),
  typed('datetime.datetime', '"2024-02-29T23:59:59.000001+05:30"'), typed('datetime.date', '"0001-01-01"'),
  typed('datetime.time', '"00:00:00"'), typed('datetime.timedelta', '{"$tuple":[-1,86399,0]}'),
  typed('numpy.scalar', '{"$tuple":["float32",{"$bytes":"AAAAAA=="}]}'),
  typed('pathlib.PosixPath', '"//a/b"'), typed('pathlib.PureWindowsPath', '"C:\\\\a"'),
  typed('pathlib.PosixPath', '"a//b"'), typed('pathlib.PosixPath', '""'),
];
const bad = {
  'UCP-E-LIMIT': [nested(57), `{"$tuple":${nested(56)}}`, `[${nested(56)},{"$what":1}]`],
  'UCP-E-VALUE': [
    '9007199254740992.0', '-1e300', '{"a":1e16}',
    '{"$what":1}', '{"$tuple":[],"a":1}', '{"$float":"1"}', '{"$float":"1.5"}', '{"$float":"+inf"}', '{"$int":"5"}',
    '{"$int":"9007199254740991"}', '{"$bytes":"aGk"}', '{"$bytes":"aGl="}', '{"$bytes":"aG k="}', '{"$complex":[1,0.5]}',
    '{"$dict":[["a",1]]}', '{"$dict":[]}', '{"$set":[[1]]}', '{"$set":[{"$set":[]}]}', `{"$int":"1${'0'.repeat(4096)}"}`,
    typed('a-b', '1'), typed('a\\n', '1'), '{"a":{"$tuple":1}}',
    '{"$float":"9007199254740993.0"}', '{"$float":"1.79769313486231571e+308"}', '{"$set":[2,1]}', '{"$set":[9,10]}',
    '{"$set":[1,true]}', '{"$set":[0,false]}', '{"$dict":[[1,0],[{"$float":"1.0"},0]]}',
    '{"$dict":[[0,0],[{"$complex":[{"$float":"-0.0"},{"$float":"0.0"}]},0]]}',
    '{"$dict":[[{"$tuple":[1]},0],[{"$tuple":[true]},0]]}', '{"$dict":[[{"$int":"10000000000000000"},0],[{"$float":"1e+16"},0]]}',
    '{"$dict":[[1,0],["a",0],["a",0]]}', '{"$array":{"dtype":"int4","shape":[1],"data":"EA=="}}',
    '{"$array":{"dtype":"int9","shape":[],"data":"AA=="}}', '{"$array":{"dtype":"int8","shape":[2],"data":"AA=="}}',
    '{"$array":{"dtype":"int8","shape":[9007199254740991,2,0],"data":""}}',
    typed('collections.OrderedDict', '[["a",1],["a",1]]'), typed('collections.OrderedDict', '[[[],1]]'),
    typed('datetime.datetime', '"2023-02-29T00:00:00"'), typed('datetime.datetime', '"2023-01-01T00:00:00.000000"'),
    typed('datetime.time', '"00:00:00-00:00"'), typed('datetime.time', '"24:00:00"'), typed('datetime.date', '"0000-01-01"'),
    typed('datetime.timedelta', '{"$tuple":[0,86400,0]}'), typed('datetime.timedelta', '[0,0,0]'),
    typed('numpy.scalar', '{"$tuple":["float32",{"$bytes":"AAAA"}]}'), typed('pathlib.PosixPath', '1'),
    typed('datetime.timedelta', '{"$tuple":[1000000000,0,0]}'),
  ],
};

test('canonical values are accepted', () => {
  for (const text of good) assert.equal(verdict(text), null, text);
});
for (const [code, texts] of Object.entries(bad)) {
  test(`other values are refused with ${code}`, () => {
    for (const text of texts) assert.equal(verdict(text), code, text);
  });
}

test('texts of floats', () => {
  const expected = {
    '1.0': 1, '-0.0': -0, '1200.0': 1200, '1e+16': 1e16, '-1.5e+300': -1.5e300, '1e+21': 1e21, '1.2345e+20': 1.2345e20,
    '9999999999999998.0': 9999999999999998, nan: NaN, '-inf': -Infinity,
  };
  for (const [text, number] of Object.entries(expected)) assert.equal(floatText(number), text);
});

test('a value of many megabytes of base64 is checked', () => {
  assert.equal(verdict(`{"$bytes":"${'A'.repeat(4 << 22)}"}`), null);
});
