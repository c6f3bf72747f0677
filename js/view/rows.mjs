/**
 * Rows of the list: a module or an atom, what became of it, and its share of bytes.
 */

import {
  extents, h, human, shortened,
} from './dom.mjs';

const MAX_LABEL = 160;

/** @typedef {ReturnType<import('./session.mjs').Session['statistics']>} Statistics */

/**
 * What statistics of slots say against an atom.
 * @param {Record<string, Statistics> | undefined} statistics
 */
function broken(statistics) {
  const found = Object.values(statistics ?? {});
  return `${found.some(({nan}) => nan > 0) ? ', has NaN' : ''}${found.some(({inf}) => inf > 0) ? ', has infinities' : ''}`;
}

/**
 * @param {import('./tree.mjs').Row} row
 * @param {import('./comparison.mjs').Comparison | null} comparison
 * @param {Record<string, Statistics> | undefined} statistics of its atom, by slot
 */
export function rowView({
  level, label, open, share, module,
}, comparison, statistics) {
  const {atom} = module;
  const told = comparison?.told(module) ?? '';
  const state = (atom && comparison?.changeOf(atom.name).state) ?? 'same';
  const value = atom?.slots.find(({name}) => name === 'value') ?? atom?.slots[0];
  const bar = h('div', {class: 'bar'});
  bar.style.width = `${100 * share}%`;
  const name = h('span', {class: 'name', title: module.name},
    open === null ? '' : open ? '▾ ' : '▸ ', h('bdi', {}, shortened(label, MAX_LABEL)),
    value ? h('span', {class: 'kind'}, `${value.dtype} ${extents(value.shape)}${state === 'same' ? '' : `, ${shortened(told, MAX_LABEL)}`}${broken(statistics)}`)
      : !atom && told ? h('span', {class: 'kind'}, told) : null);
  name.style.paddingLeft = `${level}em`;
  return h('div', {
    class: `row ${state}`, role: 'treeitem', 'aria-level': level + 1, 'aria-expanded': open === null ? null : String(open),
  }, name, h('span', {class: 'size'}, human(module.bytes)), h('span', {}, bar));
}
