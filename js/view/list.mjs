/**
 * A list of any length, of which the rows in sight are elements.
 */

import {h} from './dom.mjs';

const HEIGHT = 24;
/** Browsers lay out about 33 million pixels; a list that is longer is scrolled by a scale. */
const MAX_PIXELS = 16_000_000;
const BEYOND = 8;

/** @template {{open: boolean | null}} Row of which `open` is null where there is nothing to fold */
export class VirtualList {
  /** @type {Row[]} */
  #rows = [];
  #chosen = 0;
  #space = h('div');
  #body = h('div', {class: 'rows', role: 'group'});

  /**
   * @param {HTMLElement} element
   * @param {{make: (row: Row, index: number) => HTMLElement, open: (row: Row) => void,
   *   fold: (row: Row, open: boolean) => void}} actions
   */
  constructor(element, actions) {
    this.element = element;
    this.actions = actions;
    element.append(this.#space, this.#body);
    element.addEventListener('scroll', () => this.#draw());
    element.addEventListener('keydown', (event) => this.#key(event));
    new ResizeObserver(() => this.#draw()).observe(element);
  }

  set rows(rows) {
    this.#rows = rows;
    this.#chosen = Math.min(this.#chosen, Math.max(0, rows.length - 1));
    this.#space.style.height = `${Math.min(rows.length * HEIGHT, MAX_PIXELS)}px`;
    this.#draw();
  }

  get rows() {
    return this.#rows;
  }

  get #scale() {
    return Math.max(1, (this.#rows.length * HEIGHT) / MAX_PIXELS);
  }

  #draw() {
    const {scrollTop, clientHeight} = this.element;
    const first = Math.max(0, Math.floor((scrollTop * this.#scale) / HEIGHT) - BEYOND);
    const stop = Math.min(this.#rows.length, first + Math.ceil(clientHeight / HEIGHT) + 2 * BEYOND);
    const elements = [];
    for (let i = first; i < stop; i += 1) {
      const element = this.actions.make(this.#rows[i], i);
      element.id = `row-${i}`;
      element.setAttribute('aria-setsize', String(this.#rows.length));
      element.setAttribute('aria-posinset', String(i + 1));
      element.classList.toggle('chosen', i === this.#chosen);
      element.setAttribute('aria-selected', String(i === this.#chosen));
      element.addEventListener('click', () => this.#press(i));
      elements.push(element);
    }
    const top = scrollTop - ((scrollTop * this.#scale) / HEIGHT - first) * HEIGHT;
    this.#body.style.top = `${this.#scale === 1 ? first * HEIGHT : top}px`;
    this.#body.replaceChildren(...elements);
    if (stop > first) this.element.setAttribute('aria-activedescendant', `row-${this.#chosen}`);
  }

  /** @param {number} i */
  #press(i) {
    this.#chosen = i;
    const row = this.#rows[i];
    if (row.open === null) this.actions.open(row);
    else this.actions.fold(row, !row.open);
    this.#draw();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / HEIGHT) - 1);
    /** @type {Record<string, number>} */
    const moves = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity,
    };
    const row = this.#rows[this.#chosen];
    if (!row) return;
    if (event.key in moves) this.choose(this.#chosen + moves[event.key]);
    else if (event.key === 'Enter' || event.key === ' ') this.#press(this.#chosen);
    else if (event.key === 'ArrowRight' && row.open === false) this.actions.fold(row, true);
    else if (event.key === 'ArrowLeft' && row.open === true) this.actions.fold(row, false);
    else return;
    event.preventDefault();
  }

  /**
   * Chooses a row and brings it into sight.
   * @param {number} index
   */
  choose(index) {
    this.#chosen = Math.min(Math.max(index, 0), this.#rows.length - 1);
    const top = (this.#chosen * HEIGHT) / this.#scale;
    const {scrollTop, clientHeight} = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + HEIGHT > scrollTop + clientHeight) this.element.scrollTop = top + HEIGHT - clientHeight;
    this.#draw();
  }
}
