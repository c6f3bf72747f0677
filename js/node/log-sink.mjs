/**
 * Creating the objects of an update log in a local directory (SPEC-UPDATE-LOGS section 1).
 */

import {
  linkSync, lstatSync, mkdirSync, unlinkSync,
} from 'node:fs';
import {randomBytes} from 'node:crypto';
import {dirname, join, resolve} from 'node:path';
import {
  attempt, createdFile, finish, syncDirectory,
} from './store.mjs';

/** @typedef {import('../lib/log-writer.mjs').LogSink} LogSink */

/** @implements {LogSink} */
export class DirectoryLogSink {
  /** Directories whose names are durable. */
  #directories = new Set();

  /** @param {string} path of the log's own directory, which is made with the first object */
  constructor(path) {
    this.path = resolve(path);
  }

  /** @param {string} key */
  has(key) {
    return attempt(key, {}, () => lstatSync(join(this.path, key), {throwIfNoEntry: false})) !== undefined;
  }

  /**
   * Makes an object: under another name, until it is durable, and linked to its own then, which is
   * exclusive and shows it whole (UCP-W-036).
   * @param {string} key
   * @param {Uint8Array[]} chunks
   */
  create(key, chunks) {
    const path = join(this.path, key);
    const folder = dirname(path);
    const staged = join(folder, `.${randomBytes(16).toString('hex')}`);
    attempt(key, {EEXIST: 'UCP-E-EXISTS'}, () => {
      this.#makeDirectory(folder);
      const fd = createdFile(staged);
      try {
        finish(fd, chunks);
        linkSync(staged, path);
      } finally {
        unlinkSync(staged);
      }
      syncDirectory(folder);
    });
  }

  /**
   * Makes a directory and those above it, and their names durable, whoever has made them.
   * @param {string} folder
   */
  #makeDirectory(folder) {
    if (this.#directories.has(folder)) return;
    const topmost = mkdirSync(folder, {recursive: true}) ?? this.path;
    const last = topmost.length < this.path.length ? topmost : this.path;
    for (let made = folder; ; made = dirname(made)) {
      syncDirectory(dirname(made));
      if (made === last) break;
    }
    this.#directories.add(folder);
  }
}
