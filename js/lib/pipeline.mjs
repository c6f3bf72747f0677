/**
 * Weight versions: pipelines in flight (SPEC section 15.3).
 */

import {place} from './json.mjs';

/** @typedef {import('./errors.mjs').Problems} Problems */

/**
 * Data types and shapes of slots, by the names of atom and slot, as text.
 * @param {{name: string, slots: Iterable<{name: string, dtype: string, shape: number[]}>}[]} atoms
 * @returns {Map<string, Map<string, string>>}
 */
export function slotKinds(atoms) {
  return new Map(atoms.map(({name, slots}) => [
    name, new Map([...slots].map((slot) => [slot.name, `${slot.dtype} [${slot.shape}]`])),
  ]));
}

/**
 * Slot kinds of atoms that were read.
 * @param {import('./documents.mjs').Atom[]} atoms
 */
export function kindsOfAtoms(atoms) {
  return slotKinds(atoms.map(({name, slots}) => ({
    name, slots: slots.map((slot) => ({name: slot.name, dtype: slot.dtype.name, shape: slot.shape})),
  })));
}

/**
 * Whether a minibatch is in flight in some stage.
 * @param {Map<string, any> | undefined} pipeline
 */
export function isInFlight(pipeline) {
  return pipeline !== undefined
    && /** @type {Map<string, any>[]} */ (pipeline.get('stages')).some((stage) => stage.get('in_flight').length > 0);
}

/**
 * The minibatches of a stage (UCP-D-145, UCP-D-146).
 * @param {Map<string, any>} stage
 * @param {string} at
 * @param {string} key
 * @param {Problems} problems
 */
function checkMinibatches(stage, at, key, problems) {
  let last = -1;
  /** @type {Map<string, any>[]} */ (stage.get('in_flight')).forEach((entry, i) => {
    const here = place(key, `${at}/in_flight/${i}`);
    if (entry.get('minibatch') <= last) {
      problems.add('UCP-E-NAME', here, 'minibatches are not strictly ascending');
    }
    last = entry.get('minibatch');
    if (entry.get('version') > stage.get('updates')) {
      problems.add('UCP-E-REFERENCE', here, 'a version that is still to come');
    }
  });
}

/**
 * Whether an atom has its value and each version of its stage (UCP-D-143, UCP-D-147).
 * @param {Map<string, any>} stage
 * @param {Map<string, string> | undefined} slots kinds by name
 */
function hasVersions(stage, slots) {
  const value = slots?.get('value');
  return value !== undefined && /** @type {Map<string, any>[]} */ (stage.get('in_flight')).every((entry) => (
    entry.get('version') >= stage.get('updates')
    || slots?.get(`version-${entry.get('version')}`) === value));
}

/**
 * Checks a pipeline.
 * @param {Map<string, any>} pipeline that satisfies its schema
 * @param {string} key of the state document
 * @param {Map<string, Map<string, string>> | null} atoms slot kinds, where they are known
 * @param {Problems} problems
 */
export function checkPipeline(pipeline, key, atoms, problems) {
  const seen = new Set();
  /** @type {Map<string, any>[]} */ (pipeline.get('stages')).forEach((stage, i) => {
    const at = `/pipeline/stages/${i}`;
    checkMinibatches(stage, at, key, problems);
    /** @type {string[]} */ (stage.get('atoms')).forEach((name, j) => {
      const here = place(key, `${at}/atoms/${j}`);
      if (seen.has(name)) problems.add('UCP-E-NAME', here, 'in a stage already'); // UCP-D-144
      seen.add(name);
      if (atoms && !hasVersions(stage, atoms.get(name))) {
        problems.add('UCP-E-REFERENCE', here, 'no such atom, or it lacks its value or a version');
      }
    });
  });
}

/**
 * Whether a layout keeps the stage of an atom (UCP-R-034).
 * @param {Map<string, any>} pipeline
 * @param {string} atom
 * @param {{mesh: import('./mesh.mjs').Mesh, steps: import('./layout.mjs').Step[]}} layout
 */
export function keepsStage(pipeline, atom, {mesh, steps}) {
  /** @type {Map<string, any>[]} */
  const stages = pipeline.get('stages');
  const stage = stages.findIndex((one) => one.get('atoms').includes(atom));
  if (stage < 0) return true;
  const name = pipeline.get('axis');
  return mesh.axes.some((axis) => axis.name === name && axis.size === stages.length)
    && steps.some(({kind, axis, coordinates}) => (
      kind === 'only' && axis === name && coordinates?.length === 1 && coordinates[0] === stage));
}
