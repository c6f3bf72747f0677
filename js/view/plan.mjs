/**
 * A plan between two arrangements of ranks: bytes from each rank to each other, as a matrix.
 */

import {h, human} from './dom.mjs';

/** Ranks up to which cells have their bytes as text. */
const MAX_TEXTS = 16;

/**
 * @param {{from: string, to: string, slots: number, bytes: number, unplanned: number, ranks: number[],
 *   moved: [number, number, number][]}} plan
 */
export function planView({
  from, to, slots, bytes, unplanned, ranks, moved,
}) {
  const places = new Map(ranks.map((rank, i) => [rank, i]));
  const placeOf = (rank) => places.get(rank) ?? 0;
  const cells = ranks.map(() => new Float64Array(ranks.length));
  for (const [source, target, count] of moved) cells[placeOf(source)][placeOf(target)] = count;
  const sent = cells.map((row, i) => row.reduce((sum, count, j) => sum + (i === j ? 0 : count), 0));
  const received = ranks.map((_, j) => cells.reduce((sum, row, i) => sum + (i === j ? 0 : row[j]), 0));
  const kept = ranks.reduce((sum, _, i) => sum + cells[i][i], 0);
  const most = Math.max(1, ...moved.map(([, , count]) => count));
  const hasTexts = ranks.length <= MAX_TEXTS;
  const cell = (count, i, j) => {
    const what = count === 0 ? 'nothing' : human(count);
    const told = i === j ? `rank ${ranks[i]} keeps ${what}` : `rank ${ranks[i]} sends ${what} to rank ${ranks[j]}`;
    const element = h('td', {title: told, class: i === j ? 'kept' : null}, hasTexts ? (count === 0 ? '' : human(count)) : '');
    element.style.setProperty('--share', `${Math.round((100 * count) / most)}%`);
    return element;
  };
  const sum = (count) => h('td', {class: 'sum'}, count === 0 ? '–' : human(count));
  return h('div', {},
    h('p', {}, `From ${from} to ${to}: ${slots === 1 ? '1 slot' : `${slots.toLocaleString('en')} slots`}, ${human(bytes)}; `
      + `${human(kept)} stay in place, ${human(sent.reduce((a, b) => a + b, 0))} are sent.`
      + `${unplanned > 0 ? ` Of ${unplanned.toLocaleString('en')} slots nothing is known: they have no layout, or are missing.` : ''}`),
    h('p', {class: 'quiet'}, 'Rows send, columns receive; what stays in place is framed.'),
    h('div', {class: 'scroll'}, h('table', {class: hasTexts ? 'matrix' : 'matrix dense'},
      h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'rank'), ranks.map((rank) => h('th', {scope: 'col'}, rank)), h('th', {scope: 'col'}, 'sends'))),
      h('tbody', {}, cells.map((row, i) => h('tr', {}, h('th', {scope: 'row'}, ranks[i]), [...row].map((count, j) => cell(count, i, j)), sum(sent[i]))),
        h('tr', {}, h('th', {scope: 'row'}, 'receives'), received.map(sum), h('td', {class: 'sum'}, ''))))));
}
