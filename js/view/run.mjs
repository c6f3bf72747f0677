/**
 * Checkpoints of a run by step: bytes, and metrics where they were kept.
 */

import {
  h, human, short, shortened, svg,
} from './dom.mjs';

const WIDTH = 560;
const HEIGHT = 90;

/** One metric over steps, as a line. */
function line(name, points) {
  const xs = points.map(([step]) => step);
  const ys = points.map(([, value]) => value);
  const scale = (value, values, size) => {
    const least = Math.min(...values);
    const range = Math.max(...values) - least;
    return range > 0 ? ((value - least) / range) * size : size / 2;
  };
  const places = points.map(([step, value]) => [8 + scale(step, xs, WIDTH - 16), HEIGHT - 8 - scale(value, ys, HEIGHT - 16)]);
  return h('figure', {}, svg('svg', {
    width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': `${name} by step`,
  }, svg('polyline', {
    points: places.map((place) => place.join()).join(' '), fill: 'none', stroke: 'var(--accent)', 'stroke-width': 1.5,
  }), places.map(([x, y], i) => svg('circle', {
    cx: x, cy: y, r: 3, fill: 'var(--accent)',
  }, svg('title', {}, `step ${xs[i]}: ${ys[i]}`)))),
  h('figcaption', {class: 'quiet'}, `${name}: ${short(Math.min(...ys))} to ${short(Math.max(...ys))}, steps ${xs[0]} to ${xs.at(-1)}`));
}

/**
 * A table of checkpoints, and a line for each metric.
 * @param {{index: number, label: string, step: number | null, bytes: number | null, shared: number | null,
 *   metrics: [string, number][], refusal?: string}[]} found
 * @param {(index: number) => void} choose
 */
export function runView(found, choose) {
  const sorted = [...found].sort((a, b) => (a.step ?? -1) - (b.step ?? -1));
  const names = [...new Set(sorted.flatMap(({metrics}) => metrics.map(([name]) => name)))].sort();
  const cells = (one) => names.map((name) => h('td', {}, short(new Map(one.metrics).get(name) ?? null)));
  const rows = sorted.map((one) => h('tr', {},
    h('td', {class: 'text'}, h('button', {type: 'button', onclick: () => choose(one.index)}, shortened(one.label, 60))),
    h('td', {}, one.step ?? '–'),
    ...(one.refusal ? [h('td', {class: 'text error', colspan: 2 + names.length}, one.refusal)] : [
      h('td', {}, one.bytes === null ? '–' : human(one.bytes)), h('td', {}, one.shared ? human(one.shared) : '–'), ...cells(one)])));
  const lines = names.map((name) => [name, sorted.filter(({step}) => step !== null)
    .map(({step, metrics}) => [step, new Map(metrics).get(name)]).filter(([, value]) => value !== undefined)]);
  return h('div', {}, h('div', {class: 'scroll'}, h('table', {}, h('thead', {}, h('tr', {},
    ['checkpoint', 'step', 'in packs', 'shared', ...names].map((name) => h('th', {scope: 'col'}, name)))), h('tbody', {}, rows))),
  ...lines.filter(([, points]) => points.length > 1).map(([name, points]) => line(name, points)));
}
