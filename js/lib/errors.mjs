/**
 * Refusals and problems (SPEC section 18).
 *
 * Every check of a document adds what it finds to a {@link Problems}.
 * A reader raises the first of a step, in the order of the registry; a validator reports them all.
 */

/** Registry codes in the order of SPEC section 18, which decides among problems of one step. */
export const CODES = Object.freeze([
  'UCP-E-NOT-FOUND', 'UCP-E-LINK', 'UCP-E-STORE', 'UCP-E-LIMIT', 'UCP-E-JSON', 'UCP-E-FORMAT',
  'UCP-E-VERSION', 'UCP-E-DIGEST', 'UCP-E-FEATURE', 'UCP-E-EXTENSION', 'UCP-E-SCHEMA', 'UCP-E-KEY',
  'UCP-E-NAME', 'UCP-E-REFERENCE', 'UCP-E-FEATURE-SET', 'UCP-E-DTYPE', 'UCP-E-SHAPE',
  'UCP-E-LAYOUT', 'UCP-E-COVER', 'UCP-E-PATTERN', 'UCP-E-VALUE', 'UCP-E-TABLE', 'UCP-E-SEGMENT',
  'UCP-E-ZARR', 'UCP-E-MISSING', 'UCP-E-LENGTH', 'UCP-E-CHECKSUM', 'UCP-E-CODEC', 'UCP-E-PADDING',
  'UCP-E-CONTENT', 'UCP-E-EXISTS', 'UCP-E-MISMATCH', 'UCP-E-UNMATCHED', 'UCP-E-INEXACT',
  'UCP-E-SOURCE', 'UCP-E-PICKLE', 'UCP-E-OBJECT', 'UCP-E-LOG', 'UCP-E-FENCED',
  'UCP-E-RANK', 'UCP-W-UNCHECKED',
  'UCP-W-UNREFERENCED',
]);

/** A refusal: a registry code, a place (SPEC section 3, or empty) and a sentence. */
export class UcpError extends Error {
  /**
   * @param {string} code
   * @param {string} at
   * @param {string} detail
   */
  constructor(code, at, detail) {
    if (!CODES.includes(code)) throw new TypeError(`${code} is not in the registry`);
    super(`${code} at ${JSON.stringify(at)}: ${detail}`);
    this.name = 'UcpError';
    this.code = code;
    this.at = at;
    this.detail = detail;
  }
}

/**
 * Refuses a layout, its mesh or the place of a slot (SPEC section 12).
 * @type {(at: string, detail: string) => never}
 */
export const refuseLayout = (at, detail) => {
  throw new UcpError('UCP-E-LAYOUT', at, detail);
};

/** What is asked for is defined by the specification, and not implemented here. */
export class Unsupported extends Error {
  /** @param {string} feature */
  constructor(feature) {
    super(`${feature} is not implemented`);
    this.name = 'Unsupported';
    this.feature = feature;
  }
}

/** @typedef {{code: string, at: string, detail: string}} Problem what is wrong: a registry code, a place and a sentence */

/** A list of problems that checks add to. */
export class Problems {
  constructor() {
    /** @type {Problem[]} */
    this.list = [];
  }

  /**
   * @param {string} code
   * @param {string} at
   * @param {string} detail
   */
  add(code, at, detail) {
    this.list.push({code, at, detail});
  }

  /**
   * Adds an error if it is a refusal, and throws it on if it is a defect.
   * @param {unknown} error
   */
  catch(error) {
    if (!(error instanceof UcpError)) throw error;
    this.add(error.code, error.at, error.detail);
  }

  /**
   * Runs a check and keeps its refusal; the check's result, or undefined where it refused.
   * @template T
   * @param {() => T} check
   * @returns {T | undefined}
   */
  guard(check) {
    try {
      return check();
    } catch (error) {
      this.catch(error);
      return undefined;
    }
  }

  get empty() {
    return this.list.length === 0;
  }

  /** Raises the first problem in registry order, if there is one (SPEC section 18). */
  raise() {
    let first;
    for (const problem of this.list) {
      if (!first || CODES.indexOf(problem.code) < CODES.indexOf(first.code)) first = problem;
    }
    if (first) throw new UcpError(first.code, first.at, first.detail);
  }
}
