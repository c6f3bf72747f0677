/**
 * The view of bytes as areas: a map of a module, and buttons to those that it is in.
 */

import {bytesMap} from './charts.mjs';
import {h, human} from './dom.mjs';

/** @typedef {import('./tree.mjs').Module} Module */

/**
 * @param {Module[]} path from the top to the module that is shown
 * @param {import('./comparison.mjs').Comparison | null} comparison colours it by what changed
 * @param {(path: Module[]) => void} open another module, or an atom
 */
export function mapView(path, comparison, open) {
  const crumbs = path.map(({label}, i) => h('button', {type: 'button', onclick: () => open(path.slice(0, i + 1))}, label || 'all'));
  const module = path[path.length - 1];
  /** @type {(item: Module) => {fill: string, told: string}} */
  const shadeOf = (item) => {
    const {bytes} = comparison?.changesOf(item) ?? {bytes: 0};
    const share = item.bytes > 0 ? Math.round((100 * bytes) / item.bytes) : 0;
    return {fill: `color-mix(in srgb, var(--changed) ${share}%, var(--bar))`, told: comparison?.told(item) ?? ''};
  };
  return [h('p', {}, crumbs.flatMap((crumb) => [crumb, ' ']), human(module.bytes)),
    ...(comparison ? [h('p', {class: 'quiet'}, h('span', {class: 'swatch changed'}), ' changed ', h('span', {class: 'swatch'}),
      ' the same, or not known; what is not drawn in detail has a mixture')] : []),
    module.bytes > 0 ? bytesMap(module, (below) => open([...path, ...below]), comparison && shadeOf)
      : h('p', {class: 'quiet'}, 'There is nothing that has bytes.')];
}
