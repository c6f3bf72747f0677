/**
 * The view of one tensor: what it is, a window of values, heat map, histogram, layout, places of its bytes.
 */

import {
  heatMap, histogram, layoutDrawing, strip,
} from './charts.mjs';
import {changeOfSlot, isAlike} from './comparison.mjs';
import {
  counted, extents, failed, h, human, own, short, shortened,
} from './dom.mjs';
import {stepWords} from './layouts.mjs';
import {slotPlanForm} from './plan.mjs';

/** @typedef {import('./tree.mjs').AtomRow} AtomRow */
/** @typedef {import('./tree.mjs').SlotRow} SlotRow */
/** @typedef {import('./session.mjs').Session} Session */
/** @typedef {import('../lib/boxes.mjs').Box} Box */
/** @typedef {{mesh: import('../lib/mesh.mjs').Mesh, steps: import('../lib/layout.mjs').Step[]}} Layout */
/** @typedef {ReturnType<Session['window']>} Window */
/** @typedef {ReturnType<Session['statistics']>} Statistics */

const WINDOW = [8, 6];

/**
 * The slot of an atom by its name.
 * @param {AtomRow | null} atom
 * @param {string} name
 */
const named = (atom, name) => atom?.slots.find((slot) => slot.name === name);

/**
 * Runs a question when its button is pressed, or at once; shows what it gives.
 * @template T
 * @param {string} title
 * @param {() => Promise<T>} ask
 * @param {(found: T) => HTMLElement} show
 * @param {{now?: boolean, label?: string}} [how]
 */
function panel(title, ask, show, {now = false, label = 'show'} = {}) {
  const body = h('div', {class: 'scroll'});
  const run = async () => {
    body.replaceChildren(h('p', {class: 'quiet'}, 'reading…'));
    try {
      body.replaceChildren(show(await ask()));
    } catch (error) {
      body.replaceChildren(failed(error));
    }
  };
  if (now) run();
  else body.append(h('button', {type: 'button', onclick: run}, label));
  return h('section', {'data-panel': title}, h('h2', {}, title), body);
}

/**
 * A table of the last two dimensions of a window; elements that are others elsewhere are marked.
 * @param {number[]} offset
 * @param {Window} found
 * @param {string[] | null} others texts of the same elements in the checkpoint with which this one is compared
 */
function valuesTable(offset, {shape, texts}, others) {
  const columns = shape.at(-1) ?? 1;
  const [top, left] = [offset.at(-2) ?? 0, offset.at(-1) ?? 0];
  const rows = [];
  for (let at = 0; at < texts.length; at += columns) rows.push(texts.slice(at, at + columns));
  /** @type {(text: string, at: number) => HTMLElement} */
  const cell = (text, at) => (others && others[at] !== text
    ? h('td', {class: 'changed', title: `compared with: ${others[at]}`}, h('span', {class: 'name'}, text)) : h('td', {}, text));
  return h('table', {class: 'values'},
    h('thead', {}, h('tr', {}, h('th'), rows.length > 0 ? rows[0].map((_, i) => h('th', {scope: 'col'}, left + i)) : [])),
    h('tbody', {}, rows.map((row, i) => h('tr', {}, h('th', {scope: 'row'}, top + i), row.map((text, column) => cell(text, i * columns + column))))));
}

/**
 * A window of values, with the indices that it begins with.
 * @param {SlotRow} slot
 * @param {(box: Box) => Promise<Window>} ask
 * @param {((box: Box) => Promise<Window>) | null} askOther the same of the checkpoint with which this one is compared
 */
function windowPanel({shape}, ask, askOther) {
  const offset = shape.map(() => 0);
  const body = h('div', {class: 'scroll'});
  const draw = async () => {
    const wanted = shape.map((extent, dim) => {
      const most = dim === shape.length - 1 ? WINDOW[1] : dim === shape.length - 2 ? WINDOW[0] : 1;
      return Math.max(0, Math.min(extent - offset[dim], most));
    });
    try {
      const box = {offset: [...offset], shape: wanted};
      const found = await ask(box);
      const others = askOther && (await askOther(box)).texts;
      const count = others && found.texts.filter((text, i) => text !== others[i]).length;
      body.replaceChildren(valuesTable(offset, found, others), ...(others ? [h('p', {class: 'quiet'},
        `${count} of these ${found.texts.length} differ from the checkpoint that this one is compared with`)] : []));
    } catch (error) {
      body.replaceChildren(failed(error));
    }
  };
  const inputs = shape.map((extent, dim) => {
    const input = h('input', {
      type: 'number', min: 0, max: Math.max(0, extent - 1), value: 0, 'aria-label': `first index of dimension ${dim}`,
      onchange: () => {
        offset[dim] = Math.min(Math.max(0, Math.floor(Number(input.value)) || 0), Math.max(0, extent - 1));
        input.value = String(offset[dim]);
        draw();
      },
    });
    return input;
  });
  if (shape.includes(0)) body.append(h('p', {class: 'quiet'}, 'No elements.'));
  else draw();
  return h('section', {'data-panel': 'values'}, h('h2', {}, 'values'),
    shape.length > 0 ? h('p', {}, 'from ', inputs.flatMap((input) => [input, ' '])) : null, body);
}

/** @param {Statistics} found */
function statisticsView(found) {
  const rows = [
    ['elements', found.count.toLocaleString('en')], ['NaN', found.nan.toLocaleString('en')], ['infinite', found.inf.toLocaleString('en')],
    ['zeros', found.zeros.toLocaleString('en')], ['least', short(found.minimum)], ['largest', short(found.maximum)],
    ['mean', short(found.mean)], ['norm', short(found.norm)],
  ];
  return h('div', {}, h('dl', {}, rows.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])), histogram(found));
}

/** @param {ReturnType<Session['difference']>} found */
function differenceView({
  map, read, changed, most,
}) {
  const share = read > 0 ? ((100 * changed) / read).toPrecision(3) : '0';
  return h('div', {}, h('p', {class: 'quiet'}, `${changed.toLocaleString('en')} of ${read.toLocaleString('en')} elements that were read differ (${share} %); `
    + `the largest difference is ${short(most)}`), heatMap(map));
}

/** @param {ReturnType<Session['places']>} found */
function placesView({
  content, chunks, chunkShape, segments, places, objects,
}) {
  const strips = objects.map(({key, length}) => h('figure', {}, strip(length, places.filter((place) => place.key === key)),
    h('figcaption', {class: 'quiet'}, `${key}, ${human(length)}`)));
  return h('div', {}, h('p', {class: 'quiet'}, content ?? 'no content digest'), strips, h('p', {class: 'quiet'}, `${counted(segments, 'segment')} in ${counted(chunks, 'chunk')} of ${extents(chunkShape)}`
    + `${places.length < segments ? `; the first ${places.length} are listed` : ''}`),
  h('table', {}, h('thead', {}, h('tr', {}, ['chunk', 'object', 'offset', 'bytes'].map((name) => h('th', {class: 'text'}, name)))),
    h('tbody', {}, places.map(({
      chunk, key, offset, length,
    }) => h('tr', {}, h('td', {}, chunk), h('td', {class: 'text'}, key), h('td', {}, offset), h('td', {}, length))))));
}

/**
 * The slots of an atom: what they are, how they are spread, and what became of them.
 * @param {AtomRow} atom
 * @param {(name: string) => HTMLElement} tab
 * @param {Layout[]} layouts
 * @param {AtomRow | null} other
 */
function slotsTable({slots}, tab, layouts, other) {
  if (slots.length === 0) return '';
  /** @param {SlotRow} slot */
  const changed = (slot) => {
    const theirs = named(other, slot.name);
    return theirs && !isAlike(slot, theirs) ? 'another type or shape' : changeOfSlot(slot, theirs);
  };
  /** @param {SlotRow} slot */
  const spread = ({layout}) => {
    if (layout === null || !layouts[layout]) return '–';
    return shortened(layouts[layout].steps.map(stepWords).join(', ') || 'replicated', 80);
  };
  /** @param {HTMLElement | string} content */
  const text = (content) => h('td', {class: 'text'}, content);
  return h('div', {class: 'scroll'}, h('table', {class: 'slots'},
    h('thead', {}, h('tr', {}, ['slot', 'type', 'shape', 'bytes', 'layout', ...(other ? ['compared'] : [])].map((name) => h('th', {class: 'text', scope: 'col'}, name)))),
    h('tbody', {}, slots.map((slot) => h('tr', {}, text(tab(slot.name)), text(slot.dtype), h('td', {}, extents(slot.shape)), h('td', {}, `${human(slot.bytes)} (${slot.bytes.toLocaleString('en')})`),
      text(spread(slot)), other ? text(changed(slot)) : null)))));
}

/**
 * Fills the section with one slot of an atom.
 * @param {HTMLElement} section
 * @param {Pick<import('./client.mjs').Client, 'ask'>} client
 * @param {AtomRow} atom
 * @param {string} [slotName]
 * @param {{known?: Record<string, Statistics>, carried?: Record<string, object>, other?: AtomRow | null,
 *   change?: string, layouts?: Layout[]}} [beside] statistics and previews that came with the page, by slot; the
 *   same atom of the checkpoint with which this one is compared, and what changed in words; layouts of the checkpoint
 */
export function showTensor(section, client, atom, slotName = 'value', beside = {}) {
  const {known = {}, carried = {}, other = null, change = '', layouts = []} = beside;
  const slot = named(atom, slotName) ?? atom.slots[0];
  /** @param {string} name */
  const again = (name) => showTensor(section, client, atom, name, beside);
  /** @param {string} name */
  const tab = (name) => h('button', {type: 'button', 'aria-pressed': String(name === slot?.name), onclick: () => again(name)}, name);
  const facts = [h('h2', {}, h('bdi', {}, atom.name)), slotsTable(atom, tab, layouts, other)];
  if (!slot) {
    section.replaceChildren(...facts, h('p', {class: 'quiet'}, 'No slots.'));
    return;
  }
  const asked = {side: 'a', atom: atom.name, slot: slot.name};
  const theirs = named(other, slot.name);
  const canCompare = theirs !== undefined && isAlike(slot, theirs);
  const isSame = changeOfSlot(slot, theirs) === 'same';
  const differs = canCompare && !isSame;
  const hasPreview = own(carried, slot.name) !== undefined;
  const big = slot.bytes > 8 << 20 && !hasPreview;
  section.replaceChildren(...facts,
    atom.aliases.length > 0 ? h('dl', {}, h('dt', {}, 'aliases'), h('dd', {}, atom.aliases.join(', '))) : '',
    ...(change ? [h('p', {}, `Compared: ${change}.`)] : []),
    ...(other ? [h('p', {class: 'quiet'}, isSame ? 'The same as in the checkpoint that it is compared with.'
      : canCompare ? 'Elements that differ there are marked.' : 'There it has another type or shape, or is missing.')] : []),
    windowPanel(slot, (box) => client.ask('window', {...asked, ...box}), differs ? (box) => client.ask('window', {...asked, side: 'b', ...box}) : null),
    ...(differs && !hasPreview ? [panel('what changed', () => client.ask('difference', {...asked, other: 'b'}), differenceView,
      {label: `show, reads up to ${human(2 * Math.min(slot.bytes, 8 << 20))}`})] : []),
    panel('heat map', () => client.ask('heatMap', asked), heatMap,
      {now: hasPreview, label: `show, reads up to ${human(Math.min(slot.bytes, 8 << 20))}`}),
    ...(big ? [panel('whole heat map', () => client.ask('heatMap', {...asked, whole: true}), heatMap, {label: `show, reads ${human(slot.bytes)}`})] : []),
    panel('statistics', async () => own(known, slot.name) ?? client.ask('statistics', asked), statisticsView,
      {now: own(known, slot.name) !== undefined, label: `show, reads ${human(slot.bytes)}`}),
    panel('layout', () => client.ask('layout', asked), (found) => (
      found ? layoutDrawing(found) : h('p', {class: 'quiet'}, 'Nothing says who held it.')), {now: slot.layout !== null}),
    ...(slot.layout === null ? [] : [h('section', {'data-panel': 'plan'}, h('h2', {}, 'plan'),
      slotPlanForm(layouts[slot.layout], (layout) => client.ask('plan', {...asked, layout})))]),
    panel('places', () => client.ask('places', asked), placesView));
}
