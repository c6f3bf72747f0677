/**
 * The store in a local directory (SPEC section 8).
 */

import {
  closeSync, constants, fstatSync, fsyncSync, linkSync, lstatSync, mkdirSync, openSync, readdirSync,
  readSync, statSync, unlinkSync, writeSync,
} from 'node:fs';
import {randomBytes} from 'node:crypto';
import {join, dirname} from 'node:path';
import {UcpError} from '../lib/errors.mjs';
import {ROOT_KEY} from '../lib/names.mjs';

const OPEN_FILES = 64;

/**
 * Runs a file system call; what it throws becomes a refusal, by error number or UCP-E-STORE.
 * @template T
 * @param {string} key
 * @param {Record<string, string>} codes of refusals by error number
 * @param {() => T} call
 * @returns {T}
 */
export function attempt(key, codes, call) {
  try {
    return call();
  } catch (error) {
    const {code: said} = /** @type {NodeJS.ErrnoException} */ (error);
    if (typeof said !== 'string' || error instanceof UcpError) throw error;
    throw new UcpError(codes[said] ?? 'UCP-E-STORE', key, `the file system says ${said}`);
  }
}

/**
 * Makes a file that is not there yet, and opens it.
 * @param {string} path
 */
export const createdFile = (path) => openSync(path, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW, 0o666);

/**
 * @param {number} fd
 * @param {Uint8Array} bytes
 */
function writeAll(fd, bytes) {
  for (let done = 0; done < bytes.length;) done += writeSync(fd, bytes, done, bytes.length - done);
}

/**
 * Writes what a file lacks yet and makes it durable; closes it in any case.
 * @param {number} fd
 * @param {Uint8Array[]} rest
 */
export function finish(fd, rest = []) {
  try {
    for (const chunk of rest) writeAll(fd, chunk);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/**
 * Makes the names in a directory durable.
 * @param {string} path
 */
export const syncDirectory = (path) => finish(openSync(path, constants.O_RDONLY | constants.O_DIRECTORY));

const ABSENT = {ENOENT: 'UCP-E-MISSING', ENOTDIR: 'UCP-E-MISSING', ELOOP: 'UCP-E-LINK'};

/** Reads objects; refuses symbolic links and special files (UCP-S-001). */
export class DirectoryStore {
  /** @type {Map<string, {fd: number, length: number}>} open files, least recently used first */
  #files = new Map();
  /** Directories below the root that are known to be plain. */
  #directories = new Set();

  /** @param {string} path of the checkpoint's own directory, which may itself be a link */
  constructor(path) {
    this.path = path;
  }

  /**
   * Refuses a link among the directories above an object. A directory that somebody swaps for a
   * link between this check and the opening is followed: Node's library has no `openat`.
   * @param {string} key
   */
  #checkDirectories(key) {
    const components = key.split('/').slice(0, -1);
    let directory = '';
    for (const component of components) {
      directory = directory === '' ? component : `${directory}/${component}`;
      if (this.#directories.has(directory)) continue;
      const status = attempt(key, ABSENT, () => lstatSync(join(this.path, directory)));
      if (status.isSymbolicLink()) throw new UcpError('UCP-E-LINK', key, `${directory} is a link`);
      if (!status.isDirectory()) {
        throw new UcpError('UCP-E-MISSING', key, `${directory} is not a directory`);
      }
      this.#directories.add(directory);
    }
  }

  /** @param {string} key safe (UCP-D-010) */
  #open(key) {
    let file = this.#files.get(key);
    if (file) {
      this.#files.delete(key);
    } else {
      this.#checkDirectories(key);
      const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
      const codes = {...ABSENT, ENXIO: 'UCP-E-LINK', ENODEV: 'UCP-E-LINK'};
      const fd = attempt(key, codes, () => openSync(join(this.path, key), flags));
      const status = fstatSync(fd);
      if (!status.isFile()) {
        closeSync(fd);
        throw new UcpError('UCP-E-LINK', key, 'not a regular file');
      }
      file = {fd, length: status.size};
      if (this.#files.size >= OPEN_FILES) {
        const [[oldest, {fd: old}]] = this.#files;
        this.#files.delete(oldest);
        closeSync(old);
      }
    }
    this.#files.set(key, file);
    return file;
  }

  /**
   * The length of an object in bytes; UCP-E-MISSING if there is none.
   * @param {string} key
   */
  lengthOf(key) {
    return this.#open(key).length;
  }

  /**
   * Reads a range of an object.
   * @param {string} key
   * @param {number} offset
   * @param {number} length
   * @returns {Buffer}
   * @throws {UcpError} UCP-E-MISSING, UCP-E-LENGTH
   */
  read(key, offset, length) {
    const file = this.#open(key);
    if (offset + length > file.length) {
      throw new UcpError('UCP-E-LENGTH', key, `ends at ${file.length}, before ${offset + length}`);
    }
    const bytes = Buffer.allocUnsafe(length);
    let done = 0;
    while (done < length) {
      const count = attempt(key, {}, () => readSync(file.fd, bytes, done, length - done, offset + done));
      if (count === 0) throw new UcpError('UCP-E-LENGTH', key, 'the object shrank while it was read');
      done += count;
    }
    return bytes;
  }

  /**
   * Reads an object of a known length whole.
   * @param {string} key
   * @param {number} length
   */
  readWhole(key, length) {
    const actual = this.lengthOf(key);
    if (actual !== length) {
      throw new UcpError('UCP-E-LENGTH', key, `has ${actual} bytes and not ${length}`);
    }
    return this.read(key, 0, length);
  }

  /**
   * Keys of all objects, links and special files included, which are not followed; none where there is no directory.
   * @returns {Generator<string>}
   */
  * list(under = '') {
    const path = join(this.path, under);
    const entries = attempt(under, {}, () => (
      lstatSync(path, {throwIfNoEntry: false}) ? readdirSync(path, {withFileTypes: true}) : []));
    for (const entry of entries) {
      const key = under === '' ? entry.name : `${under}/${entry.name}`;
      if (entry.isDirectory()) yield* this.list(key);
      else yield key;
    }
  }

  close() {
    for (const {fd} of this.#files.values()) closeSync(fd);
    this.#files.clear();
    this.#directories.clear();
  }
}

/** Creates objects, never over others (UCP-W-006), and publishes the root (UCP-W-002 to UCP-W-004). */
export class DirectoryWriter {
  #directories = new Set();
  /** The file of the draft, once that is made. */
  draftFile = -1;

  /** @param {string} path */
  constructor(path) {
    this.path = path;
    this.draft = `.${ROOT_KEY}.${randomBytes(8).toString('hex')}`;
    const create = () => mkdirSync(path, {recursive: true});
    const created = attempt('', {EEXIST: 'UCP-E-EXISTS', ENOTDIR: 'UCP-E-EXISTS'}, create);
    if (attempt(ROOT_KEY, {}, () => lstatSync(join(path, ROOT_KEY), {throwIfNoEntry: false}))) {
      throw new UcpError('UCP-E-EXISTS', ROOT_KEY, 'there is a root document');
    }
    this.#directories.add('');
    if (created) this.topmostParent = dirname(created);
    this.#begin();
  }

  /** Makes the draft, the attempt's right to commit, and finds nothing beside it (UCP-W-011, UCP-W-007). */
  #begin() {
    this.opened = attempt('', {}, () => statSync(this.path, {bigint: true}).ino);
    this.draftFile = attempt(this.draft, {}, () => createdFile(join(this.path, this.draft)));
    const [other] = attempt('', {}, () => readdirSync(this.path)).filter((name) => name !== this.draft);
    if (other !== undefined) {
      closeSync(this.draftFile);
      unlinkSync(join(this.path, this.draft));
      throw new UcpError('UCP-E-EXISTS', '', `${other.slice(0, 100)} is there: another attempt's, or not of a checkpoint`);
    }
  }

  /**
   * Makes a directory that no other attempt may have begun in (UCP-W-006).
   * @param {string} directory one component
   */
  claim(directory) {
    attempt(directory, {EEXIST: 'UCP-E-EXISTS'}, () => mkdirSync(join(this.path, directory)));
    this.#directories.add(directory);
  }

  /** @param {string} key */
  #makeDirectories(key) {
    const components = key.split('/').slice(0, -1);
    let directory = '';
    for (const component of components) {
      directory = directory === '' ? component : `${directory}/${component}`;
      if (this.#directories.has(directory)) continue;
      const path = join(this.path, directory);
      attempt(key, {}, () => {
        try {
          mkdirSync(path);
        } catch (error) {
          if (/** @type {NodeJS.ErrnoException} */ (error).code !== 'EEXIST') throw error;
        }
      });
      if (!lstatSync(path).isDirectory()) {
        throw new UcpError('UCP-E-LINK', key, `${directory} is not a directory`);
      }
      this.#directories.add(directory);
    }
  }

  /**
   * Opens a new object; the caller writes, {@link DirectoryWriter.finish}es it.
   * @param {string} key
   */
  create(key) {
    this.#makeDirectories(key);
    return attempt(key, {EEXIST: 'UCP-E-EXISTS'}, () => createdFile(join(this.path, key)));
  }

  /**
   * @param {string} key
   * @param {number} fd
   * @param {Uint8Array} bytes
   */
  append(key, fd, bytes) {
    attempt(key, {}, () => writeAll(fd, bytes));
  }

  /**
   * Makes an object durable (UCP-W-002).
   * @param {string} key
   * @param {number} fd
   */
  finish(key, fd) {
    attempt(key, {}, () => finish(fd));
  }

  /**
   * Gives an object up without making it durable.
   * @param {number} fd
   */
  abandon(fd) {
    closeSync(fd);
  }

  /**
   * @param {string} key
   * @param {Uint8Array} bytes
   */
  put(key, bytes) {
    const fd = this.create(key);
    attempt(key, {}, () => finish(fd, [bytes]));
  }

  /** @param {string} path */
  #syncDirectory(path) {
    attempt('', {}, () => syncDirectory(path));
  }

  /**
   * Publishes the root document: everything else is durable before; a hard link appears whole or
   * not at all, and never in the place of another file.
   * @param {Buffer} bytes
   */
  publish(bytes) {
    for (const directory of this.#directories) this.#syncDirectory(join(this.path, directory));
    for (let path = this.path; this.topmostParent && path !== this.topmostParent; path = dirname(path)) {
      this.#syncDirectory(dirname(path));
    }
    this.append(this.draft, this.draftFile, bytes);
    this.finish(this.draft, this.draftFile);
    // Whoever has removed the draft has withdrawn the attempt: then there is nothing to link.
    const codes = {EEXIST: 'UCP-E-EXISTS', ENOENT: 'UCP-E-EXISTS'};
    attempt(ROOT_KEY, codes, () => linkSync(join(this.path, this.draft), join(this.path, ROOT_KEY)));
    attempt(this.draft, {}, () => unlinkSync(join(this.path, this.draft)));
    this.#syncDirectory(this.path);
    if (attempt('', {}, () => statSync(this.path, {bigint: true}).ino) !== this.opened) { // UCP-W-013
      throw new UcpError('UCP-E-EXISTS', '', 'the directory was moved away while it was written');
    }
  }
}
