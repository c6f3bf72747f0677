/**
 * Pattern documents (SPEC-PATTERNS): ordered rules from names of atoms and slots to layouts.
 */

import {Problems, UcpError} from './errors.mjs';
import {matchGlob, parseGlob} from './globs.mjs';
import {place, plain, stringify} from './json.mjs';
import {checkSteps} from './layout.mjs';
import {checkMesh} from './mesh.mjs';
import {parseStandalone} from './root.mjs';
import {checkSchema} from './schema.mjs';
import {
  environmentOf, fill, isFree, located, parseParameters, parseTemplate,
} from './templates.mjs';

/** @typedef {import('./json.mjs').Json} Json */
/** @typedef {import('./layout.mjs').Mesh} Mesh */
/** @typedef {import('./layout.mjs').Step} Step */
/** @typedef {import('./globs.mjs').Glob} Glob */
/** @typedef {import('./globs.mjs').Captures} Captures */
/** @typedef {import('./templates.mjs').Template} Template */
/** @typedef {{mesh: Mesh, steps: Step[]}} Layout */
/** @typedef {{mesh: number, steps: Template, at: string}} LayoutTemplate */
/** @typedef {{match: Glob[], slots: Glob[] | null, layout: LayoutTemplate | null}} Rule without `slots` it is about all of them */
/** @typedef {{key: string, parameters: import('./templates.mjs').Parameter[], meshes: {template: Template, at: string}[], rules: Rule[]}} Patterns */

/**
 * @param {Json} value a glob, or several
 * @param {Problems} problems
 * @param {string} key
 * @param {string} pointer
 * @returns {Glob[]}
 */
function globsOf(value, problems, key, pointer) {
  const one = (/** @type {Json} */ text, /** @type {string} */ at) => (
    problems.guard(() => located(place(key, at), () => parseGlob(/** @type {string} */ (text)))) ?? parseGlob('**'));
  return Array.isArray(value) ? value.map((text, i) => one(text, `${pointer}/${i}`)) : [one(value, pointer)];
}

/**
 * Reads a pattern document.
 * @param {Uint8Array} bytes
 * @param {string} [key] its name, for places
 * @returns {Patterns}
 * @throws {UcpError} UCP-R-022, UCP-R-033
 */
export function parsePatterns(bytes, key = 'patterns.json') {
  const document = parseStandalone(bytes, key, 'patterns');
  const problems = new Problems();
  const parameters = parseParameters(document.get('parameters') ?? [], problems, key);
  /** @type {import('./expressions.mjs').Scope} */
  const scope = new Map(parameters.map(({name, type}) => [name, type]));
  const meshes = document.get('meshes').map((/** @type {Json} */ mesh, /** @type {number} */ i) => (
    {template: parseTemplate(mesh, scope, problems, key, `/meshes/${i}`), at: place(key, `/meshes/${i}`)}));
  const rules = document.get('rules').map((/** @type {Map<string, any>} */ rule, /** @type {number} */ i) => {
    const pointer = `/rules/${i}`;
    const match = globsOf(rule.get('match'), problems, key, `${pointer}/match`);
    const slots = rule.has('slots') ? globsOf(rule.get('slots'), problems, key, `${pointer}/slots`) : null;
    for (const name of new Set(match.flatMap(({captures}) => [...captures.keys()]))) {
      if (!isFree(name, scope)) problems.add('UCP-E-PATTERN', place(key, `${pointer}/match`), `a capture cannot be called ${name}: that name is taken`);
    }
    const common = [...match[0].captures].filter(([name, kind]) => kind === 'int' && match.every(({captures}) => captures.get(name) === 'int'));
    const layout = rule.get('layout');
    if (layout === null) return {match, slots, layout};
    if (layout.get('mesh') >= meshes.length) {
      problems.add('UCP-E-REFERENCE', place(key, `${pointer}/layout/mesh`), `there are ${meshes.length} meshes, and none with the index ${layout.get('mesh')}`);
    }
    /** @type {import('./expressions.mjs').Scope} */
    const names = new Map([...scope, ...common.map(([name]) => /** @type {const} */ ([name, 'integer'])), ['shape', 'integers']]);
    const steps = parseTemplate(layout.get('steps'), names, problems, key, `${pointer}/layout/steps`);
    return {match, slots, layout: {mesh: layout.get('mesh'), steps, at: place(key, `${pointer}/layout`)}};
  });
  problems.raise();
  return {
    key, parameters, meshes, rules,
  };
}

/**
 * Refuses JSON that a template made and that breaks its schema.
 * @param {string} schema
 * @param {Json} value
 * @param {string} at
 */
function checkMade(schema, value, at) {
  const problems = new Problems();
  checkSchema(schema, value, '', problems);
  located(at, () => {
    if (!problems.empty) throw new UcpError(problems.list[0].code, '', problems.list.map(({at: inside, detail}) => `${inside} ${detail}`.trim())[0]);
  });
}

/** Layouts of slots by a pattern document and values of its parameters. */
export class PatternResolver {
  /** @type {Map<string, Layout>} by their JSON, so that equal ones are one */
  #made = new Map();

  /**
   * @param {Patterns} patterns
   * @param {Map<string, number | number[]>} settings
   */
  constructor(patterns, settings) {
    this.patterns = patterns;
    this.environment = environmentOf(patterns.parameters, settings, patterns.key);
    /** @type {Mesh[]} */
    this.meshes = patterns.meshes.map(({template, at}) => {
      const made = fill(template, this.environment);
      checkMade('layout#/$defs/mesh', made, at);
      const mesh = plain(made);
      checkMesh(mesh, at);
      return mesh;
    });
  }

  /**
   * The layout of a slot: that of the first rule that matches atom and slot.
   * @param {string} atom
   * @param {string} slot
   * @param {number[]} shape
   * @returns {Layout | null} null where the rule leaves the slot alone
   * @throws {UcpError} UCP-E-UNMATCHED (UCP-R-032); UCP-E-PATTERN, UCP-E-SCHEMA, UCP-E-LIMIT, UCP-E-LAYOUT
   */
  layoutOf(atom, slot, shape) {
    for (const {match, slots, layout} of this.patterns.rules) {
      const isOfSlot = slots === null || slots.some((glob) => matchGlob(glob, slot) !== null);
      const captures = isOfSlot ? this.#captures(match, atom) : null;
      if (captures !== null) return layout && this.#layout(layout, captures, atom, shape);
    }
    throw new UcpError('UCP-E-UNMATCHED', place(this.patterns.key, '/rules'), `nothing matches the slot ${JSON.stringify(slot)} of ${JSON.stringify(atom)}: `
      + 'add a rule, with null for what is to be left out');
  }

  /**
   * @param {Glob[]} globs
   * @param {string} name
   * @returns {Captures | null} of the first glob that matches
   */
  #captures(globs, name) {
    for (const glob of globs) {
      const found = matchGlob(glob, name);
      if (found !== null) return found;
    }
    return null;
  }

  /**
   * @param {LayoutTemplate} template
   * @param {Captures} captures
   * @param {string} atom
   * @param {number[]} shape
   */
  #layout({mesh, steps, at}, captures, atom, shape) {
    /** @type {import('./expressions.mjs').Environment} */
    const environment = new Map(this.environment);
    captures.forEach((value, name) => { if (typeof value === 'number') environment.set(name, value); });
    environment.set('shape', shape);
    try {
      const filled = /** @type {any[]} */ (fill(steps, environment));
      // Positions of a tied tensor may be given twice, and in any order.
      for (const step of filled) {
        const positions = step instanceof Map && step.get('kind') === 'only' ? step.get('coordinates') : null;
        if (Array.isArray(positions)) step.set('coordinates', [...new Set(positions)].sort((a, b) => a - b));
      }
      const text = `${mesh} ${stringify(filled)}`;
      const known = this.#made.get(text);
      if (known) return known;
      checkMade('layout', new Map(/** @type {[string, Json][]} */ ([['mesh', mesh], ['steps', filled]])), at);
      const made = {mesh: this.meshes[mesh], steps: plain(filled)};
      located(at, () => checkSteps(made.mesh, made.steps, ''));
      this.#made.set(text, made);
      return made;
    } catch (error) {
      if (!(error instanceof UcpError)) throw error;
      throw new UcpError(error.code, error.at, `${error.detail} (for ${JSON.stringify(atom)} of shape [${shape}])`);
    }
  }
}
