/**
 * A plan between two arrangements of ranks: bytes from each rank to each other, as a matrix.
 */

import {failed, h, human} from './dom.mjs';

/** Digits of a size that can be entered. */
const MAX_SIZE = 4096;

/** Ranks up to which cells have their bytes as text. */
const MAX_TEXTS = 16;

/**
 * What goes from rank to rank; `left` says why of slots that are in no plan, `unplanned` how many there are of which that is not known.
 * @typedef {{from: string, to: string, slots: number, bytes: number, unplanned?: number, ranks: number[],
 *   moved: [number, number, number][], left?: [why: string, slots: number][]}} Plan
 */

/** @param {Plan} plan */
export function planView({
  from, to, slots, bytes, unplanned = 0, ranks, moved, left = [],
}) {
  const places = new Map(ranks.map((rank, i) => [rank, i]));
  /** @param {number} rank */
  const placeOf = (rank) => places.get(rank) ?? 0;
  const cells = ranks.map(() => new Float64Array(ranks.length));
  for (const [source, target, count] of moved) cells[placeOf(source)][placeOf(target)] = count;
  const sent = cells.map((row, i) => row.reduce((sum, count, j) => sum + (i === j ? 0 : count), 0));
  const received = ranks.map((_, j) => cells.reduce((sum, row, i) => sum + (i === j ? 0 : row[j]), 0));
  const kept = ranks.reduce((sum, _, i) => sum + cells[i][i], 0);
  const most = Math.max(1, ...moved.map(([, , count]) => count));
  const hasTexts = ranks.length <= MAX_TEXTS;
  /** @type {(count: number, i: number, j: number) => HTMLElement} */
  const cell = (count, i, j) => {
    const what = count === 0 ? 'nothing' : human(count);
    const told = i === j ? `rank ${ranks[i]} keeps ${what}` : `rank ${ranks[i]} sends ${what} to rank ${ranks[j]}`;
    const element = h('td', {title: told, class: i === j ? 'kept' : null}, hasTexts ? (count === 0 ? '' : human(count)) : '');
    element.style.setProperty('--share', `${Math.round((100 * count) / most)}%`);
    return element;
  };
  /** @param {number} count */
  const sum = (count) => h('td', {class: 'sum'}, count === 0 ? '–' : human(count));
  return h('div', {},
    h('p', {}, `From ${from} to ${to}: ${slots === 1 ? '1 slot' : `${slots.toLocaleString('en')} slots`}, ${human(bytes)}; `
      + `${human(kept)} stay in place, ${human(sent.reduce((a, b) => a + b, 0))} are sent.`
      + `${unplanned > 0 ? ` Of ${unplanned.toLocaleString('en')} slots nothing is known: they have no layout, or are missing.` : ''}`),
    left.map(([why, count]) => h('p', {class: 'quiet'}, `${count === 1 ? '1 slot is' : `${count.toLocaleString('en')} slots are`} left out: ${why}`)),
    h('p', {class: 'quiet'}, 'Rows send, columns receive; what stays in place is framed.'),
    h('div', {class: 'scroll'}, h('table', {class: hasTexts ? 'matrix' : 'matrix dense'},
      h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'rank'), ranks.map((rank) => h('th', {scope: 'col'}, rank)), h('th', {scope: 'col'}, 'sends'))),
      h('tbody', {}, cells.map((row, i) => h('tr', {}, h('th', {scope: 'row'}, ranks[i]), [...row].map((count, j) => cell(count, i, j)), sum(sent[i]))),
        h('tr', {}, h('th', {scope: 'row'}, 'receives'), received.map(sum), h('td', {class: 'sum'}, ''))))));
}

/**
 * What a button asks for, below it: a plan, or why there is none.
 * @param {() => Promise<Plan>} ask
 */
function answered(ask) {
  const body = h('div', {role: 'status'});
  const run = async () => {
    body.replaceChildren(h('p', {class: 'quiet'}, 'planning…'));
    try {
      body.replaceChildren(planView(await ask()));
    } catch (error) {
      body.replaceChildren(failed(error));
    }
  };
  return {body, run};
}

/**
 * Sizes of meshes to fill in, and the plan to them.
 * @param {import('../lib/mesh.mjs').Mesh[]} meshes of the checkpoint
 * @param {(sizes: (number | null)[][]) => Promise<Plan>} ask
 * @param {(() => Promise<Plan>) | null} askOther to the layouts of the checkpoint that it is compared with
 */
export function planForm(meshes, ask, askOther) {
  const inputs = meshes.map(({axes}, i) => axes.map(({name, size}) => (size === undefined ? null : h('input', {
    type: 'number', min: 1, max: MAX_SIZE, value: size, required: true, 'aria-label': `size of ${name} in mesh ${i}`,
  }))));
  const {body, run} = answered(() => ask(inputs.map((row) => row.map((input) => input && Math.max(1, Math.floor(Number(input.value)) || 1)))));
  /** @param {SubmitEvent} event */
  const submit = (event) => {
    event.preventDefault();
    run();
  };
  return h('div', {}, h('form', {onsubmit: submit},
    h('p', {class: 'quiet'}, 'To the same layouts over meshes of other sizes:'),
    meshes.map(({axes}, i) => h('p', {}, meshes.length > 1 ? `mesh ${i}: ` : '', axes.map(({name, sizes}, k) => h('label', {},
      `${name} `, inputs[i][k] ?? sizes?.join('+') ?? '', ' ')))),
    h('button', {type: 'submit'}, 'plan')), body,
  ...(askOther ? [h('p', {class: 'quiet'}, 'To the layouts of the checkpoint that it is compared with:'), otherButton(askOther)] : []));
}

/** @param {() => Promise<Plan>} ask */
function otherButton(ask) {
  const {body, run} = answered(ask);
  return h('div', {}, h('p', {}, h('button', {type: 'button', 'data-plan': 'other', onclick: run}, 'plan')), body);
}

/**
 * A layout to fill in, and the plan of one slot to it.
 * @param {{mesh: object, steps: object[]}} layout of the slot
 * @param {(text: string) => Promise<Plan>} ask
 */
export function slotPlanForm(layout, ask) {
  const text = h('textarea', {rows: 6, spellcheck: 'false', 'aria-label': 'layout to plan to, as JSON'}, JSON.stringify(layout));
  const {body, run} = answered(() => ask(text.value));
  return h('div', {}, h('p', {class: 'quiet'}, 'To this layout: change its sizes or its steps.'), text,
    h('p', {}, h('button', {type: 'button', onclick: run}, 'plan')), body);
}

/**
 * Values of parameters as `--set` takes them: an integer, or several with commas.
 * @param {{name: string, type: string, input: HTMLInputElement}[]} fields
 * @returns {[name: string, value: number | number[]][]} of those that are filled in
 */
function settingsOf(fields) {
  return fields.filter(({input}) => input.value.trim() !== '').map(({name, type, input}) => {
    const numbers = input.value.split(',').map((text) => {
      if (!/^\s*\d+\s*$/.test(text)) throw new Error(`${name} is ${type === 'integer' ? 'an integer' : 'integers with commas between them'}, and not ${input.value}`);
      return Number(text);
    });
    return [name, type === 'integer' && numbers.length === 1 ? numbers[0] : numbers];
  });
}

/**
 * Patterns to choose, to open or to paste, a field for each of their parameters, and the plan to the layouts that they make.
 * @param {Record<string, object>} ready documents by name
 * @param {(patterns: string) => Promise<{name: string, type: string, description: string, hasDefault: boolean}[]>} askParameters
 * @param {(question: {patterns: string, settings: [string, number | number[]][], label: string}) => Promise<Plan>} ask
 */
export function patternsForm(ready, askParameters, ask) {
  let label = 'the patterns';
  /** @type {{name: string, type: string, input: HTMLInputElement}[]} */
  let fields = [];
  const text = h('textarea', {rows: 8, spellcheck: 'false', 'aria-label': 'patterns, as JSON'});
  const parameters = h('div', {'data-patterns': 'parameters'});
  const {body, run} = answered(async () => ask({patterns: text.value, settings: settingsOf(fields), label}));
  const submit = h('button', {type: 'submit'}, 'plan');
  /** Asks which parameters the text has now, and keeps what was filled in. */
  const read = async () => {
    const {value} = text;
    const before = new Map(fields.map(({name, input}) => [name, input.value]));
    const found = value.trim() === '' ? [] : await askParameters(value).catch((error) => /** @type {Error} */ (error));
    if (text.value !== value) return; // changed meanwhile
    body.replaceChildren();
    if (found instanceof Error) {
      fields = [];
      parameters.replaceChildren(h('p', {class: 'error', role: 'alert'}, found.message));
      return;
    }
    fields = found.map(({name, type, hasDefault}) => ({
      name, type, input: h('input', {
        type: 'text', size: 8, inputmode: 'numeric', required: !hasDefault, placeholder: hasDefault ? 'default' : '', 'aria-label': `parameter ${name}`,
      }),
    }));
    for (const {name, input} of fields) input.value = before.get(name) ?? '';
    parameters.replaceChildren(...found.map(({name, description}, i) => h('p', {}, h('label', {}, `${name} `, fields[i].input), ' ', h('span', {class: 'quiet'}, description))));
  };
  /** @type {(name: string, content: string) => Promise<void>} */
  const fill = (name, content) => {
    label = name;
    text.value = content;
    return read();
  };
  const choice = h('select', {
    'aria-label': 'ready-made patterns', onchange: () => fill(choice.value || 'the patterns', choice.value && JSON.stringify(ready[choice.value], null, 1)),
  }, h('option', {value: ''}, 'your own'), Object.keys(ready).map((name) => h('option', {value: name}, name)));
  const file = h('input', {
    type: 'file', accept: '.json,application/json', 'aria-label': 'open patterns', onchange: async () => {
      const [chosen] = file.files ?? [];
      if (chosen) await fill(chosen.name, await chosen.text());
    },
  });
  text.addEventListener('input', () => {
    label = 'the patterns';
    choice.value = '';
    read();
  });
  return h('form', {
    'data-plan': 'patterns', onsubmit: (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      run();
    },
  }, h('p', {class: 'quiet'}, 'To the layouts of patterns, as ', h('code', {}, 'ucp plan --to'), ' takes them:'),
  h('p', {}, choice, ' ', h('label', {class: 'button'}, 'open a file', file)), text, parameters, h('p', {}, submit), body);
}
