/**
 * Checkpoints of a run by step: bytes, and metrics where they were kept.
 */

import {
  h, human, short, shortened, svg,
} from './dom.mjs';

/**
 * What a checkpoint says of itself in a run: bytes are null in storage plain, where no document has them.
 * @typedef {object} Saved
 * @property {number | null} step
 * @property {number | null} bytes
 * @property {number | null} shared
 * @property {{key: string, length: number, shared: boolean}[]} packs
 * @property {[name: string, value: number][]} metrics
 * @property {boolean} hasRows
 * @property {{every: number, reason: string} | null} cadence
 * @property {{id: string, epoch: number} | null} log
 */
/** @typedef {Saved & {index: number, label: string, refusal?: string}} Listed one by its place among all, or why it cannot be opened */
/** @typedef {import('./log.mjs').LogOverview} LogOverview */

const WIDTH = 560;
const HEIGHT = 90;

/**
 * One metric over steps, as a line.
 * @param {string} name
 * @param {[step: number, value: number][]} points
 */
function line(name, points) {
  const xs = points.map(([step]) => step);
  const ys = points.map(([, value]) => value);
  /** @type {(value: number, values: number[], size: number) => number} */
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
 * Checkpoints and epochs of the log by step: bars of bytes, lines for epochs below.
 * @param {Listed[]} sorted
 * @param {LogOverview | null} log
 */
function timeLine(sorted, log) {
  const steps = sorted.flatMap(({step, ...one}) => (step === null ? [] : [{...one, step}]));
  const epochs = (log?.epochs ?? []).flatMap(({
    epoch: number, first_step: first, stop_step: stop, last_batch: last, counts,
  }) => (first === null ? [] : [{
    number, first, stop: stop ?? last ?? first, counts,
  }]));
  const all = [...steps.map(({step}) => step), ...epochs.flatMap(({first, stop}) => [first, stop])];
  if (all.length < 2) return null;
  const least = Math.min(...all);
  const range = Math.max(1, Math.max(...all) - least);
  const most = Math.max(1, ...steps.map(({bytes}) => bytes ?? 0));
  /** @param {number} step */
  const x = (step) => 12 + ((step - least) / range) * (WIDTH - 24);
  const axis = HEIGHT - 24;
  /** @param {typeof steps[number]} one */
  const bar = ({
    step, bytes, shared, refusal,
  }) => {
    const height = ((axis - 8) * (bytes ?? 0)) / most;
    const own = bytes ? (height * (bytes - (shared ?? 0))) / bytes : 0;
    const told = `step ${step}: ${refusal ?? (bytes === null ? 'no packs' : `${human(bytes)}, ${human(shared ?? 0)} shared`)}`;
    /** @type {(top: number, size: number, fill: string) => SVGElement} */
    const part = (top, size, fill) => svg('rect', {
      x: x(step) - 3, y: top, width: 6, height: Math.max(size, 0.5), fill,
    });
    return svg('g', {}, part(axis - own, own, 'var(--accent)'), part(axis - height, height - own, 'var(--bar)'),
      svg('circle', {
        cx: x(step), cy: axis, r: 3, fill: refusal ? 'var(--bad)' : 'var(--text)',
      }), svg('title', {}, told));
  };
  /** @type {(one: typeof epochs[number], i: number) => SVGElement} */
  const epoch = ({
    number, first, stop, counts,
  }, i) => svg('rect', {
    x: x(first), y: axis + 8 + 5 * (i % 3), width: Math.max(x(stop) - x(first), 3), height: 3, fill: counts ? 'var(--added)' : 'var(--quiet)',
  }, svg('title', {}, `epoch ${number}, steps ${first} to ${stop}, ${counts ? 'counts' : 'given up'}`));
  return h('figure', {class: 'time'}, svg('svg', {
    width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': 'checkpoints by step',
  }, svg('line', {
    x1: 0, x2: WIDTH, y1: axis, y2: axis, stroke: 'var(--line)',
  }), steps.map(bar), epochs.map(epoch)),
  h('figcaption', {class: 'quiet'}, `bytes in packs, steps ${least.toLocaleString('en')} to ${(least + range).toLocaleString('en')}`
    + `${epochs.length > 0 ? '; lines below are epochs of the update log, grey where they were given up' : ''}`));
}

/**
 * Bytes of packs that two checkpoints have both.
 * @param {Saved} one
 * @param {Saved} other
 */
function inCommon(one, other) {
  const lengths = new Map(other.packs.map(({key, length}) => [key, length]));
  return one.packs.filter(({key, length, shared}) => shared && lengths.get(key) === length).reduce((sum, {length}) => sum + length, 0);
}

/**
 * The earlier checkpoint with which one shares most bytes, the latest of them; null where there is none.
 * @param {Listed} one
 * @param {Listed[]} earlier
 */
function baseOf(one, earlier) {
  /** @type {{other: Listed, bytes: number} | null} */
  let best = null;
  for (const other of earlier) {
    const bytes = inCommon(one, other);
    if (bytes > 0 && bytes >= (best?.bytes ?? 0)) best = {other, bytes};
  }
  return best;
}

/**
 * A bar of the bytes that a checkpoint has, its own before those that it shares.
 * @param {number} bytes
 * @param {number} shared
 * @param {number} most
 */
function stack(bytes, shared, most) {
  /** @type {(name: string, count: number) => HTMLElement} */
  const part = (name, count) => {
    const element = h('span', {class: name});
    element.style.width = `${(100 * count) / most}%`;
    return element;
  };
  return h('div', {class: 'stack', title: `${human(bytes - shared)} of its own, ${human(shared)} shared`}, part('own', bytes - shared), part('shared', shared));
}

/**
 * What the update log of a run has, by epoch.
 * @param {LogOverview} log
 */
function logView({id, epochs, problem}) {
  if (problem) return h('p', {class: 'error'}, ['The update log cannot be read', problem.code, problem.at, problem.message].filter(Boolean).join(': '));
  /** @param {import('./log.mjs').EpochRow} row */
  const steps = ({first_step: first, stop_step: stop, last_batch: last = null}) => (
    stop === null ? `from ${first ?? '?'}${last === null ? '' : `, the last batch from ${last}`}` : `${first} to ${stop}`);
  return h('section', {}, h('h2', {}, 'update log'), h('p', {class: 'quiet'}, `${id}; an epoch is a start of the job`), h('div', {class: 'scroll'}, h('table', {},
    h('thead', {}, h('tr', {}, ['epoch', 'steps', 'ranks', 'batches', 'bytes', 'optimizer', ''].map((name) => h('th', {scope: 'col'}, name)))),
    h('tbody', {}, epochs.map((one) => h('tr', {}, h('td', {}, one.epoch), h('td', {class: 'text'}, steps(one)), h('td', {}, one.ranks),
      h('td', {}, one.batches.toLocaleString('en')), h('td', {}, human(one.bytes)), h('td', {class: 'text'}, one.optimizer),
      h('td', {class: 'text'}, one.counts ? 'counts' : 'given up')))))));
}

/**
 * Values of a metric by step, of the checkpoints that have both.
 * @param {Saved[]} sorted
 * @param {string} metric
 */
function pointsOf(sorted, metric) {
  /** @type {[step: number, value: number][]} */
  const points = [];
  for (const {step, metrics} of sorted) {
    const value = new Map(metrics).get(metric);
    if (step !== null && value !== undefined) points.push([step, value]);
  }
  return points;
}

/**
 * A table of checkpoints, a line for each metric, how often they were saved, and the update log.
 * @param {Listed[]} found
 * @param {LogOverview | null} log
 * @param {(index: number, other?: number) => void} choose one to show, and one to compare it with
 */
export function runView(found, log, choose) {
  const sorted = [...found].sort((a, b) => (a.step ?? -1) - (b.step ?? -1));
  const names = [...new Set(sorted.flatMap(({metrics}) => metrics.map(([name]) => name)))].sort();
  const most = Math.max(1, ...sorted.map(({bytes}) => bytes ?? 0));
  const hasLog = log !== null || sorted.some((one) => one.log);
  const extra = hasLog ? ['log'] : [];
  /** @type {(one: Listed, i: number) => HTMLElement[]} */
  const cells = (one, i) => {
    const base = baseOf(one, sorted.slice(0, i));
    const position = one.log ? `epoch ${one.log.epoch}${log?.id && log.id !== one.log.id ? ' of another' : ''}` : '–';
    return [
      h('td', {}, one.bytes === null ? '–' : human(one.bytes)), h('td', {}, one.shared ? human(one.shared) : '–'),
      h('td', {class: 'text'}, base ? `step ${base.other.step ?? '–'}, ${human(base.bytes)}` : '–', one.hasRows ? ', rows in layers' : ''),
      h('td', {class: 'wide'}, one.bytes === null ? '' : stack(one.bytes, one.shared ?? 0, most)),
      h('td', {class: 'text'}, comparing(one, sorted.slice(0, i).filter(({refusal}) => !refusal).at(-1))),
      ...(hasLog ? [h('td', {class: 'text'}, position)] : []),
      ...names.map((name) => h('td', {}, short(new Map(one.metrics).get(name) ?? null))),
    ];
  };
  /** @type {(one: Listed, before: Listed | undefined) => HTMLElement | string} */
  const comparing = (one, before) => (before ? h('button', {
    type: 'button', 'aria-label': `compare step ${one.step ?? '–'} with step ${before.step ?? '–'}`, onclick: () => choose(one.index, before.index),
  }, `with step ${before.step ?? '–'}`) : '–');
  const rows = sorted.map((one, i) => h('tr', {},
    h('td', {class: 'text'}, h('button', {type: 'button', onclick: () => choose(one.index)}, shortened(one.label, 60))),
    h('td', {}, one.step ?? '–'),
    ...(one.refusal ? [h('td', {class: 'text error', colspan: 5 + extra.length + names.length}, one.refusal)] : cells(one, i))));
  const lines = names.map((name) => ({name, points: pointsOf(sorted, name)}));
  const paces = sorted.flatMap(({step, cadence}) => (cadence ? [{step, ...cadence}] : []));
  return h('div', {}, timeLine(sorted, log), h('div', {class: 'scroll'}, h('table', {}, h('thead', {}, h('tr', {},
    ['checkpoint', 'step', 'in packs', 'shared', 'shared most with', 'own and shared', 'compare', ...extra, ...names].map((name, i) => (
      h('th', {scope: 'col', class: i === 0 || i === 4 ? 'text nowrap' : null}, name))))), h('tbody', {}, rows))),
  ...paces.slice(-1).map(({step, every, reason}) => h('p', {class: 'quiet'}, `At step ${step ?? '–'} a checkpoint was due every ${every} steps: ${reason}`)),
  ...lines.filter(({points}) => points.length > 1).map(({name, points}) => line(name, points)),
  ...(log ? [logView(log)] : []));
}
