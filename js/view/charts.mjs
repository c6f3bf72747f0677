/**
 * Pictures: heat map, histogram, layout, map of bytes.
 */

import {extents, h, human, short, svg, visible} from './dom.mjs';
import {meshText} from './layouts.mjs';
import {withOnlyChildren} from './tree.mjs';

/** @typedef {import('./matrix.mjs').HeatMap} HeatMap */
/**
 * Who holds what of a tensor: the first coordinates of `count`, none where there are too many boxes to draw.
 * @typedef {{axes: import('../lib/mesh.mjs').Axis[], steps: string[], shape: number[], count: number,
 *   holders: {coordinate: number[], shape: number[] | null, boxes: Box[]}[]}} Held
 */
/** @typedef {import('./tree.mjs').Module} Module */
/** @typedef {{x: number, y: number, width: number, height: number}} Area */
/** @typedef {import('../lib/boxes.mjs').Box} Box */

/**
 * Blue below zero, red above, grey at zero; yellow where a mean is not a number.
 * @param {number} value
 * @param {number} most
 */
function colour(value, most) {
  if (Number.isNaN(value)) return [255, 200, 0];
  const t = most > 0 ? Math.max(-1, Math.min(1, value / most)) : 0;
  const fade = Math.round(235 * (1 - Math.abs(t)));
  return t < 0 ? [fade, fade, 235] : [235, fade, fade];
}

/**
 * A canvas with a cell for each mean, and its scale.
 * @param {HeatMap} map
 */
export function heatMap({
  rows, columns, height, width, cells, held, isWhole,
}) {
  if (width === 0) return h('p', {class: 'quiet'}, 'No elements.');
  const finite = cells.filter(Number.isFinite);
  const most = finite.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
  const zoom = Math.max(1, Math.floor(384 / Math.max(width, height)));
  const canvas = h('canvas', {
    width, height, role: 'img', 'aria-label': `means of ${height} by ${width} cells, from ${short(-most)} to ${short(most)}`,
  });
  canvas.style.width = `${width * zoom}px`;
  canvas.style.height = `${height * Math.max(zoom, isWhole ? 1 : 12)}px`;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  const image = context.createImageData(width, height);
  cells.forEach((value, i) => image.data.set([...colour(value, most), held[i] ? 255 : 0], 4 * i));
  context.putImageData(image, 0, 0);
  return h('figure', {}, canvas, h('figcaption', {class: 'quiet'},
    `${rows.toLocaleString('en')} × ${columns.toLocaleString('en')} as ${height} × ${width} cells, blue ${short(-most)}, red ${short(most)}`
    + `${isWhole ? '' : '; some rows of each band are read'}`));
}

/**
 * Bars by powers of two, negative numbers to the left.
 * @param {{positive: [power: number, count: number][], negative: [power: number, count: number][], zeros: number}} counts
 */
export function histogram({
  positive, negative, zeros,
}) {
  const bars = [
    ...[...negative].reverse().map(([power, count]) => ({label: `−2^${power}`, count, kind: 'negative'})),
    ...(zeros > 0 ? [{label: '0', count: zeros, kind: 'zero'}] : []),
    ...positive.map(([power, count]) => ({label: `2^${power}`, count, kind: 'positive'})),
  ];
  if (bars.length === 0) return h('p', {class: 'quiet'}, 'No finite elements.');
  const most = Math.max(...bars.map(({count}) => count));
  const step = Math.max(2, Math.min(24, 600 / bars.length));
  const every = Math.ceil(48 / step);
  return svg('svg', {
    width: bars.length * step + 20, height: 140, viewBox: `0 0 ${bars.length * step + 20} 140`, role: 'img', 'aria-label': 'histogram of magnitudes',
  }, bars.flatMap(({label, count}, i) => {
    const height = Math.max(1, (110 * count) / most);
    return [
      svg('rect', {
        x: i * step, y: 112 - height, width: step - 1, height, fill: 'var(--bar)',
      }, svg('title', {}, `${label}: ${count.toLocaleString('en')}`)),
      ...(i % every === 0 ? [svg('text', {x: i * step, y: 128}, label)] : []),
    ];
  }));
}

/** @param {number} i */
const hue = (i) => `hsl(${(i * 137.5) % 360} 55% 55%)`;

/**
 * What of a box shows in a drawing of two dimensions: the last two.
 * @param {number[]} list
 * @param {number} fallback
 */
const flat = (list, fallback) => [list.at(-2) ?? fallback, list.at(-1) ?? fallback];

/**
 * A drawing of who holds what, with a slider over ranks.
 * @param {Held} layout
 */
export function layoutDrawing({
  axes, steps, shape, count, holders,
}) {
  const [rows, columns] = flat(shape, 1).map((extent) => Math.max(extent, 1));
  const scale = 360 / Math.max(rows, columns);
  const size = {width: Math.max(columns * scale, 24), height: Math.max(rows * scale, 24)};
  const unit = [size.height / rows, size.width / columns];
  /** @type {(box: Box, attributes: import('./dom.mjs').Attributes) => SVGElement} */
  const rectangle = ({offset, shape: extent}, attributes) => {
    const [y, x] = flat(offset, 0);
    const [height, width] = flat(extent, 1);
    return svg('rect', {
      x: x * unit[1], y: y * unit[0], width: Math.max(width * unit[1], 0.5), height: Math.max(height * unit[0], 0.5), ...attributes,
    });
  };
  // Boxes that several ranks hold are drawn once, in the colour of the first.
  /** @type {Map<string, {box: Box, ranks: number[]}>} */
  const drawn = new Map();
  holders.forEach(({boxes}, rank) => boxes.forEach((box) => {
    const id = `${box.offset} ${box.shape}`;
    const found = drawn.get(id) ?? {box, ranks: []};
    found.ranks.push(rank);
    drawn.set(id, found);
  }));
  const base = [...drawn.values()].map(({box, ranks}) => rectangle(box, {
    fill: hue(ranks[0]), stroke: 'var(--back)', 'stroke-width': 0.5, opacity: 0.45,
  }));
  const front = svg('g');
  const picture = svg('svg', {
    width: size.width, height: size.height, viewBox: `0 0 ${size.width} ${size.height}`, role: 'img', 'aria-label': 'who holds what',
  }, rectangle({offset: shape.map(() => 0), shape}, {fill: 'none', stroke: 'var(--line)'}), ...base, front);
  const told = h('output');
  /** @param {number} rank */
  const show = (rank) => {
    const {coordinate, shape: local, boxes} = holders[rank];
    front.replaceChildren(...boxes.map((box) => rectangle(box, {fill: hue(rank), stroke: 'var(--text)', 'stroke-width': 1.5})));
    const where = axes.map(({name}, i) => `${name} ${coordinate[i]}`).join(', ');
    told.textContent = visible(`rank ${rank} (${where}): ${local === null ? 'nothing' : extents(local)}, ${boxes.length} ${boxes.length === 1 ? 'box' : 'boxes'}`);
  };
  if (holders.length === 0) return h('p', {class: 'quiet'}, 'This layout has too many pieces to draw.');
  const slider = h('input', {
    type: 'range', min: 0, max: holders.length - 1, value: 0, 'aria-label': 'rank', oninput: () => show(Number(slider.value)),
  });
  show(0);
  return h('figure', {}, picture, h('figcaption', {}, slider, ' ', told), h('p', {class: 'quiet'}, `over ${meshText({axes})}: ${steps.join('; ') || 'replicated'}`
    + `${holders.length < count ? `; the first ${holders.length} of ${count} ranks are drawn` : ''}${shape.length > 2 ? '; the last two dimensions are shown' : ''}`));
}

/**
 * Rectangles that fill a rectangle by weight: halves of the weight, across the longer side.
 * @param {Module[]} items
 * @param {Area} box
 * @param {(Area & {item: Module})[]} out
 */
function divided(items, box, out) {
  if (items.length === 0) return;
  if (items.length === 1) {
    out.push({...box, item: items[0]});
    return;
  }
  const total = items.reduce((sum, {bytes}) => sum + bytes, 0);
  let left = 0;
  let cut = 0;
  while (cut < items.length - 1 && (cut === 0 || left + items[cut].bytes <= total / 2)) {
    left += items[cut].bytes;
    cut += 1;
  }
  const share = total > 0 ? left / total : 0;
  const wide = box.width >= box.height;
  const first = wide ? {...box, width: box.width * share} : {...box, height: box.height * share};
  const second = wide ? {...box, x: box.x + first.width, width: box.width - first.width}
    : {...box, y: box.y + first.height, height: box.height - first.height};
  divided(items.slice(0, cut), first, out);
  divided(items.slice(cut), second, out);
}

/** Space that the name of a module takes in a map above what is in it, and the smallest box that has some. */
const NAME_HEIGHT = 16;
const LEAST_WIDTH = 48;
const LEAST_HEIGHT = 40;
/** Boxes of the largest map. */
const MAX_BOXES = 1500;

/**
 * The largest children of a module that have bytes, the largest first.
 * @param {Module} module
 */
const largest = (module) => [...module.children.values()].filter(({bytes}) => bytes > 0).sort((a, b) => b.bytes - a.bytes).slice(0, 400);

/**
 * A map of a module by bytes: its children, in them theirs, as far as there is room. The outer ones are buttons.
 * @param {import('./tree.mjs').Module} module
 * @param {(path: import('./tree.mjs').Module[]) => void} open what is below the module, from the outside to what was chosen
 * @param {((module: import('./tree.mjs').Module) => {fill: string, told: string}) | null} shadeOf colours by what changed
 */
export function bytesMap(module, open, shadeOf) {
  let left = MAX_BOXES;
  /** @type {(path: Module[], box: Area, colour: string) => SVGElement} */
  const drawn = (path, box, colour) => {
    const [item, name] = withOnlyChildren(path[path.length - 1]);
    const {fill, told} = shadeOf ? shadeOf(item) : {fill: colour, told: ''};
    const width = Math.max(box.width - 1, 0.3);
    const height = Math.max(box.height - 1, 0.3);
    const label = `${name} ${human(item.bytes)}${told && `, ${told}`}`;
    /** @type {(Area & {item: Module})[]} */
    const inner = [];
    left -= 1;
    const children = width > LEAST_WIDTH && height > LEAST_HEIGHT ? largest(item) : [];
    if (children.length > 0 && children.length <= left) {
      divided(children, {
        x: box.x + 2, y: box.y + NAME_HEIGHT, width: width - 4, height: height - NAME_HEIGHT - 2,
      }, inner);
    }
    /** @param {Event} event */
    const act = (event) => {
      event.stopPropagation();
      open([...path.slice(0, -1), item]);
    };
    const reached = path.length > 1 ? {} : {
      tabindex: 0, role: 'button', 'aria-label': visible(label), onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== 'Enter' && event.key !== ' ') return;
        event.preventDefault();
        act(event);
      },
    };
    return svg('g', {...reached, onclick: act}, svg('rect', {
      x: box.x, y: box.y, width, height, fill, 'fill-opacity': inner.length > 0 ? 0.25 : 0.6, stroke: inner.length > 0 ? fill : null,
    }, svg('title', {}, `${item.name}: ${label}`)),
    width > 7 * 8 && height > 16 ? svg('text', {x: box.x + 4, y: box.y + 12}, label.slice(0, Math.floor(width / 7))) : null,
    inner.map(({item: child, ...rest}) => drawn([...path, child], rest, colour)));
  };
  /** @type {(Area & {item: Module})[]} */
  const boxes = [];
  divided(largest(module), {
    x: 0, y: 0, width: 640, height: 440,
  }, boxes);
  return svg('svg', {
    width: 640, height: 440, viewBox: '0 0 640 440', role: 'group', 'aria-label': 'map of bytes',
  }, boxes.map(({item, ...box}, i) => drawn([item], box, hue(i))));
}

/**
 * Where parts of an object lie in it, as a strip.
 * @param {number} length
 * @param {{offset: number, length: number}[]} parts
 */
export function strip(length, parts) {
  const scale = 560 / Math.max(length, 1);
  return svg('svg', {
    width: 562, height: 14, viewBox: '0 0 562 14', role: 'img', 'aria-label': `places in ${human(length)}`,
  }, svg('rect', {
    x: 0.5, y: 0.5, width: 561, height: 13, fill: 'none', stroke: 'var(--line)',
  }), parts.map(({offset, length: size}) => svg('rect', {
    x: 1 + offset * scale, y: 1, width: Math.max(size * scale, 1), height: 12, fill: 'var(--accent)',
  }, svg('title', {}, `${offset.toLocaleString('en')} to ${(offset + size).toLocaleString('en')}`))));
}
