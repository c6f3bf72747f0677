/**
 * Strict JSON (SPEC section 3.1), its canonical text (RFC 8785), and pointers (RFC 6901).
 *
 * Objects become `Map`s: plain JavaScript objects would treat `__proto__` as special, and reorder
 * names that look like integers, so that annotations would not stay as they are (section 17.5).
 */

import {UcpError} from './errors.mjs';

/** @typedef {null | boolean | number | string | any[] | Map<string, any>} Json arrays and members are of it again */

/** Deepest nesting of a document (UCP-D-005). */
export const MAX_DEPTH = 64;

const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const FRACTION_OR_EXPONENT = /[.eE]/;
/** @type {Record<string, string>} */
const ESCAPES = {
  '"': '"', '\\': '\\', '/': '/', b: '\b', f: '\f', n: '\n', r: '\r', t: '\t',
};
const HEX4 = /^[0-9a-fA-F]{4}$/;

class Parser {
  /**
   * @param {string} text
   * @param {string} at the place for refusals
   * @param {number} maxDepth
   */
  constructor(text, at, maxDepth) {
    this.text = text;
    this.at = at;
    this.maxDepth = maxDepth;
    this.position = 0;
  }

  /**
   * @param {string} detail
   * @returns {never}
   */
  fail(detail, position = this.position) {
    throw new UcpError('UCP-E-JSON', this.at, `${detail} at character ${position}`);
  }

  space() {
    for (;;) {
      const unit = this.text.charCodeAt(this.position);
      if (unit !== 0x20 && unit !== 0x0a && unit !== 0x0d && unit !== 0x09) return unit;
      this.position += 1;
    }
  }

  /** @returns {Json} */
  document() {
    const value = this.value(0);
    this.space();
    if (this.position !== this.text.length) this.fail('text after the document');
    return value;
  }

  /** @param {number} depth arrays and objects around the value */
  value(depth) {
    switch (this.space()) {
      case 0x7b: return this.object(depth + 1);
      case 0x5b: return this.array(depth + 1);
      case 0x22: return this.string();
      case 0x74: return this.word('true', true);
      case 0x66: return this.word('false', false);
      case 0x6e: return this.word('null', null);
      default: return this.number();
    }
  }

  /** @param {number} depth */
  enter(depth) {
    if (depth > this.maxDepth) {
      throw new UcpError('UCP-E-LIMIT', this.at, `nested more than ${this.maxDepth} deep`);
    }
    this.position += 1;
  }

  /**
   * After an element: true at a comma, false at the closing character.
   * @param {number} closing code of the closing character
   */
  more(closing) {
    const unit = this.space();
    if (unit !== 0x2c && unit !== closing) this.fail('neither a comma nor the end');
    this.position += 1;
    return unit === 0x2c;
  }

  /**
   * @param {number} depth
   * @returns {Map<string, Json>}
   */
  object(depth) {
    this.enter(depth);
    const members = new Map();
    if (this.space() === 0x7d) {
      this.position += 1;
      return members;
    }
    do {
      if (this.space() !== 0x22) this.fail('no member name');
      const start = this.position;
      const name = this.string();
      if (members.has(name)) this.fail(`a second member ${JSON.stringify(name)}`, start);
      if (this.space() !== 0x3a) this.fail('no colon');
      this.position += 1;
      members.set(name, this.value(depth));
    } while (this.more(0x7d));
    return members;
  }

  /**
   * @param {number} depth
   * @returns {Json[]}
   */
  array(depth) {
    this.enter(depth);
    /** @type {Json[]} */
    const elements = [];
    if (this.space() === 0x5d) {
      this.position += 1;
      return elements;
    }
    do elements.push(this.value(depth)); while (this.more(0x5d));
    return elements;
  }

  /**
   * @param {string} word
   * @param {boolean | null} value
   */
  word(word, value) {
    if (!this.text.startsWith(word, this.position)) this.fail('an unknown word');
    this.position += word.length;
    return value;
  }

  number() {
    NUMBER.lastIndex = this.position;
    const match = NUMBER.exec(this.text);
    if (!match) return this.fail('no value');
    const number = Number(match[0]);
    if (!Number.isFinite(number)) this.fail('a number overflows binary64');
    if (!Number.isSafeInteger(number) && !FRACTION_OR_EXPONENT.test(match[0])) { // UCP-D-003
      this.fail('an integer of magnitude above 2^53-1');
    }
    this.position += match[0].length;
    return number === 0 ? 0 : number; // -0 is 0 (section 3.1)
  }

  string() {
    const {text} = this;
    const opening = this.position;
    let start = opening + 1;
    let position = start;
    let before = '';
    let escaped = false;
    for (;;) {
      const unit = text.charCodeAt(position); // NaN at the end, which no comparison accepts
      if (unit === 0x22) break;
      if (unit === 0x5c) {
        escaped = true;
        before += text.slice(start, position);
        const kind = text[position + 1];
        if (kind === 'u') {
          const digits = text.slice(position + 2, position + 6);
          if (!HEX4.test(digits)) this.fail('a malformed escape', position);
          before += String.fromCharCode(parseInt(digits, 16));
          position += 6;
        } else {
          if (!Object.hasOwn(ESCAPES, kind ?? '')) this.fail('an unknown escape', position);
          before += ESCAPES[kind];
          position += 2;
        }
        start = position;
      } else if (unit >= 0x20) {
        position += 1;
      } else {
        this.fail('a control character or the end within a string', position);
      }
    }
    this.position = position + 1;
    const string = before + text.slice(start, position);
    if (escaped && !string.isWellFormed()) this.fail('an unpaired surrogate', opening);
    return string;
  }
}

/**
 * Parses a document strictly.
 * @param {Uint8Array} bytes
 * @param {string} at the key of the document
 * @param {{maxDepth?: number}} [options]
 * @returns {Json}
 * @throws {UcpError} UCP-E-JSON (UCP-R-002) or UCP-E-LIMIT (UCP-R-003)
 */
export function parse(bytes, at, {maxDepth = MAX_DEPTH} = {}) {
  let text;
  try {
    text = new TextDecoder('utf-8', {fatal: true, ignoreBOM: true}).decode(bytes);
  } catch {
    throw new UcpError('UCP-E-JSON', at, 'not UTF-8');
  }
  if (text.charCodeAt(0) === 0xfeff) throw new UcpError('UCP-E-JSON', at, 'a byte order mark');
  return new Parser(text, at, maxDepth).document();
}

/**
 * @param {Json} value
 * @param {(names: string[]) => string[]} names puts members in order
 * @returns {string}
 */
function write(value, names) {
  if (value instanceof Map) {
    const members = names([...value.keys()])
      .map((name) => `${JSON.stringify(name)}:${write(value.get(name), names)}`);
    return `{${members.join(',')}}`;
  }
  if (Array.isArray(value)) return `[${value.map((element) => write(element, names)).join(',')}]`;
  if (typeof value === 'number' && Number.isInteger(value) && !Number.isSafeInteger(value)) return value.toExponential(); // UCP-D-003
  return JSON.stringify(value);
}

/**
 * The text of a value, members in their order, without white space.
 * @param {Json} value
 */
export function stringify(value) {
  return write(value, (names) => names);
}

/**
 * The text of a value under RFC 8785: members sorted by UTF-16 code units. ECMAScript's own
 * serialization of numbers and strings is the one that RFC 8785 prescribes.
 * @param {Json} value
 */
export function canonicalText(value) {
  return write(value, (names) => names.sort());
}

/**
 * One step of a pointer, escaped (RFC 6901).
 * @param {string | number} name
 */
export function token(name) {
  return `/${String(name).replaceAll('~', '~0').replaceAll('/', '~1')}`;
}

/**
 * A place (SPEC section 3): a key, `#` and a pointer; the key alone for the whole object.
 * @param {string} key
 */
export function place(key, pointer = '') {
  return pointer === '' ? key : `${key}#${pointer}`;
}

/**
 * A JSON object from an ordinary one; absent (undefined) members are left out.
 * @param {Record<string, Json | undefined>} members
 * @returns {Map<string, any>}
 */
export function object(members) {
  return new Map(Object.entries(members).filter(([, value]) => value !== undefined));
}

/**
 * Ordinary objects in place of Maps, for structures whose member names the schema closes.
 * @param {Json | undefined} value
 * @returns {any}
 */
export function plain(value) {
  if (value instanceof Map) {
    return Object.fromEntries([...value].map(([name, member]) => [name, plain(member)]));
  }
  return Array.isArray(value) ? value.map(plain) : value;
}

/**
 * The reverse of {@link plain}.
 * @param {unknown} value
 * @returns {any}
 */
export function fromPlain(value) {
  if (Array.isArray(value)) return value.map(fromPlain);
  if (value === null || typeof value !== 'object' || value instanceof Map) return value;
  return object(Object.fromEntries(
    Object.entries(value).map(([name, member]) => [name, fromPlain(member)])));
}
