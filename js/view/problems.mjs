/**
 * The view of problems: what validation found, and the atoms that it is about.
 */

import {h, shortened} from './dom.mjs';

const MAX_PROBLEMS = 1000;

/** @typedef {import('./tree.mjs').AtomRow} AtomRow */
/** @typedef {ReturnType<import('./session.mjs').Session['problems']>[number]} Problem with the name of its atom */

/**
 * @param {Problem} problem
 * @param {Map<string, AtomRow>} known
 * @param {(atom: AtomRow) => void} show
 */
function row({
  code, at, detail, atom,
}, known, show) {
  const name = shortened(atom ?? '', 60);
  const found = atom === null ? undefined : known.get(atom);
  return h('tr', {}, [code, at, detail].map((text, i) => h('td', {class: i === 0 ? 'text nowrap' : 'text'}, shortened(text, 400))),
    h('td', {class: 'text'}, found ? h('button', {type: 'button', onclick: () => show(found)}, name) : name));
}

/**
 * A table of problems, and a button that looks for more.
 * @param {Problem[]} problems
 * @param {'semantics' | 'integrity'} level at which they were looked for
 * @param {{known: Map<string, AtomRow>, show: (atom: AtomRow) => void, checkAll: () => void}} page atoms by name, and what
 *   can be done: to show one of them, and to check every byte
 */
export function problemsView(problems, level, {known, show, checkAll}) {
  const count = problems.length === 1 ? '1 problem' : `${problems.length === 0 ? 'No' : problems.length.toLocaleString('en')} problems`;
  return h('div', {},
    h('p', {}, `${count} at level ${level}. `, level === 'integrity' ? null : h('button', {type: 'button', onclick: checkAll}, 'check every byte')),
    problems.length === 0 ? null : h('div', {class: 'scroll'}, h('table', {},
      h('thead', {}, h('tr', {}, ['code', 'place', 'what', 'atom'].map((name) => h('th', {class: 'text', scope: 'col'}, name)))),
      h('tbody', {}, problems.slice(0, MAX_PROBLEMS).map((problem) => row(problem, known, show))))),
    problems.length > MAX_PROBLEMS ? h('p', {class: 'quiet'}, `The first ${MAX_PROBLEMS} are listed.`) : null);
}
