/**
 * The tree of a model by bytes, and its rows; no part of a page.
 */

/**
 * An atom as the page lists it; a slot has its content digest where that is compared.
 * @typedef {{name: string, dtype: string, shape: number[], layout: number | null, bytes: number, content?: string | null}} SlotRow
 * @typedef {{name: string, aliases: string[], slots: SlotRow[], bytes: number}} AtomRow
 */
/** @typedef {{name: string, label: string, bytes: number, atom: AtomRow | null, children: Map<string, Module>}} Module */
/** @typedef {Pick<Module, 'label' | 'bytes'>} Labelled what orders go by */
/** @typedef {{level: number, module: Module, label: string, open: boolean | null, share: number}} Row open: null of leaves */

/** @type {Map<string, Module>} what leaves have in common: no children */
const NONE = new Map();

/**
 * @param {string} name
 * @param {string} label
 * @param {Map<string, Module>} children
 * @returns {Module}
 */
const newModule = (name, label, children) => ({
  name, label, bytes: 0, atom: null, children,
});

/**
 * @param {AtomRow} atom
 * @param {string} label
 * @returns {Module}
 */
const leafOf = (atom, label) => ({...newModule(atom.name, label, NONE), bytes: atom.bytes, atom});

/**
 * How much two texts have in common at their beginning.
 * @param {string} a
 * @param {string} b
 */
function commonLength(a, b) {
  const most = Math.min(a.length, b.length);
  let i = 0;
  while (i < most && a.charCodeAt(i) === b.charCodeAt(i)) i += 1;
  return i;
}

/**
 * Where a part of a name ends that begins there: behind a dot or a slash, or with the name.
 * @param {string} name
 * @param {number} start
 */
function endOfPart(name, start) {
  for (let i = start; i < name.length; i += 1) {
    const unit = name.charCodeAt(i);
    if (unit === 0x2e || unit === 0x2f) return i + 1;
  }
  return name.length;
}

/**
 * The tree of atoms.
 * @param {Iterable<AtomRow>} atoms
 * @returns {Module}
 */
export function treeOf(atoms) {
  const top = newModule('', '', new Map());
  // Modules that the name before is in: names come sorted, so that the next is in most of them too.
  const path = [top];
  let before = '';
  for (const atom of atoms) {
    const {name} = atom;
    const common = commonLength(before, name);
    while (path[path.length - 1].name.length > common) path.pop();
    let module = path[path.length - 1];
    let start = module.name.length;
    for (let end = endOfPart(name, start); end < name.length; end = endOfPart(name, start)) {
      const part = name.slice(start, end);
      let child = module.children.get(part);
      if (!child) {
        child = newModule(name.slice(0, end), part, new Map());
        module.children.set(part, child);
      }
      path.push(child);
      module = child;
      start = end;
    }
    for (const above of path) above.bytes += atom.bytes;
    const leaf = leafOf(atom, name.slice(start));
    // An atom is a leaf even where others are below its name: keys of modules end with a dot or a slash, and this does not.
    module.children.set(`${leaf.label}=`, leaf);
    before = name;
  }
  return top;
}

const COLLATOR = new Intl.Collator('en', {numeric: true});

/**
 * Orders of modules.
 * @param {Labelled} a
 * @param {Labelled} b
 */
export const byName = (a, b) => COLLATOR.compare(a.label, b.label);
/**
 * @param {Labelled} a
 * @param {Labelled} b
 */
export const bySize = (a, b) => b.bytes - a.bytes || byName(a, b);

/**
 * A module, or what is alone in it, with the label of both: they are shown as one.
 * @param {Module} module
 * @returns {[Module, string]}
 */
export function withOnlyChildren(module) {
  let inner = module;
  let {label} = module;
  while (!inner.atom && inner.children.size === 1) {
    [inner] = inner.children.values();
    label += inner.label;
  }
  return [inner, label];
}

/**
 * Rows of the open part of a tree, from the top on.
 * @param {Module} top
 * @param {Set<string>} open names of modules that are open
 * @param {(a: Module, b: Module) => number} order
 * @returns {Row[]}
 */
export function rowsOf(top, open, order) {
  /** @type {Row[]} */
  const rows = [];
  /** @type {(parent: Module, level: number) => void} */
  const visit = (parent, level) => {
    for (let child of [...parent.children.values()].sort(order)) {
      let label;
      [child, label] = withOnlyChildren(child);
      const isOpen = child.atom ? null : open.has(child.name);
      rows.push({
        level, module: child, label, open: isOpen, share: top.bytes > 0 ? child.bytes / top.bytes : 0,
      });
      if (isOpen) visit(child, level + 1);
    }
  };
  visit(top, 0);
  return rows;
}

/**
 * Rows of atoms by themselves, with their whole names.
 * @param {AtomRow[]} atoms
 * @param {(a: Module, b: Module) => number} order
 * @returns {Row[]}
 */
export function flatRows(atoms, order) {
  const total = atoms.reduce((sum, {bytes}) => sum + bytes, 0);
  return atoms.map((atom) => leafOf(atom, atom.name)).sort(order).map((module) => ({
    level: 0, module, label: module.label, open: null, share: total > 0 ? module.bytes / total : 0,
  }));
}

/**
 * A test of names by a glob: `*` and `?` as in shells, and without either a part of the name.
 * @param {string} glob
 * @returns {(name: string) => boolean}
 */
export function globTest(glob) {
  if (glob === '') return () => true;
  if (!/[*?]/.test(glob)) return (name) => name.includes(glob);
  // Run of stars alike: the test takes time linear in both lengths.
  const pattern = [...glob.replace(/\*+/g, '*')];
  return (name) => {
    const text = [...name];
    let star = -1;
    let mark = 0;
    let p = 0;
    let t = 0;
    while (t < text.length) {
      if (p < pattern.length && pattern[p] === '*') {
        star = p;
        mark = t;
        p += 1;
      } else if (p < pattern.length && (pattern[p] === '?' || pattern[p] === text[t])) {
        p += 1;
        t += 1;
      } else if (star >= 0) {
        p = star + 1;
        mark += 1;
        t = mark;
      } else return false;
    }
    while (pattern[p] === '*') p += 1;
    return p === pattern.length;
  };
}
