/**
 * Globs over dotted names (SPEC-PATTERNS section 2): wildcards and captures, without a step back.
 *
 * A segment has one extent wherever it begins, so that its leftmost place is as good as any later one.
 */

import {UcpError} from './errors.mjs';

/** @typedef {'text' | 'int' | 'path'} CaptureKind */
/** @typedef {Map<string, string | number>} Captures */
/** @typedef {(string | {name: string})[]} Segment texts, and integers that are captured */
/** @typedef {{segments: Segment[], variables: (string | null)[], literal: string | null}} Component one more segment than variables:
 *   `*`, or a capture by its name; `literal` is all of a component that has neither */
/** @typedef {{text: string, runs: Component[][], gaps: (string | null)[], captures: Map<string, CaptureKind>}} Glob components between
 *   gaps of any length: `**`, or a capture by its name */

/** Most characters of a glob (UCP-D-120). */
const MAX_GLOB = 1024;
const LONGEST_INTEGER = 15;
const IDENTIFIER = /^[A-Za-z_][A-Za-z0-9_]*$/;
const DIGITS = /[0-9]*/y;

/**
 * Whether a text can name a capture or a parameter.
 * @param {string} text
 */
export const isIdentifier = (text) => IDENTIFIER.test(text);

class GlobParser {
  /** @type {Map<string, CaptureKind>} */
  captures = new Map();

  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }

  /**
   * @param {string} why
   * @returns {never}
   */
  refuse(why) {
    throw new UcpError('UCP-E-PATTERN', '', `${JSON.stringify(this.text.slice(0, 80))} is no glob: ${why}`);
  }

  /** @returns {Glob} */
  glob() {
    if ([...this.text].length > MAX_GLOB) throw new UcpError('UCP-E-LIMIT', '', `a glob has at most ${MAX_GLOB} characters`);
    /** @type {Component[][]} */
    const runs = [[]];
    /** @type {(string | null)[]} */
    const gaps = [];
    for (const [position, component] of this.text.split('.').entries()) {
      const path = /^\{(.*):path\}$/s.exec(component);
      if (component !== '**' && !path) {
        runs[runs.length - 1].push(this.component(component));
        continue;
      }
      if (position > 0 && runs[runs.length - 1].length === 0) this.refuse(`${component} follows another of its kind, and which ends where is open`);
      if (path) this.declare(path[1], 'path');
      gaps.push(path ? path[1] : null);
      runs.push([]);
    }
    return {
      text: this.text, runs, gaps, captures: this.captures,
    };
  }

  /**
   * @param {string} name
   * @param {CaptureKind} kind
   */
  declare(name, kind) {
    if (!isIdentifier(name)) this.refuse(`${JSON.stringify(name)} does not name a capture: letters, digits and _ do`);
    if (this.captures.has(name)) this.refuse(`it has two captures ${name}`);
    this.captures.set(name, kind);
  }

  /**
   * @param {string} component
   * @returns {Component}
   */
  component(component) {
    /** @type {Segment[]} */
    const segments = [[]];
    /** @type {(string | null)[]} */
    const variables = [];
    /** @param {string} sign */
    const append = (sign) => {
      const segment = segments[segments.length - 1];
      const last = segment.at(-1);
      if (typeof last === 'string') segment[segment.length - 1] = last + sign;
      else segment.push(sign);
    };
    /** @param {string | null} name */
    const vary = (name) => {
      if (variables.length > 0 && segments[segments.length - 1].length === 0) {
        this.refuse('two wildcards or captures touch, and which ends where is open');
      }
      variables.push(name);
      segments.push([]);
    };
    for (let i = 0; i < component.length; i += 1) {
      const sign = component[i];
      if (sign === '\\') {
        i += 1;
        if (!'*{}\\'.includes(component[i] ?? ' ')) this.refuse('a backslash stands before one of * { } \\ alone');
        append(component[i]);
      } else if (sign === '*') {
        vary(null);
      } else if (sign === '{') {
        const stop = component.indexOf('}', i);
        if (stop < 0) this.refuse('a brace is not closed in its component');
        const [, name, kind = ''] = /** @type {RegExpExecArray} */ (/^([^:]*)(:.*)?$/s.exec(component.slice(i + 1, stop)));
        i = stop;
        if (kind !== '' && kind !== ':int') this.refuse('a capture is {name} or {name:int}, or the whole component {name:path}');
        this.declare(name, kind === '' ? 'text' : 'int');
        if (kind === '') vary(name);
        else segments[segments.length - 1].push({name});
      } else if (sign === '}') {
        this.refuse('a closing brace has none that opens; write \\}');
      } else append(sign);
    }
    const [first] = segments;
    const isFixed = variables.length === 0 && first.every((part) => typeof part === 'string');
    return {segments, variables, literal: isFixed ? first.join('') : null};
  }
}

/**
 * Parses a glob.
 * @param {string} text
 * @returns {Glob}
 * @throws {UcpError} UCP-E-PATTERN (UCP-D-119), UCP-E-LIMIT (UCP-D-120)
 */
export const parseGlob = (text) => new GlobParser(text).glob();

/**
 * Where a segment ends that begins there, or -1; integers go to `found`.
 * @param {Segment} segment
 * @param {string} text
 * @param {number} start
 * @param {Captures} found
 */
function endOf(segment, text, start, found) {
  let position = start;
  for (const part of segment) {
    if (typeof part === 'string') {
      if (!text.startsWith(part, position)) return -1;
      position += part.length;
      continue;
    }
    if (position > 0 && /[0-9]/.test(text[position - 1])) return -1;
    DIGITS.lastIndex = position;
    const [digits] = /** @type {RegExpExecArray} */ (DIGITS.exec(text));
    if (digits.length === 0 || digits.length > LONGEST_INTEGER || (digits.startsWith('0') && digits !== '0')) return -1;
    found.set(part.name, Number(digits));
    position += digits.length;
  }
  return position;
}

/**
 * @param {Component} component
 * @param {string} text
 * @returns {Captures | null}
 */
function matchComponent({segments, variables, literal}, text) {
  if (literal !== null) return literal === text ? new Map() : null;
  /** @type {Captures} */
  const found = new Map();
  let stop = endOf(segments[0], text, 0, found);
  if (stop < 0) return null;
  for (const [i, name] of variables.entries()) {
    const isLast = i === variables.length - 1;
    let position = stop + (name === null ? 0 : 1);
    /** @type {Captures} */
    let mine = new Map();
    let end = -1;
    for (; position <= text.length; position += 1) {
      mine = new Map();
      end = endOf(segments[i + 1], text, position, mine);
      if (end >= 0 && (!isLast || end === text.length)) break;
    }
    if (position > text.length) return null;
    if (name !== null) found.set(name, text.slice(stop, position));
    mine.forEach((value, key) => found.set(key, value));
    stop = end;
  }
  return stop === text.length ? found : null;
}

/**
 * @param {Component[]} run
 * @param {string[]} components
 * @param {number} start
 * @returns {Captures | null}
 */
function matchRun(run, components, start) {
  /** @type {Captures} */
  const found = new Map();
  for (const [i, component] of run.entries()) {
    const mine = matchComponent(component, components[start + i]);
    if (mine === null) return null;
    mine.forEach((value, key) => found.set(key, value));
  }
  return found;
}

/**
 * The captures of a name that matches, each as short as can be, the first one first; null of one that does not.
 * @param {Glob} glob
 * @param {string} name
 * @returns {Captures | null}
 */
export function matchGlob({runs, gaps}, name) {
  const components = name.split('.');
  // How many components the runs and gaps from each run on take at least.
  const least = runs.map((run) => run.length);
  for (let i = gaps.length - 1; i >= 0; i -= 1) least[i] += least[i + 1] + (gaps[i] === null ? 0 : 1);
  if (components.length < least[0] || (gaps.length === 0 && components.length > least[0])) return null;
  const found = matchRun(runs[0], components, 0);
  if (found === null) return null;
  let stop = runs[0].length;
  for (const [i, gap] of gaps.entries()) {
    const latest = components.length - least[i + 1];
    let position = i === gaps.length - 1 ? latest : stop + (gap === null ? 0 : 1);
    let mine = null;
    for (; position <= latest; position += 1) {
      mine = matchRun(runs[i + 1], components, position);
      if (mine !== null) break;
    }
    if (mine === null) return null;
    if (gap !== null) found.set(gap, components.slice(stop, position).join('.'));
    mine.forEach((value, key) => found.set(key, value));
    stop = position + runs[i + 1].length;
  }
  return found;
}
