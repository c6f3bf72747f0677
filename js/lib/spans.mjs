/**
 * What the steps of a layout keep of one dimension (SPEC section 12), as spans of its indices.
 */

import {UcpError, refuseLayout} from './errors.mjs';
import {ceilDiv, floorDiv} from './grid.mjs';

/** @typedef {import('./layout.mjs').KnownStep} Step */
/**
 * Indices from start to stop. Of padding only the number counts.
 * @typedef {[start: number, stop: number, padding?: boolean]} Span
 */
/** @typedef {{spans: Span[], own: boolean}} Block */

/**
 * The i-th part of `extent` elements that a shard step cuts, as [start, stop).
 * @param {Step} step
 * @param {number} size
 * @param {number} i
 * @param {number} extent
 * @param {string} at
 * @returns {[start: number, stop: number]}
 */
function partOf(step, size, i, extent, at) {
  if (step.sizes) {
    if (step.sizes.reduce((a, b) => a + b, 0) !== extent) {
      refuseLayout(at, `sizes of a shard do not sum to ${extent}`);
    }
    const start = step.sizes.slice(0, i).reduce((a, b) => a + b, 0);
    return [start, start + step.sizes[i]];
  }
  if (step.rule === 'ceil') {
    const c = ceilDiv(extent, size);
    return [Math.min(extent, i * c), Math.min(extent, (i + 1) * c)];
  }
  const base = floorDiv(extent, size);
  const extra = extent % size;
  if (step.rule === 'even' && extra !== 0) refuseLayout(at, `${extent} is not divisible by ${size}`);
  const start = i * base + Math.min(i, extra);
  return [start, start + base + (i < extra ? 1 : 0)];
}

/** @param {Span[]} spans */
export const extentOf = (spans) => spans.reduce((sum, [start, stop]) => sum + stop - start, 0);

/**
 * Elements [start, stop) of the concatenation of spans.
 * @param {Span[]} spans
 * @param {number} start
 * @param {number} stop
 * @returns {Span[]}
 */
function slice(spans, start, stop) {
  /** @type {Span[]} */
  const kept = [];
  let before = 0;
  for (const [from, to, padding] of spans) {
    const first = Math.max(from, from + (start - before));
    const last = Math.min(to, from + (stop - before));
    if (first < last) kept.push([first, last, padding]);
    before += to - from;
  }
  return kept;
}

/**
 * Consecutive blocks of the concatenation of spans, in one pass over both.
 * @param {Span[]} spans
 * @param {number[]} sizes
 * @returns {Span[][]}
 */
function cut(spans, sizes) {
  let next = 0;
  let within = 0;
  return sizes.map((size) => {
    /** @type {Span[]} */
    const block = [];
    for (let left = size; left > 0;) {
      const [from, to, padding] = spans[next];
      const take = Math.min(left, to - from - within);
      block.push([from + within, from + within + take, padding]);
      left -= take;
      within += take;
      if (from + within === to) {
        next += 1;
        within = 0;
      }
    }
    return block;
  });
}

/**
 * The sizes of blocks, which a rule may leave to the extent.
 * @param {Step} step
 * @param {number} extent
 * @param {string} at
 * @returns {number[]}
 */
function blockSizes(step, extent, at) {
  if (step.sizes) {
    const total = step.sizes.reduce((a, b) => a + b, 0);
    if (total !== extent) refuseLayout(at, `sizes of blocks do not sum to ${extent}`);
    return step.sizes;
  }
  const count = /** @type {number} */ (step.count);
  return Array.from({length: count}, (_, i) => {
    const [start, stop] = partOf(step, count, i, extent, at);
    return stop - start;
  });
}

/**
 * Sorted spans, with those that touch merged; padding touches nothing.
 * @param {Span[]} spans
 */
export function merge(spans) {
  /** @type {Span[]} */
  const merged = [];
  for (const span of spans) {
    const last = merged.at(-1);
    if (last && last[1] === span[0] && !last[2] && !span[2]) last[1] = span[1];
    else merged.push([...span]);
  }
  return merged;
}

/**
 * Spans and the padding behind them that a pad step adds.
 * @param {Span[]} spans
 * @param {Step} step
 * @param {string} at
 * @returns {Span[]}
 */
function pad(spans, step, at) {
  const extent = extentOf(spans);
  const longer = step.to ?? ceilDiv(extent, step.multiple) * step.multiple;
  if (longer < extent) refuseLayout(at, `an extent of ${extent} is padded to ${longer}`);
  if (longer > Number.MAX_SAFE_INTEGER) throw new UcpError('UCP-E-LIMIT', at, 'a padded extent is too long');
  return longer === extent ? spans : [...spans, [0, longer - extent, true]];
}

/**
 * Spans within a buffer, the rest of which is padding here.
 * @param {Span[]} spans
 * @param {[offset: number, total: number]} entry
 * @param {string} at
 * @returns {Span[]}
 */
function surround(spans, [offset, total], at) {
  const behind = total - offset - extentOf(spans);
  if (behind < 0) refuseLayout(at, `a buffer of ${total} ends within the tensor at ${offset}`);
  /** @type {Span[]} */
  const all = [[0, offset, true], ...spans, [0, behind, true]];
  return all.filter(([start, stop]) => start < stop);
}

/**
 * What is kept of a dimension, after the steps of one phase that act on it.
 * @param {number} extent
 * @param {import('./layout.mjs').Step[]} steps of kind shard, blocks, join, pad and concat, all on this dimension
 * @param {(axis: string) => [position: number, size: number]} where
 * @param {string} at
 * @returns {Span[]} disjoint, ascending but for padding, not empty; those of neighbouring blocks may touch
 */
export function keep(extent, steps, where, at) {
  /** @type {Block[]} */
  let blocks = [{spans: extent > 0 ? [[0, extent]] : [], own: false}];
  /** @type {(spans: Span[], step: Step) => Span[]} */
  const shard = (spans, step) => {
    const [position, size] = where(step.axis);
    return slice(spans, ...partOf(step, size, position, extentOf(spans), at));
  };
  for (const step of /** @type {Step[]} */ (steps)) {
    if (step.kind === 'shard') {
      blocks = blocks.map((block) => (
        block.own ? block : {spans: shard(block.spans, step), own: false}));
    } else if (step.kind === 'join') {
      blocks = [{spans: blocks.flatMap((block) => block.spans), own: false}];
    } else if (step.kind === 'concat') {
      blocks = [{spans: surround(blocks[0].spans, step.entry(where), at), own: false}];
    } else if (step.kind === 'pad') {
      blocks = [{spans: pad(blocks[0].spans, step, at), own: false}];
    } else {
      const [{spans}] = blocks;
      blocks = cut(spans, blockSizes(step, extentOf(spans), at)).map((part, i) => {
        const own = step.steps?.[i] ?? null;
        return own === null ? {spans: part, own: false} : {spans: /** @type {Step[]} */ (own).reduce(shard, part), own: true};
      });
    }
  }
  return blocks.flatMap((block) => block.spans);
}
