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

/** Checkpoints and epochs of the log by step: bars of bytes, lines for epochs below. */
function timeLine(sorted, log) {
  const steps = sorted.filter(({step}) => step !== null);
  const epochs = (log?.epochs ?? []).filter(({first_step: first}) => first !== null);
  const stopOf = ({first_step: first, stop_step: stop, last_batch: last}) => stop ?? last ?? first;
  const all = [...steps.map(({step}) => step), ...epochs.flatMap((one) => [one.first_step, stopOf(one)])];
  if (all.length < 2) return null;
  const least = Math.min(...all);
  const range = Math.max(1, Math.max(...all) - least);
  const most = Math.max(1, ...steps.map(({bytes}) => bytes ?? 0));
  const x = (step) => 12 + ((step - least) / range) * (WIDTH - 24);
  const axis = HEIGHT - 24;
  const bar = ({step, bytes, shared, refusal}) => {
    const height = ((axis - 8) * (bytes ?? 0)) / most;
    const own = bytes ? (height * (bytes - (shared ?? 0))) / bytes : 0;
    const told = `step ${step}: ${refusal ?? (bytes === null ? 'no packs' : `${human(bytes)}, ${human(shared ?? 0)} shared`)}`;
    const part = (top, size, fill) => svg('rect', {
      x: x(step) - 3, y: top, width: 6, height: Math.max(size, 0.5), fill,
    });
    return svg('g', {}, part(axis - own, own, 'var(--accent)'), part(axis - height, height - own, 'var(--bar)'),
      svg('circle', {
        cx: x(step), cy: axis, r: 3, fill: refusal ? 'var(--bad)' : 'var(--text)',
      }), svg('title', {}, told));
  };
  const epoch = (one, i) => svg('rect', {
    x: x(one.first_step), y: axis + 8 + 5 * (i % 3), width: Math.max(x(stopOf(one)) - x(one.first_step), 3), height: 3, fill: one.counts ? 'var(--added)' : 'var(--quiet)',
  }, svg('title', {}, `epoch ${one.epoch}, steps ${one.first_step} to ${stopOf(one)}, ${one.counts ? 'counts' : 'given up'}`));
  return h('figure', {class: 'time'}, svg('svg', {
    width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': 'checkpoints by step',
  }, svg('line', {
    x1: 0, x2: WIDTH, y1: axis, y2: axis, stroke: 'var(--line)',
  }), steps.map(bar), epochs.map(epoch)),
  h('figcaption', {class: 'quiet'}, `bytes in packs, steps ${least.toLocaleString('en')} to ${(least + range).toLocaleString('en')}`
    + `${epochs.length > 0 ? '; lines below are epochs of the update log, grey where they were given up' : ''}`));
}

/** Bytes of packs that two checkpoints have both. */
function inCommon(one, other) {
  const lengths = new Map(other.packs.map(({key, length}) => [key, length]));
  return one.packs.filter(({key, length, shared}) => shared && lengths.get(key) === length).reduce((sum, {length}) => sum + length, 0);
}

/** The earlier checkpoint with which one shares most bytes, the latest of them; null where there is none. */
function baseOf(one, earlier) {
  let best = null;
  for (const other of earlier) {
    const bytes = inCommon(one, other);
    if (bytes > 0 && bytes >= (best?.bytes ?? 0)) best = {other, bytes};
  }
  return best;
}

/** A bar of the bytes that a checkpoint has, its own before those that it shares. */
function stack({bytes, shared}, most) {
  const part = (name, count) => {
    const element = h('span', {class: name});
    element.style.width = `${(100 * count) / most}%`;
    return element;
  };
  return h('div', {class: 'stack', title: `${human(bytes - shared)} of its own, ${human(shared)} shared`}, part('own', bytes - shared), part('shared', shared));
}

/** What the update log of a run has, by epoch. */
function logView({id, epochs, problem}) {
  if (problem) return h('p', {class: 'error'}, `The update log cannot be read: ${problem.code}: ${problem.message ?? problem.detail ?? ''}`);
  const steps = ({first_step: first, stop_step: stop, last_batch: last}) => (
    stop === null ? `from ${first ?? '?'}${last === undefined ? '' : `, the last batch from ${last}`}` : `${first} to ${stop}`);
  return h('section', {}, h('h2', {}, 'update log'), h('p', {class: 'quiet'}, `${id}; an epoch is a start of the job`), h('div', {class: 'scroll'}, h('table', {},
    h('thead', {}, h('tr', {}, ['epoch', 'steps', 'ranks', 'batches', 'bytes', 'optimizer', ''].map((name) => h('th', {scope: 'col'}, name)))),
    h('tbody', {}, epochs.map((one) => h('tr', {}, h('td', {}, one.epoch), h('td', {class: 'text'}, steps(one)), h('td', {}, one.ranks),
      h('td', {}, one.batches.toLocaleString('en')), h('td', {}, human(one.bytes)), h('td', {class: 'text'}, one.optimizer),
      h('td', {class: 'text'}, one.counts ? 'counts' : 'given up')))))));
}

/**
 * A table of checkpoints, a line for each metric, how often they were saved, and the update log.
 * @param {{index: number, label: string, step: number | null, bytes: number | null, shared: number | null,
 *   packs: {key: string, length: number, shared: boolean}[], metrics: [string, number][], hasRows: boolean,
 *   cadence: {every: number, reason: string} | null, log: object | null, refusal?: string}[]} found
 * @param {object | null} log
 * @param {(index: number, other?: number) => void} choose one to show, and one to compare it with
 */
export function runView(found, log, choose) {
  const sorted = [...found].sort((a, b) => (a.step ?? -1) - (b.step ?? -1));
  const names = [...new Set(sorted.flatMap(({metrics}) => metrics.map(([name]) => name)))].sort();
  const most = Math.max(1, ...sorted.map(({bytes}) => bytes ?? 0));
  const hasLog = log !== null || sorted.some((one) => one.log);
  const extra = hasLog ? ['log'] : [];
  const cells = (one, i) => {
    const base = baseOf(one, sorted.slice(0, i));
    const position = one.log ? `epoch ${one.log.epoch}${log?.id && log.id !== one.log.id ? ' of another' : ''}` : '–';
    return [
      h('td', {}, one.bytes === null ? '–' : human(one.bytes)), h('td', {}, one.shared ? human(one.shared) : '–'),
      h('td', {class: 'text'}, base ? `step ${base.other.step ?? '–'}, ${human(base.bytes)}` : '–', one.hasRows ? ', rows in layers' : ''),
      h('td', {class: 'wide'}, one.bytes === null ? '' : stack(one, most)),
      h('td', {class: 'text'}, comparing(one, sorted.slice(0, i).filter(({refusal}) => !refusal).at(-1))),
      ...(hasLog ? [h('td', {class: 'text'}, position)] : []),
      ...names.map((name) => h('td', {}, short(new Map(one.metrics).get(name) ?? null))),
    ];
  };
  const comparing = (one, before) => (before ? h('button', {
    type: 'button', 'aria-label': `compare step ${one.step ?? '–'} with step ${before.step ?? '–'}`, onclick: () => choose(one.index, before.index),
  }, `with step ${before.step ?? '–'}`) : '–');
  const rows = sorted.map((one, i) => h('tr', {},
    h('td', {class: 'text'}, h('button', {type: 'button', onclick: () => choose(one.index)}, shortened(one.label, 60))),
    h('td', {}, one.step ?? '–'),
    ...(one.refusal ? [h('td', {class: 'text error', colspan: 5 + extra.length + names.length}, one.refusal)] : cells(one, i))));
  const lines = names.map((name) => [name, sorted.filter(({step}) => step !== null)
    .map(({step, metrics}) => [step, new Map(metrics).get(name)]).filter(([, value]) => value !== undefined)]);
  const paces = sorted.flatMap(({step, cadence}) => (cadence ? [{step, ...cadence}] : []));
  return h('div', {}, timeLine(sorted, log), h('div', {class: 'scroll'}, h('table', {}, h('thead', {}, h('tr', {},
    ['checkpoint', 'step', 'in packs', 'shared', 'shared most with', 'own and shared', 'compare', ...extra, ...names].map((name, i) => (
      h('th', {scope: 'col', class: i === 0 || i === 4 ? 'text nowrap' : null}, name))))), h('tbody', {}, rows))),
  ...paces.slice(-1).map(({step, every, reason}) => h('p', {class: 'quiet'}, `At step ${step ?? '–'} a checkpoint was due every ${every} steps: ${reason}`)),
  ...lines.filter(([, points]) => points.length > 1).map(([name, points]) => line(name, points)),
  ...(log ? [logView(log)] : []));
}
