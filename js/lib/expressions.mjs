/**
 * Integer expressions over named values (SPEC-PATTERNS section 3).
 */

import {UcpError} from './errors.mjs';

/** @typedef {Map<string, number | number[]>} Environment values by name */
/** @typedef {Map<string, 'integer' | 'integers'>} Scope what each name stands for that an expression may use */
/** @typedef {number | {name: string} | {name: string, index: Term} | {operator: string, left: Term, right: Term}} Term */
/** @typedef {{text: string, term: Term}} Expression */

const MAX_EXPRESSION = 512;
const MAX_NESTING = 32;
const TOKEN = /[A-Za-z0-9_]+|\/\/|[-+*/%()[\],]/y;
const isWord = (/** @type {string} */ token) => /^[A-Za-z0-9_]/.test(token);

class ExpressionParser {
  position = 0;
  depth = 0;

  /**
   * @param {string} text
   * @param {Scope} scope
   */
  constructor(text, scope) {
    this.text = text;
    this.scope = scope;
    this.tokens = this.tokenized();
  }

  /**
   * @param {string} why
   * @returns {never}
   */
  refuse(why) {
    throw new UcpError('UCP-E-PATTERN', '', `${JSON.stringify(this.text.slice(0, 80))} is no expression: ${why}`);
  }

  tokenized() {
    const found = [];
    for (let at = 0; at < this.text.length;) {
      if (this.text[at] === ' ') {
        at += 1;
        continue;
      }
      TOKEN.lastIndex = at;
      const [token] = TOKEN.exec(this.text) ?? this.refuse(`${JSON.stringify(this.text[at])} is no part of expressions`);
      found.push(token);
      at += token.length;
    }
    return found;
  }

  get next() {
    return this.tokens[this.position] ?? '';
  }

  /** Takes the next token, which has to be the one that is wanted, if any. */
  take(wanted = '') {
    const token = this.next;
    if (token === '' || (wanted !== '' && token !== wanted)) this.refuse(`${wanted || 'a value'} is missing`);
    this.position += 1;
    return token;
  }

  /** @returns {Term} */
  whole() {
    if (this.tokens.length === 1 && this.scope.get(this.next) === 'integers') return {name: this.next};
    const node = this.sum();
    if (this.next !== '') this.refuse(`${this.next} is not expected`);
    return node;
  }

  /** @returns {Term} */
  sum() {
    let node = this.product();
    while (['+', '-'].includes(this.next)) node = {operator: this.take(), left: node, right: this.product()};
    return node;
  }

  /** @returns {Term} */
  product() {
    let node = this.value();
    while (['*', '/', '//', '%'].includes(this.next)) node = {operator: this.take(), left: node, right: this.value()};
    return node;
  }

  /** @returns {Term} */
  value() {
    const word = this.take();
    if (word === '(') return this.nested(')');
    if (!isWord(word)) this.refuse(`a value is missing before ${word}`);
    if (/^[0-9]/.test(word)) {
      if (!/^[0-9]{1,16}$/.test(word) || !Number.isSafeInteger(Number(word))) this.refuse(`${word} is no integer up to 2^53-1`);
      return Number(word);
    }
    if (word === 'min' || word === 'max') {
      this.take('(');
      const left = this.nested(',');
      return {operator: word, left, right: this.nested(')')};
    }
    const kind = this.scope.get(word) ?? this.refuse(`nothing here is called ${word}; known are ${[...this.scope.keys()].sort().join(', ')}`);
    if (kind === 'integer') return {name: word};
    if (this.next !== '[') this.refuse(`${word} is an array: take an item of it, ${word}[0]`);
    this.take('[');
    return {name: word, index: this.nested(']')};
  }

  /**
   * @param {string} closing
   * @returns {Term}
   */
  nested(closing) {
    this.depth += 1;
    if (this.depth > MAX_NESTING) throw new UcpError('UCP-E-LIMIT', '', `an expression nests at most ${MAX_NESTING} deep`);
    const node = this.sum();
    this.take(closing);
    this.depth -= 1;
    return node;
  }
}

/**
 * Parses an expression whose names are those of a scope.
 * @param {string} text
 * @param {Scope} scope
 * @returns {Expression}
 * @throws {UcpError} UCP-E-PATTERN (UCP-D-121), UCP-E-LIMIT (UCP-D-122)
 */
export function parseExpression(text, scope) {
  if ([...text].length > MAX_EXPRESSION) throw new UcpError('UCP-E-LIMIT', '', `an expression has at most ${MAX_EXPRESSION} characters`);
  return {text, term: new ExpressionParser(text, scope).whole()};
}

/** @type {Record<string, (left: number, right: number) => number>} */
const OPERATIONS = {
  '+': (left, right) => left + right,
  '-': (left, right) => left - right,
  '*': (left, right) => left * right,
  '/': (left, right) => left / right,
  // What is left is exact, and so is its quotient: no rounding of a quotient can reach the integer above.
  '//': (left, right) => (left - (left % right)) / right - (left % right < 0 ? 1 : 0),
  '%': (left, right) => (left % right < 0 ? (left % right) + right : left % right),
  min: Math.min,
  max: Math.max,
};

/**
 * The value of an expression.
 * @param {Expression} expression
 * @param {Environment} environment
 * @returns {number | number[]} an array of one that is the name of an array alone
 * @throws {UcpError} UCP-E-PATTERN (UCP-D-126)
 */
export function valueOf({text, term}, environment) {
  /** @type {(why: string) => never} */
  const refuse = (why) => {
    throw new UcpError('UCP-E-PATTERN', '', `${JSON.stringify(text)} has no value: ${why}`);
  };
  /** @type {(term: Term) => number} */
  const of = (part) => {
    if (typeof part === 'number') return part;
    if ('operator' in part) {
      const [left, right] = [of(part.left), of(part.right)];
      if (['/', '//', '%'].includes(part.operator) && right < 1) refuse(`the divisor ${right} is less than 1`);
      if (part.operator === '/' && left % right !== 0) refuse(`${right} does not divide ${left}`);
      const found = OPERATIONS[part.operator](left, right);
      return Number.isSafeInteger(found) ? found + 0 : refuse('a result is beyond 2^53-1');
    }
    const found = environment.get(part.name);
    if (!('index' in part)) return /** @type {number} */ (found);
    const items = /** @type {number[]} */ (found);
    const index = of(part.index);
    return items[index] ?? refuse(`${part.name} has ${items.length} items, and none at ${index}`);
  };
  const alone = typeof term === 'object' && 'name' in term && !('index' in term) ? environment.get(term.name) : undefined;
  return alone ?? of(term);
}
