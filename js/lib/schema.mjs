/**
 * JSON Schema (draft 2020-12), as far as the schemas of the format use it.
 *
 * The published schemas are the source of truth: `schemas.mjs` has their text as it is.
 * Schemas compile to closures once. `anyOf` and the like are decided without collecting problems
 * and stop at the first failure, with cheap keywords first, so that the recursive schema of tagged
 * values takes time linear in the size of the document.
 */

import {isBase64} from '#platform';
import {canonicalText, place, token} from './json.mjs';
import SCHEMAS from './schemas.mjs';

/**
 * Reports a violation; returns true to go on collecting, false to stop.
 * @callback Report
 * @param {string} pointer
 * @param {string} detail
 * @returns {boolean}
 */
/** @typedef {(value: any, pointer: string, report: Report) => boolean} Check true if valid */
/** @typedef {boolean | Record<string, any>} Schema */

const VALUE = 'value.schema.json';

const quiet = () => false;
const accept = () => true;

/** @type {Map<string, {check: Check}>} */
const compiled = new Map();

/**
 * @param {string} reference
 * @param {string} base
 * @returns {Check}
 */
function resolve(reference, base) {
  const [file, pointer = ''] = reference.split('#');
  const name = file === '' ? base : file;
  const id = `${name}#${pointer}`;
  if (!compiled.has(id)) {
    /** @type {{check: Check}} */
    const entry = {check: accept};
    compiled.set(id, entry); // before compiling: schemas refer to themselves
    /** @type {Record<string, any>} */
    const files = SCHEMAS;
    let schema = files[name];
    for (const step of pointer.split('/').slice(1)) schema = schema[step];
    entry.check = compile(schema, name);
  }
  const entry = /** @type {{check: Check}} */ (compiled.get(id));
  return (value, pointer_, report) => entry.check(value, pointer_, report);
}

/** @type {Record<string, (value: unknown) => boolean>} */
const TYPES = {
  null: (value) => value === null,
  boolean: (value) => typeof value === 'boolean',
  string: (value) => typeof value === 'string',
  number: (value) => typeof value === 'number',
  integer: (value) => Number.isInteger(value),
  array: Array.isArray,
  object: (value) => value instanceof Map,
};

const BASE64 = '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$';

/**
 * The base64 pattern repeats a group over text of up to 256 MiB, for which the engine's stack of
 * backtracking positions does not suffice; decoding and encoding again decides the same.
 * @param {string} source
 * @returns {(text: string) => boolean}
 */
function pattern(source) {
  if (source === BASE64) return isBase64;
  const expression = new RegExp(source, 'u');
  return (text) => expression.test(text);
}

/**
 * @param {string} text
 * @param {number} limit
 */
const codePoints = (text, limit) => {
  if (text.length <= limit) return text.length;
  if (text.length > 2 * limit) return text.length;
  return [...text].length;
};

/**
 * Runs a check on each of many values, to the end or to the first failure.
 * @param {Iterable<[string, unknown]>} entries
 * @param {Report} report
 * @param {(name: string, value: unknown) => boolean} checkOne
 */
function every(entries, report, checkOne) {
  let valid = true;
  for (const [step, value] of entries) {
    if (!checkOne(step, value)) {
      valid = false;
      if (report === quiet) return false;
    }
  }
  return valid;
}

/**
 * The same for elements of a list, from one on.
 * @template T
 * @param {T[]} list
 * @param {number} from
 * @param {Report} report
 * @param {(element: T, i: number) => boolean} checkOne
 */
function everyElement(list, from, report, checkOne) {
  let valid = true;
  for (let i = from; i < list.length; i += 1) {
    if (!checkOne(list[i], i)) {
      valid = false;
      if (report === quiet) return false;
    }
  }
  return valid;
}

/**
 * The pointer to a member or an element; none where nobody is told of it.
 * @param {string} at
 * @param {string | number} step
 * @param {Report} report
 */
const below = (at, step, report) => (report === quiet ? '' : at + token(step));

/**
 * @param {Check} check
 * @param {unknown} value
 */
const valid = (check, value) => check(value, '', quiet);

/**
 * Keywords by name; each makes a check from its value, its schema and the schema's file.
 * Their order here is the order of evaluation.
 * @type {Record<string, (argument: any, schema: any, base: string) => Check>}
 */
const KEYWORDS = {
  type(types) {
    const tests = [types].flat().map((name) => TYPES[name]);
    return (value, at, report) => tests.some((test) => test(value))
      || report(at, `is not of type ${[types].flat().join(' or ')}`);
  },
  const: (expected) => (value, at, report) => value === expected
    || report(at, `is not ${JSON.stringify(expected)}`),
  enum: (choices) => (value, at, report) => choices.includes(value)
    || report(at, `is none of ${choices.join(', ')}`),
  required: (names) => (value, at, report) => !(value instanceof Map)
    || everyElement(names, 0, report, (name) => value.has(name)
      || report(at, `has no member ${name}`)),
  minimum: (limit) => (value, at, report) => typeof value !== 'number' || value >= limit
    || report(at, `is below ${limit}`),
  maximum: (limit) => (value, at, report) => typeof value !== 'number' || value <= limit
    || report(at, `is above ${limit}`),
  minLength: (limit) => (value, at, report) => typeof value !== 'string'
    || codePoints(value, limit) >= limit || report(at, `is shorter than ${limit}`),
  maxLength: (limit) => (value, at, report) => typeof value !== 'string'
    || codePoints(value, limit) <= limit || report(at, `is longer than ${limit}`),
  pattern(source) {
    const test = pattern(source);
    return (value, at, report) => typeof value !== 'string' || test(value)
      || report(at, `does not match ${source}`);
  },
  minItems: (limit) => (value, at, report) => !Array.isArray(value) || value.length >= limit
    || report(at, `has fewer than ${limit} elements`),
  maxItems: (limit) => (value, at, report) => !Array.isArray(value) || value.length <= limit
    || report(at, `has more than ${limit} elements`),
  minProperties: (limit) => (value, at, report) => !(value instanceof Map) || value.size >= limit
    || report(at, `has fewer than ${limit} members`),
  propertyNames(schema, _, base) {
    const check = compile(schema, base);
    return (value, at, report) => !(value instanceof Map)
      || every(value, report,
        (name) => valid(check, name) || report(at, `has a member ${JSON.stringify(name)}`));
  },
  // Malformed values have a code of their own (UCP-R-023): whoever applies a schema that refers to
  // values applies theirs to each of them.
  $ref: (reference, _, base) => (reference === VALUE ? accept : resolve(reference, base)),
  properties(schemas, _, base) {
    const checks = Object.entries(schemas).map(([name, schema]) => /** @type {[string, Check]} */ ([name, compile(schema, base)]));
    return (value, at, report) => !(value instanceof Map)
      || everyElement(checks, 0, report, ([name, check]) => !value.has(name)
        || check(value.get(name), below(at, name, report), report));
  },
  additionalProperties(schema, {properties = {}}, base) {
    const check = schema === false ? null : compile(schema, base);
    return (value, at, report) => !(value instanceof Map)
      || every(value, report, (name, member) => {
        if (Object.hasOwn(properties, name)) return true;
        if (check === null) return report(at, `has an unknown member ${JSON.stringify(name)}`);
        return check(member, below(at, name, report), report);
      });
  },
  prefixItems(schemas, _, base) {
    /** @type {Check[]} */
    const checks = schemas.map((/** @type {Schema} */ schema) => compile(schema, base));
    return (value, at, report) => !Array.isArray(value)
      || everyElement(checks.slice(0, value.length), 0, report,
        (check, i) => check(value[i], below(at, i, report), report));
  },
  items(schema, {prefixItems = []}, base) {
    const check = compile(schema, base);
    return (value, at, report) => !Array.isArray(value)
      || everyElement(value, prefixItems.length, report,
        (element, i) => check(element, below(at, i, report), report));
  },
  contains(schema, _, base) {
    const check = compile(schema, base);
    return (value, at, report) => !Array.isArray(value)
      || value.some((element) => valid(check, element)) || report(at, 'lacks a needed element');
  },
  uniqueItems: () => (value, at, report) => !Array.isArray(value)
    || new Set(value.map(canonicalText)).size === value.length || report(at, 'has equal elements'),
  allOf(schemas, _, base) {
    /** @type {Check[]} */
    const checks = schemas.map((/** @type {Schema} */ schema) => compile(schema, base));
    return (value, at, report) => everyElement(checks, 0, report, (check) => check(value, at, report));
  },
  anyOf(schemas, _, base) {
    /** @type {Check[]} */
    const checks = schemas.map((/** @type {Schema} */ schema) => compile(schema, base));
    return (value, at, report) => checks.some((check) => valid(check, value))
      || report(at, 'matches none of the allowed forms');
  },
  not(schema, _, base) {
    const check = compile(schema, base);
    return (value, at, report) => !valid(check, value) || report(at, 'has a forbidden form');
  },
  if(schema, {then: yes = true, else: no = true}, base) {
    const [test, ifTrue, ifFalse] = [schema, yes, no].map((part) => compile(part, base));
    return (value, at, report) => (valid(test, value) ? ifTrue : ifFalse)(value, at, report);
  },
};

/** Keywords that say nothing about values, or that another keyword handles. */
const SILENT = new Set(['$schema', '$id', '$defs', 'title', 'description', 'default', 'then', 'else']);

/**
 * @param {Schema} schema
 * @param {string} base
 * @returns {Check}
 */
function compile(schema, base) {
  if (schema === true || schema === false) return schema ? accept : () => false;
  for (const name of Object.keys(schema)) {
    if (!Object.hasOwn(KEYWORDS, name) && !SILENT.has(name)) {
      throw new Error(`${base} uses the keyword ${name}, which is not implemented`);
    }
  }
  const checks = Object.entries(KEYWORDS)
    .filter(([name]) => Object.hasOwn(schema, name))
    .map(([name, keyword]) => keyword(schema[name], schema, base));
  if (checks.length === 1) return checks[0];
  return (value, at, report) => everyElement(checks, 0, report, (check) => check(value, at, report));
}

/**
 * Checks a document against its schema (UCP-R-014).
 * @param {string} name `root`, `index`, ..., perhaps with the pointer to a definition in it
 * @param {import('./json.mjs').Json} value
 * @param {string} key of the document, for places
 * @param {import('./errors.mjs').Problems} problems
 * @param {string} [code]
 * @param {string} [start] pointer to the value
 * @returns {boolean} whether it is valid
 */
export function checkSchema(name, value, key, problems, code = 'UCP-E-SCHEMA', start = '') {
  const [file, pointer = ''] = name.split('#');
  const check = resolve(`${file}.schema.json#${pointer}`, '');
  // Without places first: documents are mostly valid, and telling places of everything takes as long again.
  return check(value, start, quiet) || check(value, start, (pointer, detail) => {
    problems.add(code, place(key, pointer), detail);
    return false;
  });
}
