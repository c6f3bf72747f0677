/**
 * Templates and parameters (SPEC-PATTERNS sections 1 and 3): JSON in which a string that begins with `=` is an expression.
 */

import {UcpError} from './errors.mjs';
import {parseExpression, valueOf} from './expressions.mjs';
import {isIdentifier} from './globs.mjs';
import {place, token} from './json.mjs';

/** @typedef {import('./json.mjs').Json} Json */
/** @typedef {import('./errors.mjs').Problems} Problems */
/** @typedef {import('./expressions.mjs').Environment} Environment */
/** @typedef {import('./expressions.mjs').Scope} Scope */
/** @typedef {(environment: Environment, made: {items: number}) => Json} Template what it stands for; `made` counts items of `each` */
/** @typedef {{name: string, type: 'integer' | 'integers', default: Template | null, description: string, at: string}} Parameter */

/** Most items that the `each` of one template make (UCP-D-128). */
const MAX_ITEMS = 2 ** 20;
const RESERVED = new Set(['min', 'max', 'shape']);

/**
 * Whether a text may be a name of its own where others are.
 * @param {string} name
 * @param {Scope} scope
 */
export const isFree = (name, scope) => isIdentifier(name) && !RESERVED.has(name) && !scope.has(name);

/**
 * Runs what may be refused, and gives the refusal its place.
 * @template T
 * @param {string} at
 * @param {() => T} run
 * @returns {T}
 */
export function located(at, run) {
  try {
    return run();
  } catch (error) {
    if (error instanceof UcpError && error.at === '') throw new UcpError(error.code, at, error.detail);
    throw error;
  }
}

/**
 * Parses a template that satisfies its schema; expressions that are none go to the problems.
 * @param {Json} value
 * @param {Scope} scope of names that its expressions may use
 * @param {Problems} problems
 * @param {string} key of the document
 * @param {string} pointer
 * @returns {Template}
 */
export function parseTemplate(value, scope, problems, key, pointer) {
  const at = place(key, pointer);
  if (typeof value === 'string' && value.startsWith('=')) {
    const expression = problems.guard(() => located(at, () => parseExpression(value.slice(1), scope)));
    return (environment) => (expression ? located(at, () => valueOf(expression, environment)) : 0);
  }
  if (Array.isArray(value)) {
    const items = value.map((item, i) => parseTemplate(item, scope, problems, key, pointer + token(i)));
    return (environment, made) => items.map((item) => item(environment, made));
  }
  if (!(value instanceof Map)) return () => value;
  if (value.has('each')) return parseEach(value, scope, problems, key, pointer);
  const members = [...value].map(([name, member]) => (
    /** @type {const} */ ([name, parseTemplate(member, scope, problems, key, pointer + token(name))])));
  return (environment, made) => new Map(members.map(([name, member]) => [name, member(environment, made)]));
}

/**
 * @param {Map<string, Json>} value
 * @param {Scope} scope
 * @param {Problems} problems
 * @param {string} key
 * @param {string} pointer
 * @returns {Template}
 */
function parseEach(value, scope, problems, key, pointer) {
  const at = place(key, pointer);
  const index = /** @type {string} */ (value.get('each'));
  if (!isFree(index, scope)) {
    problems.add('UCP-E-PATTERN', `${at}/each`, `${JSON.stringify(index)} cannot name an index: take letters, digits and _, and a name not used yet`);
  }
  /** @param {string} name */
  const member = (name) => /** @type {Json} */ (value.get(name));
  const below = parseTemplate(member('below'), scope, problems, key, `${pointer}/below`);
  const item = parseTemplate(member('item'), new Map([...scope, [index, 'integer']]), problems, key, `${pointer}/item`);
  return (environment, made) => {
    const count = below(environment, made);
    if (typeof count !== 'number' || count < 0) throw new UcpError('UCP-E-PATTERN', at, '`below` has to be an integer from 0 on');
    made.items += count;
    if (made.items > MAX_ITEMS) throw new UcpError('UCP-E-LIMIT', at, `a template makes at most ${MAX_ITEMS} items`);
    return Array.from({length: count}, (_, i) => item(new Map([...environment, [index, i]]), made));
  };
}

/**
 * What a template stands for.
 * @param {Template} template
 * @param {Environment} environment
 */
export const fill = (template, environment) => template(environment, {items: 0});

/**
 * Reads the parameters of a document that satisfies its schema; a default may use those before it.
 * @param {Map<string, Json>[]} values
 * @param {Problems} problems
 * @param {string} key
 * @returns {Parameter[]}
 */
export function parseParameters(values, problems, key) {
  /** @type {Scope} */
  const scope = new Map();
  return values.map((value, i) => {
    const pointer = `/parameters/${i}`;
    const name = /** @type {string} */ (value.get('name'));
    if (!isFree(name, scope)) {
      problems.add('UCP-E-PATTERN', place(key, `${pointer}/name`), `${JSON.stringify(name)} cannot name a parameter: letters, digits and _ do, each name once`);
    }
    const type = /** @type {'integer' | 'integers'} */ (value.get('type') ?? 'integer');
    const given = value.get('default');
    const made = given === undefined ? null : parseTemplate(given, new Map(scope), problems, key, `${pointer}/default`);
    scope.set(name, type);
    return {
      name, type, default: made, description: /** @type {string} */ (value.get('description') ?? ''), at: place(key, pointer),
    };
  });
}

/** @param {Json} value */
const isCount = (value) => Number.isSafeInteger(value) && /** @type {number} */ (value) >= 0;

/**
 * The values of all parameters: those that are given, and defaults for the others (UCP-D-125).
 * @param {Parameter[]} parameters
 * @param {Map<string, number | number[]>} settings
 * @param {string} key of the document
 * @returns {Environment}
 */
export function environmentOf(parameters, settings, key) {
  for (const name of settings.keys()) {
    if (!parameters.some((parameter) => parameter.name === name)) {
      throw new UcpError('UCP-E-PATTERN', key, `there is no parameter ${name}; there are: ${parameters.map((one) => one.name).join(', ') || 'none'}`);
    }
  }
  /** @type {Environment} */
  const found = new Map();
  for (const {name, type, default: made, description, at} of parameters) {
    const value = settings.get(name) ?? (made && fill(made, found));
    if (value === null) throw new UcpError('UCP-E-PATTERN', at, `the parameter ${name}${description && ` (${description})`} needs a value`);
    const isRight = type === 'integer' ? isCount(value) : Array.isArray(value) && value.every(isCount);
    if (!isRight) {
      throw new UcpError('UCP-E-PATTERN', at, `the parameter ${name} is ${type === 'integer' ? 'an integer' : 'an array of integers'} from 0 to 2^53-1`);
    }
    found.set(name, /** @type {number | number[]} */ (value));
  }
  return found;
}
