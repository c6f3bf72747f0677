/**
 * The view of the state document: values and optimizers in words, blobs and process images.
 */

import {
  counted, h, human, shortened,
} from './dom.mjs';

const MAX_VALUE = 2000;

/** @param {[name: string, value: string][]} rows */
function table(rows) {
  if (rows.length === 0) return h('p', {class: 'quiet'}, 'none');
  return h('div', {class: 'scroll'}, h('table', {}, h('tbody', {}, rows.map(([name, value]) => h('tr', {},
    h('th', {class: 'text', scope: 'row'}, name), h('td', {class: 'text'}, shortened(value, MAX_VALUE)))))));
}

/** @param {ReturnType<import('./session.mjs').Session['state']>} state */
export function stateView({
  values, optimizers, blobs, images,
}) {
  return [
    h('h2', {}, 'values'), table(values),
    ...optimizers.flatMap(([name, groups]) => [h('h2', {}, `optimizer ${name}`),
      ...groups.map(({atoms, options}) => h('div', {}, h('p', {class: 'quiet'}, counted(atoms, 'atom')), table(options)))]),
    h('h2', {}, 'blobs'), table(blobs.map(({name, mediaType, length}) => [name, `${mediaType}, ${human(length)}`])),
    h('h2', {}, 'process images'), table(images.map((name) => [name, ''])),
  ];
}
