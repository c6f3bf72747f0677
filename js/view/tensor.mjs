/**
 * The view of one tensor: what it is, a window of values, heat map, histogram, layout, places of its bytes.
 */

import {heatMap, histogram, layoutDrawing} from './charts.mjs';
import {
  extents, h, human, own, short,
} from './dom.mjs';

const WINDOW = [8, 6];

const failed = (error) => h('p', {class: 'error', role: 'alert'}, error.message);

/** Runs a question when its button is pressed, or at once; shows what it gives. */
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

/** A table of the last two dimensions of a window. */
function valuesTable(offset, {shape, texts}) {
  const columns = shape.at(-1) ?? 1;
  const [top, left] = [offset.at(-2) ?? 0, offset.at(-1) ?? 0];
  const rows = [];
  for (let at = 0; at < texts.length; at += columns) rows.push(texts.slice(at, at + columns));
  return h('table', {class: 'values'},
    h('thead', {}, h('tr', {}, h('th'), rows.length > 0 ? rows[0].map((_, i) => h('th', {scope: 'col'}, left + i)) : [])),
    h('tbody', {}, rows.map((row, i) => h('tr', {}, h('th', {scope: 'row'}, top + i), row.map((text) => h('td', {}, text))))));
}

function windowPanel(ask, slot) {
  const {shape} = slot;
  const offset = shape.map(() => 0);
  const body = h('div', {class: 'scroll'});
  const draw = async () => {
    const wanted = shape.map((extent, dim) => {
      const most = dim === shape.length - 1 ? WINDOW[1] : dim === shape.length - 2 ? WINDOW[0] : 1;
      return Math.max(0, Math.min(extent - offset[dim], most));
    });
    try {
      const found = await ask('window', {offset: [...offset], shape: wanted});
      body.replaceChildren(valuesTable(offset, found));
    } catch (error) {
      body.replaceChildren(failed(error));
    }
  };
  const inputs = shape.map((extent, dim) => {
    const input = h('input', {
      type: 'number', min: 0, max: Math.max(0, extent - 1), value: 0, 'aria-label': `first index of dimension ${dim}`,
      onchange: () => {
        offset[dim] = Math.min(Math.max(0, Math.floor(Number(input.value)) || 0), Math.max(0, extent - 1));
        input.value = offset[dim];
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

function statisticsView(found) {
  const rows = [
    ['elements', found.count.toLocaleString('en')], ['NaN', found.nan.toLocaleString('en')], ['infinite', found.inf.toLocaleString('en')],
    ['zeros', found.zeros.toLocaleString('en')], ['least', short(found.minimum)], ['largest', short(found.maximum)],
    ['mean', short(found.mean)], ['norm', short(found.norm)],
  ];
  return h('div', {}, h('dl', {}, rows.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])), histogram(found));
}

function placesView({
  content, chunks, chunkShape, segments, places,
}) {
  return h('div', {}, h('p', {class: 'quiet'}, content ?? 'no content digest'), h('p', {class: 'quiet'}, `${segments} segments in ${chunks} chunks of ${extents(chunkShape)}`
    + `${places.length < segments ? `; the first ${places.length} are listed` : ''}`),
  h('table', {}, h('thead', {}, h('tr', {}, ['chunk', 'object', 'offset', 'bytes'].map((name) => h('th', {class: 'text'}, name)))),
    h('tbody', {}, places.map(({
      chunk, key, offset, length,
    }) => h('tr', {}, h('td', {}, chunk), h('td', {class: 'text'}, key), h('td', {}, offset), h('td', {}, length))))));
}

/**
 * Fills the section with one slot of an atom.
 * @param {HTMLElement} section
 * @param {{ask: (method: string, params: object) => Promise<any>}} client
 * @param {object} atom
 * @param {string} [slotName]
 * @param {Record<string, object>} [known] statistics that came with the page, by slot
 */
export function showTensor(section, client, atom, slotName = 'value', known = {}) {
  const slot = atom.slots.find(({name}) => name === slotName) ?? atom.slots[0];
  const again = (name) => showTensor(section, client, atom, name, known);
  const tabs = atom.slots.map(({name}) => h('button', {
    type: 'button', 'aria-pressed': String(name === slot?.name), onclick: () => again(name),
  }, name));
  const facts = [h('h2', {}, h('bdi', {}, atom.name)), h('p', {}, tabs.flatMap((tab) => [tab, ' ']))];
  if (!slot) {
    section.replaceChildren(...facts, h('p', {class: 'quiet'}, 'No slots.'));
    return;
  }
  const ask = (method, more = {}) => client.ask(method, {
    side: 'a', atom: atom.name, slot: slot.name, ...more,
  });
  const big = slot.bytes > 8 << 20;
  section.replaceChildren(...facts,
    h('dl', {},
      h('dt', {}, 'type'), h('dd', {}, slot.dtype), h('dt', {}, 'shape'), h('dd', {}, extents(slot.shape)),
      h('dt', {}, 'bytes'), h('dd', {}, `${human(slot.bytes)} (${slot.bytes.toLocaleString('en')})`),
      ...(atom.aliases.length > 0 ? [h('dt', {}, 'aliases'), h('dd', {}, atom.aliases.join(', '))] : [])),
    windowPanel(ask, slot),
    panel('heat map', () => ask('heatMap'), heatMap, {label: `show, reads up to ${human(Math.min(slot.bytes, 8 << 20))}`}),
    ...(big ? [panel('whole heat map', () => ask('heatMap', {whole: true}), heatMap, {label: `show, reads ${human(slot.bytes)}`})] : []),
    panel('statistics', async () => own(known, slot.name) ?? ask('statistics'), statisticsView,
      {now: own(known, slot.name) !== undefined, label: `show, reads ${human(slot.bytes)}`}),
    panel('layout', () => ask('layout'), (found) => (
      found ? layoutDrawing(found) : h('p', {class: 'quiet'}, 'Nothing says who held it.')), {now: slot.layout !== null}),
    panel('places', () => ask('places'), placesView));
}
