/**
 * Layouts in words.
 */

/** @typedef {import('../lib/layout.mjs').Step} Step */

/**
 * The axes of a mesh with their sizes: `dp 2 × tp 4`.
 * @param {Pick<import('../lib/mesh.mjs').Mesh, 'axes'>} mesh
 * @param {string} [between] a name and its size
 */
export const meshText = ({axes}, between = ' ') => axes.map(({name, size, sizes}) => (
  `${name}${between}${size ?? sizes?.join('+')}`)).join(' × ') || 'one rank';

/**
 * A step with all that it says: `shard axis tp, dim 0, rule even`.
 * @param {Step} step
 */
export const stepText = ({kind, ...members}) => `${kind} ${Object.entries(members).filter(([, value]) => value !== null && value !== undefined)
  .map(([name, value]) => `${name} ${typeof value === 'object' ? JSON.stringify(value) : value}`).join(', ')}`.trim();

/**
 * The same in a few words: `shard tp dim 0`.
 * @param {Step} step
 */
export const stepWords = ({kind, axis, dim}) => [kind, axis, dim === undefined ? '' : `dim ${dim}`].filter(Boolean).join(' ');
