/**
 * The page: opens checkpoints, lists their tensors, and shows one of them.
 */

import {Client, Refusal} from './client.mjs';
import {Comparison, behind} from './comparison.mjs';
import {configuration} from './configuration.mjs';
import {
  counted, failed, h, human, own, said, shortened,
} from './dom.mjs';
import {checkpointsAmong, chosenFiles, droppedFiles} from './files.mjs';
import {meshText} from './layouts.mjs';
import {VirtualList} from './list.mjs';
import {mapView} from './map.mjs';
import {patternsForm, planForm, planView} from './plan.mjs';
import {problemsView} from './problems.mjs';
import {rowView} from './rows.mjs';
import {runView} from './run.mjs';
import {stateView} from './state.mjs';
import {showTensor} from './tensor.mjs';
import {
  byName, bySize, flatRows, globTest, rowsOf, treeOf,
} from './tree.mjs';

const MAX_LABEL = 160;
/**
 * An element of page.html, which has all that are asked for.
 * @param {string} id
 */
const $ = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/**
 * The same of those that are filled in.
 * @param {string} id
 */
const field = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));
/**
 * The button of a view.
 * @param {string} name
 */
const tab = (name) => /** @type {HTMLButtonElement} */ (document.querySelector(`[data-view="${name}"]`));
/** @returns {NodeListOf<HTMLButtonElement>} */
const tabs = () => document.querySelectorAll('nav button');
/** Views that are made when they are shown. */
const MADE = ['map', 'plan', 'run', 'state', 'problems'];

/** @typedef {import('./tree.mjs').AtomRow} AtomRow */
/** @typedef {import('./tree.mjs').Module} Module */
/** @typedef {import('./configuration.mjs').Choice} Choice */
/** @typedef {import('./session.mjs').Session} Session */
/** @typedef {{a: Map<string, AtomRow>, b: Map<string, AtomRow> | null}} Atoms by name, of the side that is shown and of the one it is compared with */

/**
 * An update log that the worker refuses.
 * @param {unknown} error
 * @returns {import('./log.mjs').LogOverview}
 */
function refusedLog(error) {
  if (!(error instanceof Refusal)) throw error;
  const {code, at, detail} = error;
  return {id: null, epochs: [], problem: {code, at, message: detail}};
}

class Page {
  /** @type {Atoms} */
  atoms = {a: new Map(), b: null};
  /** @type {Comparison | null} when both are read */
  comparison = null;
  /** @type {Choice | null} */
  shown = null;
  /** @type {Session['root'] | null} what the root document of the checkpoint that is shown says, when it is read */
  root = null;
  /** @type {Set<string>} names of modules */
  open = new Set();
  /** @type {AtomRow[]} that the search and the comparison leave */
  chosen = [];
  /** @type {Module | null} their tree, if it has been wanted */
  madeTree = null;
  /** @type {string} the view that is shown */
  current = 'tensors';
  /** @type {import('./plan.mjs').Plan | null} */
  plan = null;
  /** @type {import('./log.mjs').LogOverview | null} of the run */
  log = null;
  /** @type {Record<string, object>} ready-made pattern documents, by name */
  patterns = {};

  /** @type {Choice[]} */
  choices = [];

  /** @param {() => Worker} makeWorker */
  constructor(makeWorker) {
    this.client = new Client(makeWorker);
    this.client.onfetched = ({requests, bytes}) => {
      $('fetched').textContent = `${requests.toLocaleString('en')} reads, ${human(bytes)}`;
      $('fetched').dataset.bytes = String(bytes);
    };
    /** @type {VirtualList<import('./tree.mjs').Row>} */
    this.list = new VirtualList($('list'), {
      make: (row) => rowView(row, this.comparison, row.module.atom ? own(this.shown?.statistics, row.module.name) : undefined),
      open: ({module: {atom}}) => { if (atom) this.show(atom); },
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

  /**
   * Adds the checkpoints among files, a run with its update log or a single one, and shows the last.
   * @param {import('./files.mjs').Named[]} files
   */
  async add(files) {
    const {checkpoints, log} = checkpointsAmong(files);
    if (checkpoints.length === 0 && !log) {
      this.refuse('There is no ucp.json in that directory, and no update log.');
      return;
    }
    if (log) this.log = await this.client.ask('log', {files: log}).catch(refusedLog);
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

  /**
   * @param {number} a index of the choice that is shown
   * @param {number | null} b and of the one that it is compared with
   */
  fillChoices(a, b) {
    /** @param {number | null} chosen */
    const options = (chosen) => this.choices.map(({label}, i) => h('option', {value: i, selected: i === chosen}, label));
    $('side-a').replaceChildren(...options(a));
    $('side-b').replaceChildren(h('option', {value: ''}, 'nothing'), ...options(b));
    $('choice').hidden = this.choices.length < 2;
    tab('run').hidden = this.choices.length < 2 && this.log === null;
  }

  /** @param {string} text nothing to take a refusal back */
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
    /** @type {Atoms} */
    const mine = {a: new Map(), b: null};
    this.atoms = mine;
    this.comparison = null;
    this.root = null;
    this.open = new Set();
    this.choose();
    for (const id of MADE) $(id).replaceChildren();
    try {
      const root = await this.client.ask('open', {side: 'a', source: a.source});
      if (this.atoms !== mine) return; // others have been chosen meanwhile, here and below
      this.root = root;
      this.facts(root);
      tab('plan').hidden = this.plan === null && root.meshes.length === 0;
      await this.read('a', mine.a, a.source, root.parts, b !== null);
      if (b && this.atoms === mine) {
        mine.b = new Map();
        const {parts} = await this.client.ask('open', {side: 'b', source: b.source});
        await this.read('b', mine.b, b.source, parts, true);
      }
    } catch (error) {
      if (this.atoms !== mine) return;
      this.refuse(said(error));
      if (!this.root) $('facts').textContent = 'cannot be opened';
    }
    if (this.atoms !== mine) return;
    this.comparison = mine.b && new Comparison(mine.a, mine.b);
    $('changed-only').hidden = this.comparison === null;
    this.#choose();
    this.openTop();
    this.relist();
    if (this.current !== 'tensors') this.view(tab(this.current).hidden ? 'tensors' : this.current);
    performance.mark('ready');
    document.body.dataset.ready = String(this.atoms.a.size);
  }

  /**
   * Reads the index parts of a side, and lists what is there after each.
   * @param {'a' | 'b'} side
   * @param {Map<string, AtomRow>} listed that side's atoms, as long as it is the same checkpoint
   * @param {import('./worker.mjs').Source} source
   * @param {number} parts
   * @param {boolean} contents
   */
  async read(side, listed, source, parts, contents) {
    for await (const atoms of this.client.parts({
      side, source, parts, contents,
    })) {
      const isFirst = listed.size === 0;
      for (const atom of atoms) listed.set(atom.name, atom);
      if (this.atoms[side] !== listed) return;
      if (side === 'a' && isFirst) this.choose();
    }
  }

  /** @param {Session['root']} root */
  facts(root) {
    $('facts').title = root.digest;
    const producer = root.producer && JSON.parse(root.producer);
    $('facts').textContent = [
      root.step === null ? 'no step' : `step ${root.step}`,
      producer && `by ${producer.name} ${producer.version}`,
      counted(root.atoms, 'atom'), `storage ${root.storage}`,
      ...root.meshes.map((mesh) => `mesh ${meshText(mesh, '=')}`),
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

  /** Chooses the atoms that the search and the comparison leave. */
  #choose() {
    const {comparison} = this;
    const test = globTest(field('search').value);
    const all = this.atoms.b ? new Map([...this.atoms.b, ...this.atoms.a]) : this.atoms.a;
    const found = [...all.values()].filter(({name, aliases}) => test(name) || aliases.some(test));
    this.chosen = field('changed').checked && comparison ? found.filter(({name}) => comparison.changeOf(name).state !== 'same') : found;
    this.madeTree = null;
  }

  /** The tree of the atoms that are chosen, made when it is wanted. */
  get tree() {
    this.madeTree ??= treeOf(this.chosen);
    return this.madeTree;
  }

  /** Lists atoms as the search and the comparison now leave them. */
  choose() {
    this.#choose();
    this.relist();
  }

  /** Lists the chosen atoms, as a tree or flat. */
  relist() {
    const atoms = this.chosen;
    const order = field('by-size').checked ? bySize : byName;
    const isFlat = field('flat').checked || field('search').value !== '';
    this.list.rows = isFlat ? flatRows(atoms, order) : rowsOf(this.tree, this.open, order);
    const total = atoms.reduce((sum, {bytes}) => sum + bytes, 0);
    $('count').textContent = atoms.length === 0 && this.atoms.a.size > 0 ? 'no atom fits' : `${counted(atoms.length, 'atom')}, ${human(total)}`;
  }

  /**
   * @param {string} name of a module
   * @param {boolean} isOpen
   */
  fold(name, isOpen) {
    if (isOpen) this.open.add(name);
    else this.open.delete(name);
    this.relist();
  }

  /** @param {AtomRow} atom */
  show(atom) {
    document.body.classList.remove('unchosen');
    $('tensor').scrollTop = 0;
    this.#fill(atom);
    // Where the window is narrow the tensor comes below the list, and may be out of sight.
    if ($('tensor').getBoundingClientRect().top > 0.7 * innerHeight) $('tensor').scrollIntoView();
  }

  /** @param {AtomRow} atom */
  #fill(atom) {
    const {comparison, shown, root} = this;
    const mine = comparison ? behind(comparison.mine, atom.name) : atom;
    const change = comparison?.changeOf(atom.name);
    if (!mine) {
      $('tensor').replaceChildren(h('h2', {}, h('bdi', {}, atom.name)), h('p', {}, 'Only the checkpoint that this one is compared with has it.'));
      return;
    }
    showTensor($('tensor'), this.client, {...mine, name: atom.name}, 'value', {
      known: own(shown?.statistics, mine.name) ?? {},
      carried: own(shown?.source.previews, mine.name) ?? {},
      other: comparison ? behind(comparison.other, atom.name) ?? null : null,
      change: change && change.told !== change.state ? change.told : '',
      layouts: root ? root.layouts.map(({mesh, steps}) => ({mesh: root.meshes[mesh], steps})) : [],
    });
  }

  /**
   * Shows one of the views beside the tensor.
   * @param {string} [name]
   */
  view(name = 'tensors') {
    this.current = name;
    for (const button of tabs()) button.setAttribute('aria-pressed', String(button.dataset.view === name));
    for (const id of ['tensors', ...MADE]) $(id).hidden = id !== name;
    if (name === 'map') this.map([this.tree]);
    if (name === 'plan') this.planned();
    if (name === 'run') this.run();
    if (name === 'state') this.state();
    if (name === 'problems') this.problems('semantics');
  }

  /** The plan that came with the page, and those that it makes itself. */
  planned() {
    const meshes = this.root?.meshes ?? [];
    $('plan').replaceChildren(...(this.plan ? [planView(this.plan)] : []),
      ...(meshes.length > 0 ? [planForm(meshes, (sizes) => this.client.ask('wholePlan', {side: 'a', sizes}),
        this.comparison && (() => this.client.ask('planTo', {side: 'a', other: 'b'}))),
      patternsForm(this.patterns, (patterns) => this.client.ask('patternParameters', {side: 'a', patterns}),
        (question) => this.client.ask('patternPlan', {side: 'a', ...question}))] : []));
  }

  /** @param {Module[]} path from the top to a module, which is shown, or to an atom */
  map(path) {
    const {atom} = path[path.length - 1];
    if (atom) this.show(atom);
    else $('map').replaceChildren(...mapView(path, this.comparison, (other) => this.map(other)));
  }

  /** What there is to show, by step. */
  async run() {
    $('run').replaceChildren(h('p', {class: 'quiet'}, 'reading…'));
    /** @type {import('./run.mjs').Listed[]} */
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
    /** @type {(index: number, other?: number) => void} */
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
      $('state').replaceChildren(...stateView(await this.client.ask('state', {side: 'a'})));
    } catch (error) {
      $('state').replaceChildren(failed(error));
    }
  }

  /** @param {'semantics' | 'integrity'} level */
  async problems(level) {
    $('problems').replaceChildren(h('p', {class: 'quiet'}, 'checking…'));
    try {
      const found = await this.client.ask('problems', {side: 'a', level});
      $('problems').replaceChildren(problemsView(found, level, {
        known: this.atoms.a, show: (atom) => this.show(atom), checkAll: () => this.problems('integrity'),
      }));
    } catch (error) {
      $('problems').replaceChildren(failed(error));
    }
  }
}

function makeWorker() {
  const text = $('worker');
  if (!text) return new Worker('worker.js');
  return new Worker(URL.createObjectURL(new Blob([JSON.parse(text.textContent)], {type: 'text/javascript'})));
}

async function main() {
  const page = new Page(makeWorker);
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
