/**
 * The page: opens checkpoints, lists their tensors, and shows one of them.
 */

import {bytesMap} from './charts.mjs';
import {Client} from './client.mjs';
import {
  counted, extents, h, human, own, shortened,
} from './dom.mjs';
import {checkpointsAmong, chosenFiles, droppedFiles} from './files.mjs';
import {VirtualList} from './list.mjs';
import {patternsForm, planForm, planView} from './plan.mjs';
import {runView} from './run.mjs';
import {showTensor} from './tensor.mjs';
import {
  behind, byName, bySize, changeOf, globTest, rowsOf, sideOf, treeOf,
} from './tree.mjs';

const MAX_LABEL = 160;
const MAX_PROBLEMS = 1000;
/** An element of page.html, which has all that are asked for. */
const $ = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** The same of those that are filled in. */
const field = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));
/** The button of a view. */
const tab = (name) => /** @type {HTMLButtonElement} */ (document.querySelector(`[data-view="${name}"]`));
/** @returns {NodeListOf<HTMLButtonElement>} */
const tabs = () => document.querySelectorAll('nav button');
const said = (error) => /** @type {Error} */ (error).message;

/** @typedef {import('./tree.mjs').AtomRow} Row */
/** @typedef {import('./tree.mjs').Module} Module */
/** @typedef {{label: string, source: object, statistics?: Record<string, Record<string, object>>}} Choice */

class Page {
  /** @type {{a: Map<string, Row>, b: Map<string, Row> | null}} atoms by name, of the side that is shown and of the one it is compared with */
  atoms = {a: new Map(), b: null};
  /** @type {{a: import('./tree.mjs').Side, b: import('./tree.mjs').Side} | null} the same of a comparison, when both are read */
  sides = null;
  /** @type {Set<string>} names of modules */
  open = new Set();
  /** @type {Row[]} */
  chosenAtoms = [];
  /** @type {Module | null} */
  madeTree = null;
  /** @type {WeakMap<Module, {atoms: number, changed: number, bytes: number}>} what is known of modules of that tree */
  changes = new WeakMap();
  /** @type {Parameters<typeof planView>[0] | null} */
  plan = null;
  /** What the update log of the run has, or null. */
  log = null;
  /** @type {Record<string, object>} ready-made pattern documents, by name */
  patterns = {};

  /** @param {() => Worker} makeWorker */
  constructor(makeWorker, choices) {
    this.client = new Client(makeWorker);
    this.client.onfetched = ({requests, bytes}) => {
      $('fetched').textContent = `${requests.toLocaleString('en')} reads, ${human(bytes)}`;
      $('fetched').dataset.bytes = String(bytes);
    };
    this.choices = choices;
    this.list = new VirtualList($('list'), {
      make: (row) => this.#row(row),
      open: ({module}) => this.show(module.atom),
      fold: ({module}, isOpen) => this.fold(module.name, isOpen),
    });
    for (const id of ['search', 'changed']) $(id).addEventListener('input', () => this.choose());
    for (const id of ['flat', 'by-size']) $(id).addEventListener('input', () => this.relist());
    for (const button of tabs()) button.addEventListener('click', () => this.view(button.dataset.view));
    $('side-a').addEventListener('change', () => this.start());
    $('side-b').addEventListener('change', () => this.start());
    $('directory').addEventListener('change', () => this.add(chosenFiles(field('directory'))));
    document.addEventListener('keydown', (event) => {
      if (event.key !== '/' || /^(INPUT|SELECT)$/.test(/** @type {Element} */ (event.target).tagName)) return;
      event.preventDefault();
      $('search').focus();
    });
    $('search').addEventListener('keydown', ({key}) => { if (key === 'ArrowDown' || key === 'Enter') $('list').focus(); });
    document.addEventListener('dragover', (event) => {
      event.preventDefault();
      document.body.classList.add('drop');
    });
    document.addEventListener('dragleave', () => document.body.classList.remove('drop'));
    document.addEventListener('drop', async (event) => {
      event.preventDefault();
      document.body.classList.remove('drop');
      if (!event.dataTransfer) return;
      await droppedFiles(event.dataTransfer).then((files) => this.add(files), (error) => this.refuse(`What was dropped cannot be read: ${said(error)}`));
    });
  }

  /** Adds the checkpoints among files, a run with its update log or a single one, and shows the last. */
  async add(files) {
    const {checkpoints, log} = checkpointsAmong(files);
    if (checkpoints.length === 0 && !log) {
      this.refuse('There is no ucp.json in that directory, and no update log.');
      return;
    }
    if (log) {
      this.log = await this.client.ask('log', {files: log}).catch(({message}) => ({problem: {code: '', message}}));
    }
    const first = this.choices.length;
    for (const {label, files: theirs} of checkpoints) this.choices.push({label, source: {files: theirs}});
    if (checkpoints.length > 0) {
      this.fillChoices(first, null);
      await this.start();
    } else {
      tab('run').hidden = false;
      this.refuse('');
      this.view('run');
    }
  }

  fillChoices(a, b) {
    const options = (chosen) => this.choices.map(({label}, i) => h('option', {value: i, selected: i === chosen}, label));
    $('side-a').replaceChildren(...options(a));
    $('side-b').replaceChildren(h('option', {value: ''}, 'nothing'), ...options(b));
    $('choice').hidden = this.choices.length < 2;
    tab('run').hidden = this.choices.length < 2 && this.log === null;
  }

  refuse(text) {
    $('refusal').textContent = text;
    $('refusal').hidden = text === '';
  }

  /** Opens the sides that are chosen. */
  async start() {
    this.refuse('');
    const a = this.choices[Number(field('side-a').value)];
    const b = field('side-b').value === '' ? null : this.choices[Number(field('side-b').value)];
    if (!a) {
      $('facts').textContent = `${this.log ? 'There is an update log and no checkpoint yet. ' : ''}Drop the directory of a checkpoint on this page, or open it.`;
      if (this.log) this.view('run');
      document.body.dataset.ready = '0';
      return;
    }
    this.shown = a;
    document.title = a.label;
    $('title').textContent = shortened(a.label, MAX_LABEL);
    $('facts').textContent = 'reading…';
    $('facts').removeAttribute('title');
    tab('plan').hidden = true;
    $('tensor').replaceChildren(h('p', {class: 'quiet'}, 'Choose a tensor. Keys: / searches, arrows move, Enter opens.'));
    document.body.classList.add('unchosen');
    this.atoms = {a: new Map(), b: null};
    this.sides = null;
    this.root = null;
    this.open = new Set();
    const mine = this.atoms;
    try {
      this.root = await this.client.ask('open', {side: 'a', source: a.source});
      this.facts();
      tab('plan').hidden = this.plan === null && this.root.meshes.length === 0;
      await this.read('a', a.source, this.root.parts, b !== null);
      if (b && this.atoms === mine) {
        mine.b = new Map();
        const {parts} = await this.client.ask('open', {side: 'b', source: b.source});
        await this.read('b', b.source, parts, true);
      }
    } catch (error) {
      if (this.atoms !== mine) return;
      this.refuse(said(error));
      if (!this.root) $('facts').textContent = 'cannot be opened';
    }
    if (this.atoms !== mine) return; // others have been chosen meanwhile
    this.sides = this.atoms.b && {a: sideOf(this.atoms.a), b: sideOf(this.atoms.b)};
    $('changed-only').hidden = !this.atoms.b;
    this.chosen = this.#chosen();
    this.openTop();
    this.relist();
    performance.mark('ready');
    document.body.dataset.ready = String(this.atoms.a.size);
  }

  /** Reads the index parts of a side, and lists what is there after each. */
  async read(side, source, parts, contents) {
    const listed = this.atoms[side];
    for await (const atoms of this.client.parts({
      side, source, parts, contents,
    })) {
      const isFirst = listed.size === 0;
      for (const atom of atoms) listed.set(atom.name, atom);
      if (this.atoms[side] !== listed) return; // others have been chosen meanwhile
      if (side === 'a' && isFirst) this.choose();
    }
  }

  facts() {
    const {root} = this;
    $('facts').title = root.digest;
    const producer = root.producer && JSON.parse(root.producer);
    $('facts').textContent = [
      root.step === null ? 'no step' : `step ${root.step}`,
      producer && `by ${producer.name} ${producer.version}`,
      counted(root.atoms, 'atom'), `storage ${root.storage}`,
      ...root.meshes.map(({axes}) => `mesh ${axes.map(({name, size, sizes}) => `${name}=${size ?? sizes.join('+')}`).join(' × ')}`),
      ...root.readFeatures.map((name) => `needs ${name}`), shortened(root.digest, 24),
    ].filter(Boolean).join('; ');
  }

  /** Opens modules from the top while the rows fit on a screen. */
  openTop() {
    for (;;) {
      const rows = rowsOf(this.tree, this.open, bySize);
      const next = rows.find((row) => row.open === false && rows.length + row.module.children.size <= 24);
      if (!next) return;
      this.open.add(next.module.name);
    }
  }

  changeOf(name) {
    return this.sides ? changeOf(name, this.sides.a, this.sides.b) : {state: 'same', told: ''};
  }

  /**
   * What became of what is below a module, against the checkpoint that this one is compared with.
   * @returns {{atoms: number, changed: number, bytes: number}} bytes of what changed
   */
  changesOf(module) {
    const known = this.changes.get(module);
    if (known) return known;
    const found = {atoms: 0, changed: 0, bytes: 0};
    if (module.atom) {
      const {state} = this.changeOf(module.atom.name);
      const isSame = state === 'same' || state === 'unknown';
      Object.assign(found, {atoms: 1, changed: isSame ? 0 : 1, bytes: isSame ? 0 : module.bytes});
    } else {
      for (const child of module.children.values()) {
        const {atoms, changed, bytes} = this.changesOf(child);
        found.atoms += atoms;
        found.changed += changed;
        found.bytes += bytes;
      }
    }
    this.changes.set(module, found);
    return found;
  }

  /** What became of a module, in words; nothing where that is nothing. */
  #changesTold(module) {
    const {atoms, changed} = this.changesOf(module);
    return changed === 0 ? '' : `${changed === atoms ? 'all' : changed.toLocaleString('en')} of ${counted(atoms, 'atom')} changed`;
  }

  /** Atoms that the search and the comparison leave. */
  #chosen() {
    const test = globTest(field('search').value);
    const all = this.atoms.b ? new Map([...this.atoms.b, ...this.atoms.a]) : this.atoms.a;
    const chosen = [...all.values()].filter(({name, aliases}) => test(name) || aliases.some(test));
    return field('changed').checked && this.atoms.b ? chosen.filter(({name}) => this.changeOf(name).state !== 'same') : chosen;
  }

  /** The tree of the atoms that are chosen, made when it is wanted. */
  get tree() {
    this.madeTree ??= treeOf(this.chosen);
    return this.madeTree;
  }

  /** Lists atoms as the search and the comparison now leave them. */
  choose() {
    this.chosen = this.#chosen();
    this.relist();
  }

  set chosen(atoms) {
    this.chosenAtoms = atoms;
    this.madeTree = null;
    this.changes = new WeakMap();
  }

  get chosen() {
    return this.chosenAtoms;
  }

  /** Lists the chosen atoms, as a tree or flat. */
  relist() {
    const atoms = this.chosen;
    const order = field('by-size').checked ? bySize : byName;
    const total = atoms.reduce((sum, {bytes}) => sum + bytes, 0);
    if (field('flat').checked || field('search').value !== '') {
      const rows = atoms.map((atom) => ({
        level: 0, label: atom.name, open: null, share: total > 0 ? atom.bytes / total : 0, module: {atom, bytes: atom.bytes, label: atom.name, name: atom.name},
      }));
      this.list.rows = rows.sort((x, y) => order(x.module, y.module));
    } else {
      this.list.rows = rowsOf(this.tree, this.open, order);
    }
    $('count').textContent = atoms.length === 0 && this.atoms.a.size > 0 ? 'no atom fits' : `${counted(atoms.length, 'atom')}, ${human(total)}`;
  }

  fold(name, isOpen) {
    if (isOpen) this.open.add(name);
    else this.open.delete(name);
    this.relist();
  }

  /** What statistics that came with the page say against an atom. */
  #broken(atom) {
    const found = Object.values(own(this.shown.statistics, atom.name) ?? {});
    return `${found.some(({nan}) => nan > 0) ? ', has NaN' : ''}${found.some(({inf}) => inf > 0) ? ', has infinities' : ''}`;
  }

  #row({
    level, label, open, share, module,
  }) {
    const {atom} = module;
    const told = !this.sides ? '' : atom ? this.changeOf(atom.name).told : this.#changesTold(module);
    const state = atom ? this.changeOf(atom.name).state : 'same';
    const value = atom?.slots.find(({name}) => name === 'value') ?? atom?.slots[0];
    const bar = h('div', {class: 'bar'});
    bar.style.width = `${100 * share}%`;
    const name = h('span', {class: 'name', title: atom ? atom.name : module.name},
      open === null ? '' : open ? '▾ ' : '▸ ', h('bdi', {}, shortened(label, MAX_LABEL)),
      value ? h('span', {class: 'kind'}, `${value.dtype} ${extents(value.shape)}${state === 'same' ? '' : `, ${shortened(told, MAX_LABEL)}`}${this.#broken(atom)}`)
        : !atom && told ? h('span', {class: 'kind'}, told) : null);
    name.style.paddingLeft = `${level}em`;
    return h('div', {
      class: `row ${state}`, role: 'treeitem', 'aria-level': level + 1, 'aria-expanded': open === null ? null : String(open),
    }, name, h('span', {class: 'size'}, human(module.bytes)), h('span', {}, bar));
  }

  show(atom) {
    document.body.classList.remove('unchosen');
    $('tensor').scrollTop = 0;
    this.#fill(atom);
    // Where the window is narrow the tensor comes below the list, and may be out of sight.
    if ($('tensor').getBoundingClientRect().top > 0.7 * innerHeight) $('tensor').scrollIntoView();
  }

  #fill(atom) {
    const {sides} = this;
    const mine = sides ? behind(sides.a, atom.name) : atom;
    const {state, told} = this.changeOf(atom.name);
    if (!mine) {
      $('tensor').replaceChildren(h('h2', {}, h('bdi', {}, atom.name)), h('p', {}, 'Only the checkpoint that this one is compared with has it.'));
      return;
    }
    showTensor($('tensor'), this.client, {...mine, name: atom.name}, 'value', {
      known: own(this.shown.statistics, mine.name) ?? {},
      carried: own(this.shown.source.previews, mine.name) ?? {},
      other: sides ? behind(sides.b, atom.name) ?? null : null,
      change: told === state ? '' : told,
      layouts: this.root.layouts.map(({mesh, steps}) => ({mesh: this.root.meshes[mesh], steps})),
    });
  }

  /** Shows one of the views beside the tensor. */
  view(name) {
    for (const button of tabs()) button.setAttribute('aria-pressed', String(button.dataset.view === name));
    for (const id of ['tensors', 'map', 'plan', 'run', 'state', 'problems']) $(id).hidden = id !== name;
    if (name === 'map') this.map([this.tree]);
    if (name === 'plan') this.planned();
    if (name === 'run') this.run();
    if (name === 'state') this.state();
    if (name === 'problems') this.problems('semantics');
  }

  /** The plan that came with the page, and those that it makes itself. */
  planned() {
    const {meshes} = this.root;
    $('plan').replaceChildren(...(this.plan ? [planView(this.plan)] : []),
      ...(meshes.length > 0 ? [planForm(meshes, (sizes) => this.client.ask('wholePlan', {side: 'a', sizes}),
        this.sides && (() => this.client.ask('planTo', {side: 'a', other: 'b'}))),
      patternsForm(this.patterns, (patterns) => this.client.ask('patternParameters', {side: 'a', patterns}),
        (question) => this.client.ask('patternPlan', {side: 'a', ...question}))] : []));
  }

  /** @param {object[]} path modules from the top to the one that is shown */
  map(path) {
    const crumbs = path.map((module, i) => h('button', {type: 'button', onclick: () => this.map(path.slice(0, i + 1))}, module.label || 'all'));
    const module = path[path.length - 1];
    const into = (below) => {
      const {atom} = below[below.length - 1];
      if (atom) this.show(atom);
      else this.map([...path, ...below]);
    };
    const shadeOf = (item) => {
      const {bytes} = this.changesOf(item);
      const share = item.bytes > 0 ? Math.round((100 * bytes) / item.bytes) : 0;
      return {fill: `color-mix(in srgb, var(--changed) ${share}%, var(--bar))`, told: item.atom ? this.changeOf(item.atom.name).told : this.#changesTold(item)};
    };
    $('map').replaceChildren(h('p', {}, crumbs.flatMap((crumb) => [crumb, ' ']), human(module.bytes)),
      ...(this.sides ? [h('p', {class: 'quiet'}, h('span', {class: 'swatch changed'}), ' changed ', h('span', {class: 'swatch'}), ' the same, or not known; what is not drawn in detail has a mixture')] : []),
      module.bytes > 0 ? bytesMap(module, into, this.sides && shadeOf) : h('p', {class: 'quiet'}, 'There is nothing that has bytes.'));
  }

  /** What there is to show, by step. */
  async run() {
    $('run').replaceChildren(h('p', {class: 'quiet'}, 'reading…'));
    const found = [];
    for (const [index, {label, source}] of this.choices.entries()) {
      try {
        await this.client.ask('open', {side: 'run', source});
        found.push({index, label, ...await this.client.ask('summary', {side: 'run'})});
      } catch (error) {
        found.push({
          index, label, step: null, bytes: null, shared: null, packs: [], metrics: [], cadence: null, log: null, hasRows: false, refusal: said(error),
        });
      }
    }
    const choose = (index, other) => {
      field('side-a').value = String(index);
      if (other !== undefined) field('side-b').value = String(other);
      this.view('tensors');
      this.start();
    };
    $('run').replaceChildren(runView(found, this.log, choose));
  }

  async state() {
    try {
      const {
        values, optimizers, blobs, images,
      } = await this.client.ask('state', {side: 'a'});
      const table = (rows) => (rows.length === 0 ? h('p', {class: 'quiet'}, 'none') : h('div', {class: 'scroll'}, h('table', {}, h('tbody', {}, rows.map(([name, value]) => h('tr', {},
        h('th', {class: 'text', scope: 'row'}, name), h('td', {class: 'text'}, shortened(value, 2000))))))));
      $('state').replaceChildren(
        h('h2', {}, 'values'), table(values),
        ...optimizers.flatMap(([name, groups]) => [h('h2', {}, `optimizer ${name}`), ...groups.map((group) => h('div', {}, h('p', {class: 'quiet'}, `${group.atoms} atoms`), table(group.options)))]),
        h('h2', {}, 'blobs'), table(blobs.map(({name, mediaType, length}) => [name, `${mediaType}, ${human(length)}`])),
        h('h2', {}, 'process images'), table(images.map((name) => [name, ''])));
    } catch (error) {
      $('state').replaceChildren(h('p', {class: 'error', role: 'alert'}, said(error)));
    }
  }

  #problem({
    code, at, detail, atom,
  }) {
    const known = atom === null ? null : this.atoms.a.get(atom);
    const link = known ? h('button', {type: 'button', onclick: () => this.show(known)}, shortened(atom, 60)) : shortened(atom ?? '', 60);
    return h('tr', {}, [code, at, detail].map((text, i) => h('td', {class: i === 0 ? 'text nowrap' : 'text'}, shortened(text, 400))), h('td', {class: 'text'}, link));
  }

  async problems(level) {
    $('problems').replaceChildren(h('p', {class: 'quiet'}, 'checking…'));
    const more = h('button', {type: 'button', onclick: () => this.problems('integrity')}, 'check every byte');
    try {
      const found = await this.client.ask('problems', {side: 'a', level});
      const count = found.length === 1 ? '1 problem' : `${found.length === 0 ? 'No' : found.length.toLocaleString('en')} problems`;
      const table = h('table', {},
        h('thead', {}, h('tr', {}, ['code', 'place', 'what', 'atom'].map((name) => h('th', {class: 'text', scope: 'col'}, name)))),
        h('tbody', {}, found.slice(0, MAX_PROBLEMS).map((problem) => this.#problem(problem))));
      $('problems').replaceChildren(h('div', {},
        h('p', {}, `${count} at level ${level}. `, level === 'integrity' ? null : more),
        found.length === 0 ? null : h('div', {class: 'scroll'}, table),
        found.length > MAX_PROBLEMS ? h('p', {class: 'quiet'}, `The first ${MAX_PROBLEMS} are listed.`) : null));
    } catch (error) {
      $('problems').replaceChildren(h('p', {class: 'error', role: 'alert'}, said(error)));
    }
  }
}

/** The address of a checkpoint that the page's own address names, of an origin that the page's policy has. */
function askedUrl(text) {
  const url = new URL(text, location.href);
  if (url.protocol === 'file:') throw new Error('a page that is a file reads no directories by their names: open the directory, or drop it here');
  const policy = /** @type {HTMLMetaElement | null} */ (document.querySelector('meta[http-equiv="Content-Security-Policy"]'))?.content ?? '';
  if (url.origin !== location.origin && !policy.split(/[\s;]+/).includes(url.origin)) {
    throw new Error(`this page may not ask ${url.origin}: ucp view --url writes one that may`);
  }
  return url.href;
}

/** What came with the page, in it or beside it. */
async function carriedConfiguration() {
  const carried = $('configuration');
  return carried ? JSON.parse(carried.textContent) : (await fetch('configuration.json')).json();
}

/** What the page is to show: from itself, from the server beside it, or from its address. */
async function configuration() {
  const asked = new URLSearchParams(location.search).getAll('checkpoint');
  if (asked.length > 0) {
    const checkpoints = asked.map((url) => ({label: url, source: {url: askedUrl(url)}}));
    const beside = await carriedConfiguration().catch(() => ({patterns: {}}));
    return {checkpoints, compared: asked.length > 1 ? 1 : null, plan: null, log: null, patterns: beside.patterns ?? {}};
  }
  const found = await carriedConfiguration();
  const checkpoints = found.checkpoints.map((choice) => (choice.source.url === undefined ? choice
    : {...choice, source: {url: new URL(choice.source.url, location.href).href}}));
  return {checkpoints, compared: found.compared, plan: found.plan ?? null, log: found.log ?? null, patterns: found.patterns ?? {}};
}

function makeWorker() {
  const text = $('worker');
  if (!text) return new Worker('worker.js');
  return new Worker(URL.createObjectURL(new Blob([JSON.parse(text.textContent)], {type: 'text/javascript'})));
}

async function main() {
  const page = new Page(makeWorker, []);
  let refusal = '';
  try {
    const {
      checkpoints, compared, plan, log, patterns,
    } = await configuration();
    page.choices = checkpoints;
    page.plan = plan;
    page.log = log;
    page.patterns = patterns;
    page.fillChoices(0, compared);
  } catch (error) {
    refusal = `What to show cannot be read: ${said(error)}`;
  }
  await page.start();
  if (refusal) page.refuse(refusal);
}

main();
