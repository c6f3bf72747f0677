/**
 * Keys and derived metadata of storage "plain" (SPEC section 16.3).
 */

import {bytesOf} from './bytes.mjs';
import {chunkPosition} from './grid.mjs';
import {stringify} from './json.mjs';

/** Bytes that the Zarr codec `crc32c` appends (UCP-D-098). */
export const ZARR_CRC = 4;

const GROUP = '{"zarr_format":3,"node_type":"group","attributes":{}}';

export const ATOMS_KEY = 'atoms/zarr.json';
/** @param {string} atom */
export const atomMetadataKey = (atom) => `atoms/${atom}/zarr.json`;
/**
 * @param {string} atom
 * @param {string} slot
 */
export const slotMetadataKey = (atom, slot) => `atoms/${atom}/${slot}/zarr.json`;

/**
 * The key of a chunk's own object.
 * @param {string} atom
 * @param {string} slot
 * @param {import('./grid.mjs').Grid} grid
 * @param {number} index
 */
export function chunkKey(atom, slot, grid, index) {
  return ['atoms', atom, slot, 'c', ...chunkPosition(grid, index)].join('/');
}

/** The metadata document of a group. */
export const groupMetadata = () => bytesOf(GROUP);

/**
 * A compressor with the members of its configuration sorted by name.
 * @param {Map<string, any>} compressor
 */
function compressorText(compressor) {
  const configuration = new Map([...compressor.get('configuration')].sort(([a], [b]) => (a < b ? -1 : 1)));
  return stringify(new Map([['name', compressor.get('name')], ['configuration', configuration]]));
}

/**
 * The metadata document of a slot's array (UCP-D-094).
 * @param {{dtype: import('./dtypes.mjs').DataType, grid: import('./grid.mjs').Grid,
 *   compressor: Map<string, any> | null}} slot
 */
export function arrayMetadata({dtype, grid, compressor}) {
  /** @param {number[]} numbers */
  const list = (numbers) => `[${numbers.join(',')}]`;
  const codecs = [
    dtype.size === 1 ? '{"name":"bytes"}' : '{"name":"bytes","configuration":{"endian":"little"}}',
    ...(compressor ? [compressorText(compressor)] : []),
    '{"name":"crc32c"}',
  ];
  return bytesOf(`{"zarr_format":3,"node_type":"array","shape":${list(grid.shape)},`
    + `"data_type":"${dtype.name}",`
    + `"chunk_grid":{"name":"regular","configuration":{"chunk_shape":${list(grid.chunk)}}},`
    + '"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},'
    + `"fill_value":${dtype.fill},"codecs":[${codecs.join(',')}],"attributes":{}}`);
}
