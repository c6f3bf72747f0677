/**
 * The defined types of `$object` (SPEC section 15.1): whether their content is as stated.
 */

import {DTYPES} from './dtypes.mjs';

/** @typedef {import('./json.mjs').Json} Json */
/** @typedef {{sameKeys: (keys: Json[]) => string | null, isKey: (value: Json) => boolean,
 *   elementsProblem: (dtype: import('./dtypes.mjs').DataType, base64: string, length: bigint) => string | null}} Tools what checks of values lend */

/**
 * The content of a tag of this name, or undefined.
 * @param {Json | undefined} value
 * @param {string} name
 */
function content(value, name) {
  return value instanceof Map && value.size === 1 ? value.get(name) : undefined;
}

const DATE = /^(\d{4})-(\d{2})-(\d{2})$/;
const TIME = /^(\d{2}):(\d{2}):(\d{2})(?:\.(\d{6}))?(?:([+-])(\d{2}):(\d{2}))?$/;

/** @param {string} text */
function isDate(text) {
  const match = DATE.exec(text);
  if (!match) return false;
  const [year, month, day] = match.slice(1).map(Number);
  if (year < 1 || month < 1 || month > 12 || day < 1) return false;
  const leap = year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0);
  return day <= [31, leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month - 1];
}

/** @param {string} text */
function isTime(text) {
  const match = TIME.exec(text);
  if (!match) return false;
  const [, hour, minute, second, fraction, sign, offsetHour, offsetMinute] = match;
  return Number(hour) < 24 && Number(minute) < 60 && Number(second) < 60 && fraction !== '000000'
    && (sign === undefined || (Number(offsetHour) < 24 && Number(offsetMinute) < 60
      && !(sign === '-' && offsetHour === '00' && offsetMinute === '00')));
}

/** @param {string} text */
function isDateTime(text) {
  return text[10] === 'T' && isDate(text.slice(0, 10)) && isTime(text.slice(11));
}

/**
 * A check of a string, with the detail for what fails it.
 * @param {(text: string) => boolean} test
 * @param {string} what
 */
const text = (test, what) => (/** @type {Json} */ value) => (
  typeof value === 'string' && test(value) ? null : `not ${what}`);

/**
 * Type names, and why a value is not as stated, or null.
 * @type {Record<string, (value: any, tools: Tools) => string | null>}
 */
const DEFINED = {
  'collections.OrderedDict': (value, {sameKeys, isKey}) => {
    const pairs = Array.isArray(value)
      && value.every((pair) => Array.isArray(pair) && pair.length === 2 && isKey(pair[0]));
    return pairs ? sameKeys(value.map(([key]) => key)) : 'not pairs of a key and a value';
  },
  'datetime.datetime': text(isDateTime, 'a datetime'),
  'datetime.date': text(isDate, 'a date'),
  'datetime.time': text(isTime, 'a time'),
  'datetime.timedelta': (value) => {
    const parts = content(value, '$tuple');
    if (!Array.isArray(parts) || parts.length !== 3 || !parts.every(Number.isInteger)) {
      return 'not a tuple of three integers';
    }
    const [days, seconds, microseconds] = parts;
    const normal = Math.abs(days) < 1e9 && seconds >= 0 && seconds < 86400 && microseconds >= 0 && microseconds < 1e6;
    return normal ? null : 'days, seconds or microseconds out of range';
  },
  'numpy.scalar': (value, {elementsProblem}) => {
    const [name, bytes, ...rest] = content(value, '$tuple') ?? [];
    const dtype = DTYPES.get(name);
    const base64 = content(bytes, '$bytes');
    if (!dtype || base64 === undefined || rest.length > 0) return 'not a data type and bytes';
    return elementsProblem(dtype, base64, BigInt(dtype.size));
  },
  'ucp.PerRank': (value) => {
    const names = value instanceof Map ? [...value.keys()].sort().join() : '';
    if (names !== 'axis,entries,on_resize') return 'not an axis, entries and on_resize';
    const [axis, entries, rule] = ['axis', 'entries', 'on_resize'].map((name) => value.get(name));
    if (typeof axis !== 'string' || axis === '') return 'the axis is not a non-empty string';
    if (!Array.isArray(entries) || entries.length === 0) return 'not a list of at least one entry';
    if (!['refuse', 'keep', 'resplit', 'reseed'].includes(rule)) return 'no such on_resize';
    /** @param {Json} entry */
    const isCounter = (entry) => (typeof entry === 'number' && Number.isInteger(entry) && entry >= 0)
      || content(entry, '$int')?.startsWith('-') === false;
    return rule !== 'resplit' || entries.every(isCounter) ? null : 'entries are not counters';
  },
  'pathlib.PosixPath': text(() => true, 'a string'),
  'pathlib.PurePosixPath': text(() => true, 'a string'),
  'pathlib.WindowsPath': text(() => true, 'a string'),
  'pathlib.PureWindowsPath': text(() => true, 'a string'),
};

/** The same by name. */
export const TYPES = new Map(Object.entries(DEFINED));
